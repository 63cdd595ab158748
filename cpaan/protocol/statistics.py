"""Means, confidence intervals and paired differences of scores by draw and training seed.

All methods are scored on the same draws of the shots, and each trained method with several seeds.
A mean should hold for other draws and for other seeds: both are random effects, and they are
crossed, because every seed is scored on every draw.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ROW = ["method", "head"]
CELL = [*ROW, "column", "shots"]
CONFIDENCE = 0.95
_METRICS = ("top1", "top5")
_NAN = float("nan")
_SMALLEST_TAIL = 1e-12
"""A p-value below twice this is given as zero."""


class Estimate(NamedTuple):
    """A mean with its standard error; see `Crossed.estimate`."""

    mean: float
    error: float
    """NaN for a single draw."""
    degrees: tuple[int, ...]
    """Degrees of freedom of each part of the squared error: of draws, and of seeds."""
    shares: tuple[float, ...]
    """The share of each part."""

    def quantile(self, tail: float) -> float:
        """Return the value that t exceeds with this probability.

        Each part of the squared error has a t-distribution of its own, and their quantiles are
        averaged with the shares (Cochran & Cox, 1950).
        """
        # Imported here, because every process of a study imports this module and few need SciPy.
        from scipy.special import stdtrit

        return -float(np.dot(self.shares, stdtrit(self.degrees, tail)))

    def interval(self, num_comparisons: int = 1) -> float:
        """Return half the width of the 95 % interval; NaN for a single draw.

        If this mean was selected from several comparisons, the interval is widened so that the
        intervals of all of them hold jointly (Bonferroni).
        """
        return self.quantile((1 - CONFIDENCE) / (2 * num_comparisons)) * self.error

    def p_value(self, num_comparisons: int = 1) -> float:
        """Return the two-sided p-value of a mean of zero; 1 for a single draw.

        It is multiplied by the number of comparisons from which this mean was selected.
        """
        from scipy.optimize import brentq

        if self.mean == 0 or np.isnan(self.error):
            return 1.0
        if abs(self.mean) >= self.error * self.quantile(_SMALLEST_TAIL):
            return 0.0
        ratio = abs(self.mean) / self.error
        tail = brentq(lambda tail: self.quantile(tail) - ratio, _SMALLEST_TAIL, 0.5, xtol=1e-15)
        return min(1.0, 2 * tail * num_comparisons)


@dataclass(frozen=True, eq=False)
class Crossed:
    """Scores of one cell of a table, or differences of scores, by draw and training seed."""

    draws: tuple[int, ...]
    seeds: tuple[int, ...]
    values: NDArray[np.float64]
    """Shape (draws, seeds)."""

    def minus(self, other: "Crossed", *, same_seeds: bool = False) -> "Crossed":
        """Subtract other scores, draw by draw and seed by seed.

        A single seed, such as that of a row without training, is compared with every seed of the
        other side. With ``same_seeds`` it is compared with itself alone, if both sides have it:
        the single training of a variant says nothing about other seeds.

        Raises:
            ValueError: If the draws differ, or both sides have several seeds but none in common.
        """
        if alone := set(self.draws) ^ set(other.draws):
            raise ValueError(
                f"{len(self.draws)} and {len(other.draws)} draws cannot be paired: draw "
                f"{min(alone)} is not in both"
            )
        common = tuple(seed for seed in self.seeds if seed in other.seeds)
        if min(len(self.seeds), len(other.seeds)) > 1 and not common:
            raise ValueError(f"seeds {self.seeds} and {other.seeds} have none in common")
        if common and (same_seeds or min(len(self.seeds), len(other.seeds)) > 1):
            mine, theirs = (
                of.values[:, [of.seeds.index(seed) for seed in common]] for of in (self, other)
            )
            return Crossed(self.draws, common, mine - theirs)
        seeds = max(self.seeds, other.seeds, key=len)
        return Crossed(self.draws, seeds, self.values - other.values)

    def estimate(self) -> Estimate:
        """Estimate the mean over all draws and seeds, of which these are a sample.

        With D draws and S seeds, the variance of the mean is var(draws)/D + var(seeds)/S +
        var(residual)/(D S). It is estimated by the mean squares of the two-way layout,
        (MS(draws) + MS(seeds))/(D S). The unbiased estimate would subtract MS(residual)/(D S). It
        can then be negative, or below that of draws alone. Leaving out that term is a usual remedy
        (MacKinnon, Nielsen & Webb, 2024, "Jackknife inference with two-way clustering").

        The quantile of t is the mean of those with D - 1 and S - 1 degrees of freedom, weighted by
        the two mean squares. Satterthwaite's degrees of freedom are too many if a few seeds agree
        by chance: in simulations of three seeds and 50 draws, p was at most 0.0045 in up to 2.4 %
        of cases without a difference, and here in up to 0.6 %.

        With one seed, or with seeds that do not differ, only draws count.
        """
        num_draws, num_seeds = self.values.shape
        mean = float(self.values.mean())
        if num_draws < 2:
            return Estimate(mean, _NAN, (), ())
        parts = [(num_draws - 1, num_seeds * self.values.mean(axis=1).var(ddof=1))]
        if num_seeds > 1:
            parts.append((num_seeds - 1, num_draws * self.values.mean(axis=0).var(ddof=1)))
        degrees, squares = zip(*parts, strict=True)
        total = float(sum(squares))
        shares = tuple(float(each / total) if total else 1 / len(parts) for each in squares)
        return Estimate(mean, (total / self.values.size) ** 0.5, degrees, shares)

    def deviation(self, axis: int) -> float:
        """Return the standard deviation between draws (0) or seeds (1) of means over the other."""
        means = self.values.mean(axis=1 - axis)
        return float(means.std(ddof=1)) if len(means) > 1 else _NAN


def crossed_cells(
    scores: pd.DataFrame, metric: str, keys: Sequence[str] = CELL
) -> dict[tuple[Any, ...], Crossed]:
    """Return one metric of every cell, by the cell's keys in the order of the scores.

    Args:
        scores: With the columns of the keys, draw, seed and the metric.
        metric: Name of the column to return.
        keys: Columns that identify a cell.

    Raises:
        ValueError: If a cell has two scores for a draw and seed, or a seed lacks a draw.
    """
    wide = scores.set_index([*keys, "draw", "seed"])[metric].unstack("seed")
    seeds = np.array(wide.columns)
    found = {}
    for key, of_cell in wide.groupby([*keys]):
        values = of_cell.to_numpy(float)
        has_scores = ~np.isnan(values).all(axis=0)
        values = values[:, has_scores]
        if np.isnan(values).any():
            raise ValueError(f"{', '.join(map(str, key))}: a seed lacks draws that others have")
        draws = of_cell.index.get_level_values("draw").tolist()
        found[key] = Crossed(tuple(draws), tuple(seeds[has_scores].tolist()), values)
    order = scores[[*keys]].drop_duplicates().itertuples(index=False, name=None)
    return {key: found[key] for key in order}


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """Compute the mean, standard deviations and confidence interval of every cell.

    Returns:
        Columns method, head, column, shots; and for each of top1 and top5 its ``_mean``,
        ``_std_draws`` (of the means over seeds), ``_std_seeds`` (of the means over draws) and
        ``_interval``: half the width of the 95 % interval, see `Crossed.estimate`. Values that
        need several draws or seeds are NaN if there is only one.
    """
    parts = []
    for metric in _METRICS:
        numbers = {}
        for key, cell in crossed_cells(scores, metric).items():
            estimate, deviations = cell.estimate(), (cell.deviation(0), cell.deviation(1))
            numbers[key] = (estimate.mean, *deviations, estimate.interval())
        names = [f"{metric}_{name}" for name in ("mean", "std_draws", "std_seeds", "interval")]
        parts.append(_frame(numbers, names))
    return pd.concat(parts, axis=1).reset_index()


def paired_differences(scores: pd.DataFrame, against: str) -> pd.DataFrame:
    """Compare every row with a reference row, draw by draw and seed by seed.

    Args:
        scores: As in `cpaan.evaluation.runner.Results`.
        against: "method/head", or "method" to compare each row with that method's same head.

    Returns:
        Columns method, head, column, shots; ``top1_difference`` and ``top5_difference``, means
        over draws and seeds; and their ``_interval``, half the width of the 95 % interval.
    """
    check_row(against, scores[ROW].drop_duplicates().itertuples(index=False, name=None))
    method, _, head = against.partition("/")
    parts = []
    for metric in _METRICS:
        cells, numbers = crossed_cells(scores, metric), {}
        for (name, of, *cell), values in cells.items():
            reference = cells.get((method, head or of, *cell))
            if reference is not None and (name, head and of) != (method, head):
                gap = values.minus(reference).estimate()
                numbers[name, of, *cell] = gap.mean, gap.interval()
        parts.append(_frame(numbers, [f"{metric}_difference", f"{metric}_interval"]))
    return pd.concat(parts, axis=1).reset_index()


def _frame(
    numbers: Mapping[tuple[Any, ...], tuple[float, ...]], names: Sequence[str]
) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples([*numbers], names=CELL)
    return pd.DataFrame(list(numbers.values()), index=index, columns=[*names])


def bootstrap_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of a mean: percentiles of the means of 10,000 resamples."""
    rng, tail = np.random.default_rng(0), (1 - CONFIDENCE) / 2
    means = rng.choice(values, (10_000, len(values))).mean(axis=1)
    low, high = np.quantile(means, [tail, 1 - tail]).tolist()
    return low, high


def check_row(against: str, rows: Iterable[tuple[str, str]]) -> None:
    """Raise ValueError unless a "method" or "method/head" is among the rows (method, head)."""
    names = [f"{method}/{head}" for method, head in rows]
    if not any(against in (name, name.partition("/")[0]) for name in names):
        raise ValueError(f"no row {against!r} to compare with; the rows are {', '.join(names)}")


def is_only_row(against: str, scores: pd.DataFrame) -> bool:
    """Return whether the scores have no other row to compare with."""
    rows = scores[ROW].drop_duplicates().itertuples(index=False, name=None)
    return all(against in (method, f"{method}/{head}") for method, head in rows)

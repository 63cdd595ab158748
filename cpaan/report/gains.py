"""Paired comparisons of rows.

A row is always named with the head that classifies. All rows are scored on the same draws. A
difference is therefore taken in each draw, after the mean over seeds; its interval is over draws.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cpaan.protocol.statistics import ROW, mean_interval
from cpaan.report.tables import TITLES

Scored = tuple[str, str]
"""Name of a row, and a head that it is scored with."""


@dataclass(frozen=True)
class PairedDifference:
    """One row minus another, paired by draw."""

    start: Scored
    end: Scored
    difference: float
    """End minus start, mean over draws."""
    interval: float
    """Half the width of its 95 % interval over draws; NaN for a single draw."""
    by_seed: tuple[float, ...] = ()
    """The difference for each training seed that both have. An untrained row has a single seed,
    which is compared with each seed of the other row."""

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.difference - self.interval

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.difference + self.interval

    def text(self, digits: int = 2) -> str:
        """Return the difference with half its interval, with a minus sign instead of a hyphen."""
        text = signed(self.difference, digits)
        return text if math.isnan(self.interval) else f"{text} ± {self.interval:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign; zero is positive."""
    return f"{value:+z.{digits}f}".replace("-", "−")


class PairedScores:
    """One metric of scores by method (name of a row), head, column, shots, draw and seed.

    Where a column or a number of shots is asked for, a list of them stands for their mean.
    """

    def __init__(self, scores: pd.DataFrame, metric: str = "top5") -> None:
        index = [*ROW, "column", "shots", "draw", "seed"]
        self._values = scores.set_index(index)[metric].unstack("seed").sort_index()
        self.rows: set[Scored] = set(scores[ROW].itertuples(index=False, name=None))
        self.shots = sorted(int(k) for k in scores["shots"].unique())

    def heads(self, names: Iterable[str]) -> list[str]:
        """Return the heads with which all of these rows are scored."""
        found = [{head for name, head in self.rows if name == each} for each in names]
        return sorted(set.intersection(*found))

    def _by_seed(self, scored: Scored, column: ArrayLike, shots: ArrayLike) -> pd.DataFrame:
        """Return a row's values by draw, a column for each seed.

        Raises:
            ValueError: If there are no such scores, or a seed lacks a draw that others have.
        """
        name = f"{scored[0]} with the head {scored[1]}"
        parts: list[pd.DataFrame] = []
        for cell in product(np.atleast_1d(column), np.atleast_1d(shots)):
            if (*scored, *cell) not in self._values.index:
                raise ValueError(f"no scores of {name} for {cell[0]} at K = {cell[1]}")
            part = pd.DataFrame(self._values.xs((*scored, *cell)))
            parts.append(part.dropna(axis="columns", how="all"))
        mean = sum(parts[1:], parts[0]) / len(parts)
        if mean.isna().to_numpy().any():
            raise ValueError(f"{name} lacks draws of some seeds or shots")
        return mean

    def by_draw(self, scored: Scored, column: ArrayLike, shots: ArrayLike) -> pd.Series:
        """Return a row's mean over seeds, by draw."""
        return self._by_seed(scored, column, shots).mean(axis=1)

    def compare(
        self,
        subject: Scored,
        other: Scored,
        column: ArrayLike,
        shots: ArrayLike,
        *,
        num_comparisons: int = 1,
        same_seeds: bool = False,
    ) -> PairedDifference:
        """Return the subject minus the other.

        Where a comparison was picked out of several, ``num_comparisons`` is their number, and its
        interval holds for all. ``same_seeds`` drops seeds of the other row that the subject lacks,
        if they share any.

        Raises:
            ValueError: If a row has no scores, or the two rows have different draws.
        """
        end, start = (self._by_seed(each, column, shots) for each in (subject, other))
        if alone := set(end.index) ^ set(start.index):
            raise ValueError(
                f"{subject[0]} has {len(end)} draws and {other[0]} {len(start)}: draw "
                f"{min(alone)} is not in both, so they cannot be paired"
            )
        common = start.columns.intersection(end.columns)
        if same_seeds and len(common):
            start = start[common]
        of_draw = end.mean(axis=1) - start.mean(axis=1)
        ends, starts = (of.iloc[0] if len(of) == 1 else of for of in (end.mean(), start.mean()))
        return PairedDifference(
            start=other,
            end=subject,
            difference=float(of_draw.mean()),
            interval=mean_interval(of_draw, num_comparisons),
            by_seed=tuple(pd.Series(ends - starts).dropna().tolist()),
        )


class MethodScores(PairedScores):
    """Scores whose rows are found by method, each with its head."""

    def __init__(
        self,
        scores: pd.DataFrame,
        row_of: Mapping[str, str],
        head_of: Mapping[str, str],
        metric: str = "top5",
    ) -> None:
        super().__init__(scores, metric)
        self._row_of, self._head_of = row_of, head_of
        self.cells = [(column, k) for column in TITLES for k in self.shots]
        self.few = self.cells[0]
        """LSL with the fewest shots, which most claims are about."""

    def find(self, *methods: str) -> list[Scored]:
        """Return the rows of these methods, without those that have no scores with their head."""
        names = [self._row_of.get(method, "") for method in methods]
        rows = [(name, self._head_of.get(name, "")) for name in names]
        return [row for row in rows if row in self.rows]

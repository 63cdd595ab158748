"""Paired comparisons of rows, and the parts of a gain.

A row is always named with the head that classifies. All rows are scored on the same draws. A
difference is therefore taken in each draw, after the mean over seeds; its interval is over draws.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from cpaan.protocol.statistics import ROW, mean_interval

Scored = tuple[str, str]
"""Name of a row, and a head that it is scored with."""


@dataclass(frozen=True)
class PairedDifference:
    """One row minus another, paired by draw."""

    label: str
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
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


class PairedScores:
    """One metric of scores by method (name of a row), head, column, shots, draw and seed."""

    def __init__(self, scores: pd.DataFrame, metric: str = "top5") -> None:
        index = [*ROW, "column", "shots", "draw", "seed"]
        self._values = scores.set_index(index)[metric].unstack("seed").sort_index()
        self.rows: set[Scored] = set(scores[ROW].itertuples(index=False, name=None))
        self.shots = sorted(int(k) for k in scores["shots"].unique())

    def heads(self, names: Iterable[str]) -> list[str]:
        """Return the heads with which all of these rows are scored."""
        found = [{head for name, head in self.rows if name == each} for each in names]
        return sorted(set.intersection(*found))

    def values(self, scored: Scored, column: str, shots: int | Sequence[int]) -> pd.DataFrame:
        """Return a row's values by draw, a column for each seed; of several shots, their mean.

        Raises:
            ValueError: If there are no such scores, or a seed lacks a draw that others have.
        """
        numbers = shots if isinstance(shots, Sequence) else [shots]
        name = f"{scored[0]} with the head {scored[1]}"
        parts: list[pd.DataFrame] = []
        for number in numbers:
            if (*scored, column, number) not in self._values.index:
                raise ValueError(f"no scores of {name} for {column} at K = {number}")
            part = pd.DataFrame(self._values.xs((*scored, column, number)))
            parts.append(part.dropna(axis="columns", how="all"))
        mean = sum(parts[1:], parts[0]) / len(parts)
        if mean.isna().to_numpy().any():
            raise ValueError(f"{name} lacks draws of some seeds or shots")
        return mean

    def by_draw(self, scored: Scored, column: str, shots: int | Sequence[int]) -> pd.Series:
        """Return a row's mean over seeds, by draw."""
        return self.values(scored, column, shots).mean(axis=1)

    def mean(self, scored: Scored, column: str, shots: int | Sequence[int]) -> float:
        """Return a row's mean over seeds and draws."""
        return float(self.by_draw(scored, column, shots).mean())

    def compare(
        self,
        subject: Scored,
        other: Scored,
        column: str,
        shots: int | Sequence[int],
        *,
        label: str = "",
        num_comparisons: int = 1,
        same_seeds: bool = False,
    ) -> PairedDifference:
        """Return the subject minus the other.

        Args:
            subject: The row and head where the step ends.
            other: Where it starts.
            column: Of the benchmark, such as "novel".
            shots: Their number, or several, whose mean is compared.
            label: By default the subject's row.
            num_comparisons: Out of how many this one was picked; its interval holds for all.
            same_seeds: Drop seeds of the other row that the subject lacks, if they share any.

        Raises:
            ValueError: If a row has no scores, or the two rows have different draws.
        """
        end, start = (self.values(each, column, shots) for each in (subject, other))
        if alone := set(end.index) ^ set(start.index):
            raise ValueError(
                f"{subject[0]} has {len(end)} draws and {other[0]} {len(start)}: draw "
                f"{min(alone)} is not in both, so they cannot be paired"
            )
        common = start.columns.intersection(end.columns)
        if same_seeds and len(common):
            start = start[common]
        of_draw = end.mean(axis=1) - start.mean(axis=1)
        return PairedDifference(
            label=label or subject[0],
            start=other,
            end=subject,
            difference=float(of_draw.mean()),
            interval=mean_interval(of_draw, num_comparisons),
            by_seed=_by_seed(end.mean(), start.mean()),
        )


def _by_seed(end: pd.Series, start: pd.Series) -> tuple[float, ...]:
    """Return differences of means over draws, which have the seed as index."""
    if len(start) == 1:
        gaps = end - start.iloc[0]
    elif len(end) == 1:
        gaps = end.iloc[0] - start
    else:
        gaps = (end - start).dropna()
    return tuple(gaps.tolist())


@dataclass(frozen=True)
class GainSplit:
    """The way from no augmentation to an augmented row, step by step."""

    title: str
    column: str
    shots: int
    start: float
    """Accuracy where the first step starts, percent."""
    steps: tuple[PairedDifference, ...]
    """Their differences add up to the total."""
    beside: tuple[PairedDifference, ...]
    """Each control under the same head, from where the step "augmentation" starts."""
    total: PairedDifference


def split_gain(
    scores: pd.DataFrame,
    *,
    title: str,
    augmented: str,
    plain: str,
    embedded: str | None,
    head: str,
    paper_head: str,
    controls: Sequence[str],
    column: str = "novel",
    shots: int = 1,
) -> GainSplit:
    """Split a gain into what the representation, the head and the augmentation give.

    The way is: the plain row with the paper's head; the embedded row with that head; the embedded
    row with the head in question; the augmented row with it. A step that changes nothing is left
    out: the first without an embedding, the second if both heads are one.

    Args:
        scores: Scores by method (name of a row), head, column, shots, draw and seed.
        title: Of the split, for readers.
        augmented: The row whose gain it is.
        plain: The row of the raw features without augmentation.
        embedded: The row of the embedding without augmentation; None if the augmented row works
            on raw features.
        head: The classifier of the augmented row.
        paper_head: The classifier that the way starts with.
        controls: Rows that augment without training, in the space of the augmented row.
        column: Of the benchmark.
        shots: Their number.
    """
    base = plain if embedded is None else embedded
    way = [("", (plain, paper_head))]
    if embedded is not None:
        way.append(("representation", (embedded, paper_head)))
    if head != paper_head:
        way.append(("head", (base, head)))
    way.append(("augmentation", (augmented, head)))
    paired = PairedScores(scores[scores["column"] == column])
    first, last = way[0][1], way[-1][1]
    return GainSplit(
        title=title,
        column=column,
        shots=shots,
        start=paired.mean(first, column, shots),
        steps=tuple(
            paired.compare(end, start, column, shots, label=label)
            for (_, start), (label, end) in pairwise(way)
        ),
        beside=tuple(
            paired.compare((name, head), (base, head), column, shots)
            for name in controls
            if name != base
        ),
        total=paired.compare(last, first, column, shots, label="total"),
    )

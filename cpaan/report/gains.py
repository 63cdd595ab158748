"""Where accuracy comes from: the parts of a gain, each compared draw by draw.

What is compared is a pair: the name of a row, and the head that classifies. All meet the same
draws, so a difference is taken in each draw, after the mean over seeds, and its interval is over
draws.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import pandas as pd

from cpaan.protocol.statistics import ROW, mean_interval

Scored = tuple[str, str]
"""Name of a row, and a head that it is scored with."""

_CELL = ["column", "shots", "draw"]


@dataclass(frozen=True)
class Step:
    """One part of a gain: from one row and head to another, paired by draw."""

    label: str
    start: Scored
    end: Scored
    difference: float
    """End minus start, mean over draws."""
    interval: float
    """Half the width of its 95 % interval over draws; NaN for a single draw."""
    by_seed: tuple[float, ...] = ()
    """The difference for each training seed that both have. What is not trained has one seed: its
    mean stands beside each seed of the other."""


@dataclass(frozen=True)
class GainSplit:
    """The way from no augmentation to an augmented row, step by step."""

    title: str
    column: str
    shots: int
    start: float
    """Accuracy where the first step starts, percent."""
    steps: tuple[Step, ...]
    """Their differences add up to the total."""
    beside: tuple[Step, ...]
    """Each control under the same head, from where the step "augmentation" starts."""
    total: Step


@dataclass(frozen=True, eq=False)
class PairedScores:
    """One metric of scores, laid out for comparisons.

    Build it with `PairedScores.of`.
    """

    frames: Mapping[Scored, pd.DataFrame]
    """By row and head: values with the index (column, shots, draw), a column for each seed."""

    @classmethod
    def of(cls, scores: pd.DataFrame, metric: str = "top5") -> "PairedScores":
        """Lay scores out.

        Args:
            scores: Columns method, head, column, shots, draw, seed, and the metric.
            metric: Which column to compare.

        Raises:
            ValueError: If there are two scores for the same cell, draw and seed.
        """
        key = [*ROW, *_CELL, "seed"]
        twice = scores[scores.duplicated(key)]
        if len(twice):
            raise ValueError(f"two scores for {', '.join(map(str, twice[key].iloc[0]))}")
        groups = scores.groupby(ROW, sort=False)
        return cls(
            {
                (str(method), str(head)): group.set_index([*_CELL, "seed"])[metric].unstack("seed")
                for (method, head), group in groups
            }
        )

    def check(self, wanted: Iterable[Scored]) -> None:
        """Refuse rows that have no scores with their head.

        Raises:
            ValueError: With all of them.
        """
        missing = [name for name in wanted if name not in self.frames]
        if missing:
            names = ", ".join(f"{row} with the head {head}" for row, head in missing)
            raise ValueError(f"no scores of {names}")

    def values(self, scored: Scored, column: str, shots: int | Sequence[int]) -> pd.DataFrame:
        """Return a row's values by draw, a column for each seed.

        Args:
            scored: The row and its head.
            column: Of the benchmark, such as "novel".
            shots: Their number, or several, whose mean is taken.

        Raises:
            ValueError: If there are no such scores, or a seed lacks a draw that others have.
        """
        self.check([scored])
        row, head = scored
        numbers = shots if isinstance(shots, Sequence) else [shots]
        parts: list[pd.DataFrame] = []
        for number in numbers:
            try:
                parts.append(pd.DataFrame(self.frames[scored].xs((column, number))))
            except KeyError:
                message = f"{row} with the head {head} has no {column} at K = {number}"
                raise ValueError(message) from None
        mean = reduce(operator.add, parts) / len(parts)
        if mean.isna().to_numpy().any():
            raise ValueError(f"{row} with the head {head} lacks draws of some seeds or shots")
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
    ) -> Step:
        """Return the subject minus the other, paired by draw.

        Args:
            subject: The row and head where the step ends.
            other: Where it starts.
            column: Of the benchmark.
            shots: Their number, or several, whose mean is compared.
            label: Of the step; by default the subject's row.
            num_comparisons: Out of how many this one was picked; its interval holds for all.

        Raises:
            ValueError: If one has no scores, or not the same draws as the other.
        """
        end, start = (self.values(each, column, shots) for each in (subject, other))
        if set(end.index) != set(start.index):
            alone = sorted(set(end.index) ^ set(start.index))
            raise ValueError(
                f"{subject[0]} has {len(end)} draws and {other[0]} {len(start)}: draw {alone[0]} "
                "is not in both, so they cannot be paired"
            )
        of_draw = end.mean(axis=1) - start.mean(axis=1)
        return Step(
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
        return tuple(float(value) for value in end - start.iloc[0])
    if len(end) == 1:
        return tuple(float(value) for value in end.iloc[0] - start)
    both = end.index.intersection(start.index).sort_values()
    return tuple(float(value) for value in end[both] - start[both])


def compare(
    scores: pd.DataFrame,
    subject: Scored,
    other: Scored,
    column: str,
    shots: int | Sequence[int],
    metric: str = "top5",
) -> Step:
    """Return the subject minus the other, paired by draw.

    Args:
        scores: A line for each method (name of a row), head, column, shots, draw and seed.
        subject: Name of a row, and a head.
        other: Likewise.
        column: Of the benchmark, such as "novel".
        shots: Their number, or several, whose mean is compared.
        metric: "top1" or "top5".

    Raises:
        ValueError: If one has no scores, or not the same draws as the other.
    """
    relevant = scores[scores["method"].isin([subject[0], other[0]])]
    return PairedScores.of(relevant, metric).compare(subject, other, column, shots)


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
    metric: str = "top5",
) -> GainSplit:
    """Split a gain into what the representation, the head and the augmentation give.

    The way is: the plain row with the paper's head; the embedded row with that head; the embedded
    row with the head in question; the augmented row with it. A step that changes nothing is left
    out: the first without an embedding, the second if both heads are one.

    Args:
        scores: A line for each method (name of a row), head, column, shots, draw and seed.
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
        metric: "top1" or "top5".

    Raises:
        ValueError: If rows have no scores with their head, or not the same draws.
    """
    base = plain if embedded is None else embedded
    way = [("", (plain, paper_head))]
    if embedded is not None:
        way.append(("representation", (embedded, paper_head)))
    if head != paper_head:
        way.append(("head", (base, head)))
    way.append(("augmentation", (augmented, head)))
    from_base = [(name, head) for name in controls if name != base]

    names = {name for _, (name, _) in way} | {name for name, _ in from_base}
    paired = PairedScores.of(scores[scores["method"].isin(names)], metric)
    paired.check([*(scored for _, scored in way), *from_base])
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
        beside=tuple(paired.compare(each, (base, head), column, shots) for each in from_base),
        total=paired.compare(last, first, column, shots, label="total"),
    )

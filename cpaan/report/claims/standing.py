"""Where ours stand among all rows, and who is before them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import COSINE_FEATURES
from cpaan.report.gains import PairedScores, Step
from cpaan.report.tables import TITLES

_CONTROLS = {
    "none": "no augmentation at all",
    "copy": "a control that copies related base examples",
    "mean-shift": "a control that moves related base examples onto the mean of the shots",
    "half-mean-shift": "a control that moves related base examples half of the way to the shots",
}
GROUPS = {
    "Baseline": "a baseline that synthesises nothing",
    "FH": "an earlier augmentation",
    "P-FH": "an earlier augmentation",
    "FI": "an earlier augmentation",
    "CP-AAN": "a GAN of the paper",
    "CP-AAN+": "a row of ours with other settings",
    "Later": "a method that came after the paper",
}
"""What rows of a group are, in words."""


@dataclass(frozen=True)
class Ahead:
    """A row with a higher mean than ours."""

    row: str
    head: str
    what: str
    """What kind of row it is, in words."""
    step: Step
    """It minus ours, paired by draw."""

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval is above zero."""
        return self.step.difference - self.step.interval > 0


@dataclass(frozen=True)
class Place:
    """The place of the best of ours in one column of the paper's table."""

    column: str
    shots: int
    row: str
    head: str
    accuracy: float
    """Mean over draws and seeds, percent."""
    rank: int
    """From 1 for the highest mean."""
    num_rows: int
    ahead: tuple[Ahead, ...]
    """Who is before it, the first of all first."""

    @property
    def is_first_or_second(self) -> bool:
        """Whether at most one row has a higher mean."""
        return self.rank <= 2


def standing(
    scores: pd.DataFrame,
    head_of: Mapping[str, str],
    methods: Mapping[str, str],
    subjects: Sequence[str],
    metric: str = "top5",
) -> list[Place]:
    """Return the place of the best of some rows among all, for LSL and GLSL by shots.

    Args:
        scores: A line for each method (name of a row), head, column, shots, draw and seed.
        head_of: The head of each row.
        methods: Of whom each row is, by `registry.ROWS`: all rows that are ranked, so leave
            out those of ablations.
        subjects: Names of our rows, the best of which counts in each column.
        metric: "top5" or "top1".

    Raises:
        ValueError: If a row has no scores with its head, a subject is none of the rows, or rows
            have not the same draws.
    """
    strangers = [name for name in subjects if name not in methods]
    if strangers or not subjects:
        raise ValueError(
            f"subjects should be among the rows {', '.join(methods)}, got {', '.join(subjects)!r}"
        )
    paired = PairedScores.of(scores[scores["method"].isin(set(methods))], metric)
    rows = [(name, head_of[name]) for name in methods]
    paired.check(rows)
    shots = sorted(int(k) for k in scores["shots"].unique())
    places = []
    for column, k in [(column, k) for column in TITLES for k in shots]:
        # Rounded, or the last bit of a mean would decide between equal ones.
        means = {row: round(paired.mean(row, column, k), 9) for row in rows}
        best = max((row for row in rows if row[0] in subjects), key=lambda row: means[row])
        before = sorted((r for r in rows if means[r] > means[best]), key=lambda row: -means[row])
        places.append(
            Place(
                column=column,
                shots=k,
                row=best[0],
                head=best[1],
                accuracy=means[best],
                rank=1 + len(before),
                num_rows=len(rows),
                ahead=tuple(
                    Ahead(*row, _what(methods[row[0]]), paired.compare(row, best, column, k))
                    for row in before
                ),
            )
        )
    return places


def _what(method: str) -> str:
    """Return what kind of row it is, in words."""
    row = ROWS[method]
    text = _CONTROLS.get(method.removesuffix("-PN"), GROUPS.get(row.group, row.group))
    if row.is_embedded:
        text += f", in the embedding of {row.representation}"
    if row.features == COSINE_FEATURES:
        text += ", on features of a backbone that was trained with a cosine classifier"
    return text

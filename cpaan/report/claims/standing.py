"""Where our rows stand among all, which rows are ahead of them, and why."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import COSINE_FEATURES, IN_PN
from cpaan.report.claims.verdict import MARGIN
from cpaan.report.gains import PairedDifference, PairedScores
from cpaan.report.table_one import Cells
from cpaan.report.tables import TITLES, Cell

WITHOUT_ADVERSARY = "without the adversary"
"""The label of an ablation."""
_COPY = "copy"
_CONTROLS = {
    "none": "no augmentation at all",
    _COPY: "a control that copies related base examples",
    "mean-shift": "a control that moves related base examples onto the mean of the shots",
    "half-mean-shift": "a control that moves related base examples half of the way to the shots",
}
_GROUPS = {
    "Control": "a control that trains no generator",
    "Baseline": "a baseline that synthesises nothing",
    "FH": "an earlier augmentation",
    "P-FH": "an earlier augmentation",
    "FI": "an earlier augmentation",
    "CP-AAN": "a GAN of the paper",
    "CP-AAN+": "a row of ours with other settings",
    "Later": "a method that came after the paper",
}


class Ahead(NamedTuple):
    """A row with a higher mean than ours."""

    row: str
    what: str
    """The kind of row, in words."""
    difference: float
    """It minus ours, paired by draw."""
    interval: float


@dataclass(frozen=True)
class Standing:
    """The rank of the best of our rows in one column of the paper's table."""

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
    """Rows with a higher mean, the highest first."""

    @property
    def is_first_or_second(self) -> bool:
        """Whether at most one row has a higher mean."""
        return self.rank <= 2


def standing(
    cells: Cells,
    differences: Mapping[tuple[str, str, str, int], Cell],
    head_of: Mapping[str, str],
    methods: Mapping[str, str],
    subjects: Sequence[str],
) -> list[Standing]:
    """Return the rank of the best of some rows among all, for LSL and GLSL by shots.

    Args:
        cells: Top-5 and rank of every row, by row, column and shots.
        differences: Paired differences of top-5, by row, other row, column and shots.
        head_of: The head of each row.
        methods: The method of each row.
        subjects: Names of our rows. The best of them counts in each column.
    """
    found = []
    for column, k in product(TITLES, sorted({k for _, _, k in cells})):
        ranks = {name: cells[name, column, k].rank for name in methods}
        best = min(subjects, key=lambda name: ranks[name])
        before = sorted((r for r in ranks if ranks[r] < ranks[best]), key=lambda row: ranks[row])
        gaps = [differences[row, best, column, k] for row in before]
        ahead = tuple(
            Ahead(row, _kind(methods[row]), gap.value, gap.interval)
            for row, gap in zip(before, gaps, strict=True)
        )
        ours = best, head_of[best], cells[best, column, k].value, ranks[best]
        found.append(Standing(column, k, *ours, len(methods), ahead))
    return found


def _kind(method: str) -> str:
    """Return the kind of a row, in words."""
    row = ROWS[method]
    text = _CONTROLS.get(method.removesuffix(IN_PN), _GROUPS.get(row.group, row.group))
    if row.is_embedded:
        text += f", in the embedding of {row.representation}"
    if row.features == COSINE_FEATURES:
        text += ", on features of a backbone that was trained with a cosine classifier"
    return text


def reasons_behind(
    scores: pd.DataFrame,
    places: Sequence[Standing],
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
    ablations: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """Say why our rows are not first or second, as far as a report's own rows tell.

    See `standing` and `cpaan.report.claims.judge_claims` for the arguments.
    """
    behind = [place for place in places if not place.is_first_or_second]
    if not behind:
        return []
    first = [_GROUPS[ROWS[methods[place.ahead[0].row]].group] for place in behind]
    kinds = ", ".join(f"{kind} in {count}" for kind, count in Counter(first).most_common())
    lines = [
        f"Who is first in the {len(behind)} columns where ours are not first or second: {kinds}."
    ]
    paired = PairedScores(scores[scores["shots"] == scores["shots"].min()])
    over_copies, texts = [], []
    for row in dict.fromkeys(place.row for place in behind):
        copy, head = _COPY + IN_PN * methods[row].endswith(IN_PN), head_of[row]
        if (copy, head) in paired.rows:
            gaps, text = _compare(paired, row, copy, head)
            over_copies += [gap.low > 0 for gap in gaps]
            texts.append(f"{row} {text} over {copy} ({head})")
    if texts:
        meaning = (
            "What ours learn to change about related base examples gains nothing over leaving "
            "them as they are"
        )
        if any(over_copies):
            part = ", and others gain more" if all(over_copies) else " in part"
            meaning = f"So ours gain over copies of related base examples{part}"
        where = f"in {' and '.join(TITLES.values())} at K = {paired.shots[0]}"
        lines.append(f"Under the same head, {where}: {'; '.join(texts)}. {meaning}.")
    for each in ablations:
        whole, name, head = each["of"], each["name"], head_of.get(each["of"], "")
        if each["label"] != WITHOUT_ADVERSARY or not {(whole, head), (name, head)} <= paired.rows:
            continue
        gaps, text = _compare(paired, name, whole, head)
        line = f"{whole} without its adversary is {text} against {whole} ({head})"
        if all(abs(gap.difference) + gap.interval < MARGIN for gap in gaps):
            line += (
                f": less than {MARGIN} points either way. That synthetic examples pass for real "
                "ones is not what helps a classifier"
            )
        lines.append(f"{line}.")
    return lines


def _compare(
    paired: PairedScores, end: str, start: str, head: str
) -> tuple[list[PairedDifference], str]:
    """Compare two rows under the same head in LSL and GLSL, with the seeds of the first."""
    rows = (end, head), (start, head)
    gaps = [paired.compare(*rows, column, paired.shots, same_seeds=True) for column in TITLES]
    return gaps, " and ".join(gap.text() for gap in gaps)

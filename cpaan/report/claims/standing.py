"""Where our rows stand among all, which rows are ahead of them, and why."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    paired = PairedScores(scores[scores["shots"] == scores["shots"].min()])
    return [
        f"Who is first in the {len(behind)} columns where ours are not first or second: {kinds}.",
        *_over_copies(paired, dict.fromkeys(place.row for place in behind), methods, head_of),
        *_without_adversary(paired, head_of, ablations),
    ]


def _over_copies(
    paired: PairedScores,
    rows: Iterable[str],
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
) -> list[str]:
    """Say what our rows add to copies of base examples, in the same space, under the same head."""
    parts, gaps = [], []
    for row in rows:
        copy, head = _COPY + IN_PN * methods[row].endswith(IN_PN), head_of[row]
        if (copy, head) in paired.rows:
            found = _gaps(paired, row, copy, head)
            gaps += found
            parts.append(f"{row} {_listed(found)} over {copy} ({head})")
    if not gaps:
        return []
    meaning = "So ours gain over copies of related base examples"
    if not any(gap.low > 0 for gap in gaps):
        meaning = (
            "What ours learn to change about related base examples gains nothing over leaving "
            "them as they are"
        )
    else:
        meaning += ", and others gain more" if all(gap.low > 0 for gap in gaps) else " in part"
    columns = " and ".join(TITLES.values())
    shots = paired.shots[0]
    return [f"Under the same head, in {columns} at K = {shots}: {'; '.join(parts)}. {meaning}."]


def _without_adversary(
    paired: PairedScores, head_of: Mapping[str, str], ablations: Sequence[Mapping[str, str]]
) -> list[str]:
    """Say what the adversarial term does."""
    lines = []
    for each in ablations:
        whole, name, head = each["of"], each["name"], head_of.get(each["of"], "")
        if each["label"] != WITHOUT_ADVERSARY or not {(whole, head), (name, head)} <= paired.rows:
            continue
        gaps = _gaps(paired, name, whole, head)
        text = f"{whole} without its adversary is {_listed(gaps)} against {whole} ({head})"
        if all(abs(gap.difference) + gap.interval < MARGIN for gap in gaps):
            text += (
                f": less than {MARGIN} points either way. That synthetic examples pass for real "
                "ones is not what helps a classifier"
            )
        lines.append(f"{text}.")
    return lines


def _gaps(paired: PairedScores, end: str, start: str, head: str) -> list[PairedDifference]:
    """Compare two rows under the same head in LSL and GLSL, with the seeds of the first."""
    (shots,) = paired.shots
    return [
        paired.compare((end, head), (start, head), column, shots, same_seeds=True)
        for column in TITLES
    ]


def _listed(gaps: Sequence[PairedDifference]) -> str:
    return " and ".join(gap.text() for gap in gaps)

"""Why others are before ours, as far as a report's own rows tell: who they are, and what adds."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN
from cpaan.report.claims.scored_table import ALL, NOVEL
from cpaan.report.claims.standing import GROUPS, Place
from cpaan.report.claims.verdict import MARGIN, show
from cpaan.report.gains import PairedScores, Step
from cpaan.report.tables import TITLES

_COPY = "copy"
"""The control that takes related base examples as they are."""
WITHOUT_ADVERSARY = "without the adversary"
"""The label of an ablation."""
_KINDS = {"Control": "a control that trains no generator", **GROUPS}


def reasons_behind(
    scores: pd.DataFrame,
    places: Sequence[Place],
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
    ablations: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """Return sentences on why ours are not first or second; none where they are everywhere.

    Args:
        scores: A line for each method (name of a row), head, column, shots, draw and seed.
        places: Of the best of ours, in every column.
        methods: Of whom each row is, by `cpaan.methods.registry.ROWS`.
        head_of: The head of each row.
        ablations: Of each row of an ablation: name, of (the row that it varies), family, label.

    Raises:
        ValueError: If rows that are compared have not the same draws.
    """
    behind = [place for place in places if not place.is_first_or_second]
    if not behind:
        return []
    fewest = scores[scores["shots"] == scores["shots"].min()]
    return [
        _who_is_first(behind, methods),
        *_over_copies(fewest, behind, methods, head_of),
        *_without_the_adversary(fewest, head_of, ablations),
    ]


def _who_is_first(behind: Sequence[Place], methods: Mapping[str, str]) -> str:
    groups = [ROWS[methods[place.ahead[0].row]].group for place in behind]
    counts = Counter(_KINDS[group] for group in groups)
    kinds = ", ".join(f"{kind} in {count}" for kind, count in counts.most_common())
    return f"Who is first in the {len(behind)} columns where ours are not first or second: {kinds}."


def _over_copies(
    scores: pd.DataFrame,
    behind: Sequence[Place],
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
) -> list[str]:
    """Say what ours add to copies of base examples, in the same space and under the same head."""
    paired = PairedScores.of(scores)
    parts, steps = [], []
    for row in dict.fromkeys(place.row for place in behind):
        copy = f"{_COPY}{IN_PN}" if methods[row].endswith(IN_PN) else _COPY
        if (copy, head_of[row]) in paired.frames:
            found = _steps(paired, row, copy, head_of[row])
            steps += found
            parts.append(f"{row} {_show(found)} over {copy} ({head_of[row]})")
    if not parts:
        return []
    columns = f"{TITLES[NOVEL]} and {TITLES[ALL]} at K = {scores['shots'].min()}"
    text = f"Under the same head, in {columns}: {'; '.join(parts)}. "
    sure = [step.difference - step.interval > 0 for step in steps]
    if not any(sure):
        text += (
            "What ours learn to change about related base examples gains nothing over leaving "
            "them as they are."
        )
    elif all(sure):
        text += "So ours gain over copies of related base examples, and others gain more."
    else:
        text += "So ours gain over copies of related base examples in part."
    return [text]


def _without_the_adversary(
    scores: pd.DataFrame, head_of: Mapping[str, str], ablations: Sequence[Mapping[str, str]]
) -> list[str]:
    """Say what the adversarial term does, with the seeds that both rows have."""
    lines = []
    for each in ablations:
        whole, name = each["of"], each["name"]
        if each["label"] != WITHOUT_ADVERSARY or whole not in head_of:
            continue
        seeds = scores.loc[scores["method"] == name, "seed"].unique()
        paired = PairedScores.of(
            scores[scores["method"].isin([whole, name]) & scores["seed"].isin(seeds)]
        )
        head = head_of[whole]
        if not {(whole, head), (name, head)} <= paired.frames.keys():
            continue
        steps = _steps(paired, name, whole, head)
        text = f"{whole} without its adversary is {_show(steps)} against {whole} ({head})"
        if all(abs(step.difference) + step.interval < MARGIN for step in steps):
            text += (
                f": less than {MARGIN} points either way. That synthetic examples pass for real "
                "ones is not what helps a classifier"
            )
        lines.append(f"{text}.")
    return lines


def _steps(paired: PairedScores, end: str, start: str, head: str) -> list[Step]:
    (shots,) = set(paired.frames[end, head].index.get_level_values("shots"))
    return [paired.compare((end, head), (start, head), column, shots) for column in (NOVEL, ALL)]


def _show(steps: Sequence[Step]) -> str:
    return " and ".join(map(show, steps))

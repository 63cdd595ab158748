"""The paper's claims about neighbourhood batch sampling: of which base classes to translate."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb

from cpaan.methods.registry import ROWS
from cpaan.report.claims.scored_table import ScoredTable
from cpaan.report.claims.verdict import (
    MARGIN,
    Claim,
    Verdict,
    all_of,
    show,
    verdict_of,
    verdict_of_equal,
)
from cpaan.report.gains import Scored
from cpaan.report.tables import TITLES

NEIGHBOURS, SOFT, HARD, NOBODY = "neighbours", "NBS-S", "NBS-H", "all base classes"
"""The family of ablations, and how labels of its rows begin."""
_PAPER = "CP-AAN"


def judge_neighbours(table: ScoredTable, ablations: Sequence[Mapping[str, str]]) -> list[Claim]:
    """Return the verdict on each claim about neighbourhood batch sampling.

    Args:
        table: With the scores of these rows too.
        ablations: Of each row name, of (the row that it varies), family and label.
    """
    claims: list[Claim] = []
    family = [each for each in ablations if each["family"] == NEIGHBOURS]
    for of in dict.fromkeys(each["of"] for each in family):
        if of not in table.head_of:
            continue
        is_paper = ROWS[table.methods[of]].group == _PAPER
        names = {each["label"]: each["name"] for each in family if each["of"] == of}
        head = _head_of(table, of, list(names.values()))
        rows = {
            label: (name, head)
            for label, name in names.items()
            if (name, head) in table.paired.frames
        }
        if head != table.head_of[of]:
            of = f"{of}, {head} head"
        found: list[Claim] = []
        hard = {label: row for label, row in rows.items() if label.startswith(HARD)}
        if SOFT in rows and NOBODY in rows:
            found.append(_sampling_helps(table, of, rows[SOFT], rows[NOBODY]))
        if SOFT in rows and hard:
            found.append(_soft_is_enough(table, of, rows[SOFT], hard))
        if len(hard) > 1:
            found.append(_hard_is_sensitive(table, of, hard))
        claims += [replace(claim, is_paper=is_paper) for claim in found]
    return claims


def _head_of(table: ScoredTable, of: str, names: Sequence[str]) -> str:
    """Return the row's head, or else one that all of its variants were scored with instead."""
    own = table.head_of[of]
    if any((name, own) in table.paired.frames for name in names):
        return own
    return next(iter(table.heads(names, set())), own)


def _sampling_helps(table: ScoredTable, of: str, soft: Scored, nobody: Scored) -> Claim:
    steps = {
        title: table.paired.compare(soft, nobody, column, table.shots)
        for column, title in TITLES.items()
    }
    return Claim(
        f"neighbours help ({of})",
        "Translating from related base classes (NBS-S) does better than from all of them "
        "(mean over all K).",
        "",
        ", ".join(f"{title} {show(step, seeds=True)}" for title, step in steps.items()),
        all_of(map(verdict_of, steps.values())),
    )


def _ordered(table: ScoredTable, rows: Mapping[str, Scored], column: str) -> list[str]:
    """Return labels, the best first."""
    return sorted(rows, key=lambda label: -table.paired.mean(rows[label], column, table.shots))


def _soft_is_enough(table: ScoredTable, of: str, soft: Scored, hard: Mapping[str, Scored]) -> Claim:
    parts, verdicts = [], []
    for column, title in TITLES.items():
        best = _ordered(table, hard, column)[0]
        step = table.paired.compare(soft, hard[best], column, table.shots)
        parts.append(f"{title} {show(step, seeds=True)} to {best}")
        verdicts.append(verdict_of_equal(step))
    return Claim(
        f"soft neighbours are as good ({of})",
        "NBS-S does as well as NBS-H with the best k, or better (mean over all K; a loss of more "
        f"than {MARGIN} points has to be ruled out).",
        "",
        ", ".join(parts),
        all_of(verdicts),
    )


def _hard_is_sensitive(table: ScoredTable, of: str, hard: Mapping[str, Scored]) -> Claim:
    parts, verdicts = [], []
    for column, title in TITLES.items():
        best, *_, worst = _ordered(table, hard, column)
        # The largest of many differences is large by chance alone: hence the wider interval.
        num_pairs = len(TITLES) * comb(len(hard), 2)
        step = table.paired.compare(
            hard[best], hard[worst], column, table.shots, num_comparisons=num_pairs
        )
        parts.append(f"{title} {show(step)} from {worst} to {best}")
        # Nor is a difference that matters to nobody a dependence.
        is_small = step.difference + step.interval < MARGIN
        verdicts.append("not confirmed" if is_small else verdict_of(step))
    return Claim(
        f"hard neighbours need the right k ({of})",
        "NBS-H depends on k: in LSL or GLSL the best k does better than the worst by more than "
        f"chance, and by {MARGIN} points or more (mean over all K; intervals allow for every pair "
        "of k).",
        "",
        ", ".join(parts),
        _either(verdicts),
    )


def _either(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on a claim that holds if one of its parts does."""
    if "confirmed" in verdicts:
        return "confirmed"
    return "unclear" if "unclear" in verdicts else "not confirmed"

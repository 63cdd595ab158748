"""A claim, and the verdict that the confidence intervals of its differences imply."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from cpaan.report.gains import PairedDifference, signed

Verdict = Literal["confirmed", "not confirmed", "unclear"]
Labelled = tuple[str, PairedDifference]

MARGIN = 0.5
"""Points of accuracy. An interval around zero that is narrower has measured a zero."""
RATIO_MARGIN = 0.05
"""The same for ratios to the real data, and for their logarithms."""
RULE = (
    "Confirmed: the whole 95 % interval of the paired difference is on the side that is claimed. "
    "Not confirmed: it is wholly on the other side, or it has zero in it and reaches less than "
    f"{MARGIN} points ({RATIO_MARGIN} for ratios) to either side. Unclear: the draws were too few "
    "to tell. A claim of several parts is confirmed if all of them are. Seeds are averaged first, "
    "and intervals are over draws."
)
"""The rule of verdicts, for readers."""


class Mark(NamedTuple):
    """A difference of a claim on the axis of all claims, in points of accuracy."""

    found: float
    interval: float
    printed: float | None = None
    """The paper's; None if it prints none."""


@dataclass(frozen=True)
class Claim:
    """A claim and what was measured."""

    name: str
    text: str
    """The claim in our words."""
    printed: str
    """The paper's numbers; empty if it has none."""
    found: str
    """Our numbers, with intervals."""
    verdict: Verdict
    is_paper: bool = True
    """Whether the paper claims it; otherwise it answers a further question of a reader."""
    marks: tuple[Mark, ...] = ()
    """Its differences; empty if they are not in points."""


def is_positive(gap: PairedDifference, margin: float = MARGIN) -> Verdict:
    """Judge the claim that a difference is positive; "unclear" without an interval."""
    if gap.low > 0:
        return "confirmed"
    if gap.high < 0 or abs(gap.difference) + gap.interval < margin:
        return "not confirmed"
    return "unclear"


def is_not_negative(gap: PairedDifference) -> Verdict:
    """Judge the claim that a difference is not negative by more than the margin."""
    if gap.high < 0:
        return "not confirmed"
    return "confirmed" if gap.low > -MARGIN else "unclear"


def is_relevant(gap: PairedDifference) -> Verdict:
    """Judge the claim that a difference is positive, and not below the margin."""
    return "not confirmed" if gap.high < MARGIN else is_positive(gap)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a claim that holds if all of its parts do."""
    return max(verdicts, key=("confirmed", "unclear", "not confirmed").index)


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a claim that holds if one of its parts does."""
    return min(verdicts, key=("confirmed", "unclear", "not confirmed").index)


def listed(gaps: Iterable[Labelled], *, has_seeds: bool = False) -> str:
    """Return labels with their differences and, of several training seeds, that of each seed."""
    parts = []
    for label, gap in gaps:
        text = f"{label} {gap.text()}".strip()
        if has_seeds and len(gap.by_seed) > 1:
            text += f" (by seed {', '.join(map(signed, gap.by_seed))})"
        parts.append(text)
    return "; ".join(parts)


def judge(
    name: str,
    text: str,
    gaps: Sequence[Labelled],
    *,
    printed: str = "",
    found: str = "",
    values: Sequence[float | None] = (),
    has_seeds: bool = False,
    is_ratio: bool = False,
    is_paper: bool = True,
    each: Callable[[PairedDifference], Verdict] = is_positive,
    together: Callable[[Iterable[Verdict]], Verdict] = all_of,
) -> Iterator[Claim]:
    """Judge a claim about some differences; without differences there is no claim.

    ``values`` are the paper's numbers for the first of these differences. The claim lists the
    differences unless ``found`` describes them.
    """
    if gaps:
        found = found or listed(gaps, has_seeds=has_seeds)
        marks = marks_of([gap for _, gap in gaps], values)
        verdict = together(each(gap) for _, gap in gaps)
        yield Claim(name, text, printed, found, verdict, is_paper, () if is_ratio else marks)


def marks_of(gaps: Sequence[PairedDifference], printed: Sequence[float | None]) -> tuple[Mark, ...]:
    """Return the marks of differences; ``printed`` may have fewer numbers."""
    pairs = zip_longest(gaps, printed)
    return tuple(Mark(gap.difference, gap.interval, value) for gap, value in pairs)

"""A claim and its verdict, which an interval decides and nobody's liking."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cpaan.report.gains import Step

Verdict = Literal["confirmed", "not confirmed", "unclear"]

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
"""How verdicts come about, for readers."""


@dataclass(frozen=True)
class Claim:
    """What is claimed, and what was found of it."""

    name: str
    text: str
    """The claim in our words."""
    printed: str
    """The paper's numbers; empty if it has none."""
    found: str
    """Ours, with intervals."""
    verdict: Verdict
    is_paper: bool = True
    """Whether the paper claims it; else it is what a reader asks next."""


def verdict_of(step: Step, margin: float = MARGIN) -> Verdict:
    """Return whether a difference is positive.

    It is confirmed if the whole interval is above zero. It is not if the whole interval is below
    zero, or within the margin to both sides of it. Otherwise, and with a single draw, the draws
    were too few to tell.
    """
    if step.difference - step.interval > 0:
        return "confirmed"
    if step.difference + step.interval < 0 or abs(step.difference) + step.interval < margin:
        return "not confirmed"
    return "unclear"


def verdict_of_equal(step: Step, margin: float = MARGIN) -> Verdict:
    """Return whether a difference is not negative.

    It is not confirmed if the whole interval is below zero; it is if the interval is above minus
    the margin. Otherwise the draws were too few to tell.
    """
    if step.difference + step.interval < 0:
        return "not confirmed"
    return "confirmed" if step.difference - step.interval > -margin else "unclear"


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a claim of several parts, which holds if all of them do."""
    found = set(verdicts)
    if "not confirmed" in found:
        return "not confirmed"
    return "unclear" if "unclear" in found else "confirmed"


def show(step: Step, *, seeds: bool = False) -> str:
    """Return a difference in words, with its interval and, if asked for, every seed's own."""
    text = f"{step.difference:+.2f}"
    if not math.isnan(step.interval):
        text += f" ± {step.interval:.2f}"
    if seeds and len(step.by_seed) > 1:
        text += f" (by seed {', '.join(f'{value:+.2f}' for value in step.by_seed)})"
    return text


def against_printed(step: Step, printed: float | None) -> str:
    """Return whether a printed difference is in the interval of ours; empty if none is printed."""
    if printed is None or math.isnan(step.interval):
        return ""
    gap = round(printed - step.difference, 9)
    place = "in" if abs(gap) <= step.interval else "above" if gap > 0 else "below"
    return f"; the printed {printed:+.1f} is {place} this interval"

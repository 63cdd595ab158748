"""A claim, and the verdict that its differences imply."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from cpaan.protocol.statistics import CONFIDENCE
from cpaan.report.gains import PairedDifference, signed

CONFIRMED, SMALLER, NOT_FOUND, OPPOSITE, UNDECIDED = VERDICTS = (
    "confirmed",
    "same sign, much smaller",
    "not found",
    "opposite",
    "undecided",
)
Kind = Literal["control", "paper", "further"]
"""Whose claim it is: another paper's, which is a positive control of the setting; the paper's; or
nobody's, a further question of a reader."""
Labelled = tuple[str, PairedDifference]

MARGIN = 0.5
"""Points of accuracy. An interval around zero that is narrower has measured a zero."""
RATIO_MARGIN = 0.05
"""The same for ratios to the real data, and for their logarithms."""
_LEVEL = 1 - CONFIDENCE
RULE = (
    "An interval is the 95 % t-interval of a paired difference, with draws of the shots and "
    "training seeds as crossed random effects. With one seed it is over draws alone, and a claim "
    "about it is undecided: another training may differ by more. p is "
    "two-sided, of the same t, with Holm’s correction for the number of claims: the paper’s, the "
    "positive controls and the further questions are three families. "
    f"Confirmed: p is at most {_LEVEL:.2f}, the sign is as claimed, and the gain is at least half "
    "of the printed one, if one is printed. Same sign, much smaller: it is less than half. "
    f"Opposite: p is at most {_LEVEL:.2f}, and the sign is the other one. Not found: the interval "
    f"includes zero and lies within ± {MARGIN} points (± {RATIO_MARGIN} for ratios). Undecided: "
    "none of these. "
    "A claim of several parts holds if all of them do. If all have the claimed sign, its p is the "
    "largest of theirs; otherwise it is the smallest of those with the other sign, times the "
    "number of parts, and the claim can only be opposite, not found or undecided. It is not found "
    "if one part is not."
)
"""The rule of verdicts, for readers."""


class Mark(NamedTuple):
    """A difference of a claim, in points of accuracy or as a ratio."""

    found: float
    interval: float
    printed: float | None = None
    """The paper's; None if it prints none."""
    p_value: float = 1.0


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
    verdict: str
    kind: Kind = "paper"
    marks: tuple[Mark, ...] = ()
    """Its differences on the axis of all claims; empty if they are not in points."""
    parts: tuple[Mark, ...] = ()
    """The differences that decide; none with one training seed."""
    p_value: float = 1.0
    """Of the whole claim; corrected by `with_verdicts`."""
    margin: float = MARGIN


def p_value_of(parts: Sequence[Mark]) -> float:
    """Return the p-value of a claim that holds if all parts are positive; see `RULE`."""
    if opposite := [part.p_value for part in parts if part.found < 0]:
        return min(1.0, len(parts) * min(opposite))
    return max((part.p_value for part in parts), default=1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number (Holm, 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def decide(parts: Sequence[Mark], p_value: float, margin: float = MARGIN) -> str:
    """Return the verdict of `RULE` on a claim with this corrected p-value."""
    if p_value <= _LEVEL:
        if any(part.found < 0 for part in parts):
            return OPPOSITE
        halves = [(part.found, part.printed / 2) for part in parts if part.printed is not None]
        return SMALLER if any(found < half for found, half in halves) else CONFIRMED
    # Without an interval, which is NaN, both comparisons are false.
    is_zero = [abs(x.found) <= x.interval and abs(x.found) + x.interval <= margin for x in parts]
    return NOT_FOUND if any(is_zero) else UNDECIDED


def with_verdicts(claims: Iterable[Claim]) -> list[Claim]:
    """Correct the p-values of each kind of claims for their number, and decide the verdicts."""
    decided = list(claims)
    for kind in {claim.kind for claim in decided}:
        places = [place for place, claim in enumerate(decided) if claim.kind == kind]
        p_values = holm([p_value_of(decided[place].parts) for place in places])
        for place, p_value in zip(places, p_values, strict=True):
            verdict = decide(decided[place].parts, p_value, decided[place].margin)
            decided[place] = replace(decided[place], p_value=p_value, verdict=verdict)
    return decided


def listed(gaps: Iterable[Labelled], *, has_seeds: bool = False) -> str:
    """Return labels with their differences and, of several training seeds, that of each seed."""
    parts = []
    for label, gap in gaps:
        text = f"{label} {gap.text()}".strip()
        if has_seeds and len(gap.by_seed) > 1:
            text += f" (by seed {', '.join(map(signed, gap.by_seed))})"
        parts.append(text)
    return "; ".join(parts)


def make_claim(
    name: str,
    text: str,
    gaps: Sequence[Labelled],
    *,
    printed: str = "",
    found: str = "",
    values: Sequence[float | None] = (),
    has_seeds: bool = False,
    is_ratio: bool = False,
    kind: Kind = "paper",
    shown: Sequence[int] | None = None,
) -> Iterator[Claim]:
    """Yield a claim about some differences, without its verdict; nothing without differences.

    ``values`` are the paper's numbers for the first of these differences. The claim lists the
    differences unless ``found`` describes them. ``shown`` are those with a mark on the axis, by
    default all.
    """
    if not gaps:
        return
    parts = tuple(
        Mark(gap.difference, gap.interval, value, gap.p_value)
        for (_, gap), value in zip_longest(gaps, values)
    )
    found = found or listed(gaps, has_seeds=has_seeds)
    margin, marks = (RATIO_MARGIN, ()) if is_ratio else (MARGIN, parts)
    if shown is not None:
        marks = tuple(parts[place] for place in shown)
    if any(len(gap.by_seed) == 1 for _, gap in gaps):
        found, parts = f"{found}; one training seed, so the interval is over draws alone", ()
    yield Claim(
        name, text, printed, found, UNDECIDED, kind, marks, parts, p_value_of(parts), margin
    )

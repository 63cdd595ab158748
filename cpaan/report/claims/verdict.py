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
Kind = Literal["control", "primary", "paper", "further"]
"""Another paper's claim, which is a positive control of the setting; a primary comparison; another
claim of the paper; or a further question of a reader. Each kind is a family of its own."""
Labelled = tuple[str, PairedDifference]

MARGIN = 0.5
"""Points of accuracy. A difference whose whole interval lies within them is small."""
RATIO_MARGIN = 0.05
"""The same for ratios to the real data, and for their logarithms."""
_LEVEL = 1 - CONFIDENCE
RULE = (
    "An interval is the 95 % t-interval of a paired difference, with draws of the shots and "
    "training seeds as crossed random effects; its quantile of t is the mean of those of draws and "
    "of seeds, weighted by their mean squares. With one seed it is over draws alone, and a claim "
    "about it is undecided: another training may differ by more. p is two-sided, of the "
    "same t, with Holm’s correction for the number of claims in each of four families: positive "
    "controls, primary comparisons, other claims of the paper, and further questions. Two rows are "
    "compared in LSL at the fewest shots, each with its head in the paper. Other heads and "
    "calibrated GLSL decide nothing. Intervals are not corrected. Printed GLSL is not calibrated. "
    f"A difference is small if its whole interval lies within ± {MARGIN} points (± {RATIO_MARGIN} "
    f"for ratios). Confirmed: p is at most {_LEVEL:.2f}, the sign is as claimed, and the gain is "
    "at least half of the printed one or, if none is printed, not small. Same sign, much smaller: "
    "p and the sign are the same, but the gain is less than half of the printed one or, if none is "
    f"printed, small. Opposite: p is at most {_LEVEL:.2f}, the sign is the other one, and the "
    "difference is not small. Not found: the difference is small, and its interval includes zero "
    "or has the other sign. Undecided: none of these. "
    "A claim of several parts holds if all of them do, and is much smaller if one of them is. If "
    "all have the claimed sign, its p is the largest of theirs; otherwise it is the smallest of "
    "those with the other sign, times the number of parts. It is opposite if p is at most "
    f"{_LEVEL:.2f}, all parts have the other sign, and one is not small. It is not found if p is "
    f"at most {_LEVEL:.2f} and only some parts have the other sign, or all are small. If "
    "p is larger, it is not found if one of its parts is not found."
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
    """Of the whole claim, corrected; set by `with_verdicts`."""
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
    # Without an interval, which is NaN, comparisons are false.
    is_small = [abs(part.found) + part.interval <= margin for part in parts]
    pairs = list(zip(parts, is_small, strict=True))
    if p_value <= _LEVEL:
        is_negative = [part.found < 0 for part in parts]
        if any(is_negative):
            return OPPOSITE if all(is_negative) and not all(is_small) else NOT_FOUND
        is_less = [x.found < x.printed / 2 if x.printed is not None else y for x, y in pairs]
        return SMALLER if any(is_less) else CONFIRMED
    return NOT_FOUND if any(y and x.found <= x.interval for x, y in pairs) else UNDECIDED


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
    yield Claim(name, text, printed, found, UNDECIDED, kind, marks, parts, margin=margin)

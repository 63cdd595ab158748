"""The verdict on a claim that its differences imply, by the rule of `page/rule.jinja`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cpaan.protocol.statistics import CONFIDENCE
from cpaan.report.claims.claim import Claim
from cpaan.report.gains import Scored
from cpaan.report.tables import Cell, signed

CONFIRMED, SMALLER, NOT_FOUND, OPPOSITE, UNDECIDED = VERDICTS = (
    "confirmed",
    "same sign, much smaller",
    "not found",
    "opposite",
    "undecided",
)
MARGIN = 0.5
"""Points of accuracy. A difference whose whole interval lies within them is small."""
RATIO_MARGIN = 0.05
"""The same for ratios to the real data, and for their logarithms."""
LEVEL = 1 - CONFIDENCE
"""A claim is confirmed, or its opposite, if its p-value is at most this."""
_MOST_LISTED = 8  # differences of a claim; of more, only the extremes are shown


class ClaimPart(NamedTuple):
    """A difference of a claim, in points of accuracy or of ratios."""

    gap: Cell
    printed: float | None = None
    """The difference that papers print; None if they print none."""
    rows: tuple[Scored, Scored] = (("", ""), ("", ""))
    cell: str = ""
    """Its column and its shots in words."""
    label: str = ""
    """What tells it from the other parts of the claim."""


@dataclass(frozen=True)
class Judgement:
    """A claim, what was measured, and the verdict."""

    claim: Claim
    parts: Sequence[ClaimPart]
    undecisive: Mapping[str, Sequence[Cell]] = field(default_factory=dict)
    """Differences that do not decide, by column and head in words: one for every part."""
    p_value: float = 1.0
    """Of the whole claim, corrected for the number of claims of its kind."""
    verdict: str = UNDECIDED

    @property
    def cell(self) -> str:
        """The column and the shots of all parts in words; empty if they differ."""
        cells = {part.cell for part in self.parts}
        return cells.pop() if len(cells) == 1 else ""

    @property
    def deciding(self) -> Sequence[ClaimPart]:
        """The parts; none if a row was trained once, because another training may differ."""
        return () if any(len(part.gap.by_seed) == 1 for part in self.parts) else self.parts

    @property
    def extremes(self) -> Sequence[ClaimPart]:
        """The parts, or the smallest and the largest of many."""
        if len(self.parts) <= _MOST_LISTED:
            return self.parts
        ranked = sorted(self.parts, key=lambda part: part.gap.value)
        return [ranked[0], ranked[-1]]

    @property
    def printed(self) -> str:
        """The printed difference, or the range of several; empty without one."""
        values = sorted(part.printed for part in self.parts if part.printed is not None)
        ends = [signed(value, 1) for value in (*values[:1], *values[-1:])]
        return " to ".join(dict.fromkeys(ends))


def p_value_of(parts: Sequence[ClaimPart]) -> float:
    """Return the p-value of a claim that holds if all parts are positive."""
    if opposite := [part.gap.p_value for part in parts if part.gap.value < 0]:
        return min(1.0, len(parts) * min(opposite))
    return max((part.gap.p_value for part in parts), default=1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number (Holm, 1979)."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def decide(parts: Sequence[ClaimPart], p_value: float, margin: float = MARGIN) -> str:
    """Return the verdict on a claim with this corrected p-value."""
    # Without an interval, which is NaN, contrasts are false.
    is_small = [abs(part.gap.value) + part.gap.interval <= margin for part in parts]
    pairs = list(zip(parts, is_small, strict=True))
    if p_value <= LEVEL:
        is_negative = [part.gap.value < 0 for part in parts]
        if any(is_negative):
            return OPPOSITE if all(is_negative) and not all(is_small) else NOT_FOUND
        is_less = [
            small if part.printed is None else part.gap.value < part.printed / 2
            for part, small in pairs
        ]
        return SMALLER if any(is_less) else CONFIRMED
    is_absent = [small and part.gap.value <= part.gap.interval for part, small in pairs]
    return NOT_FOUND if any(is_absent) else UNDECIDED


def with_verdicts(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Correct the p-values of every kind of claims for their number, and decide the verdicts."""
    decided = list(judgements)
    for kind in {judgement.claim.kind for judgement in judgements}:
        places = [place for place, judgement in enumerate(decided) if judgement.claim.kind == kind]
        p_values = holm([p_value_of(decided[place].deciding) for place in places])
        for place, p_value in zip(places, p_values, strict=True):
            judgement = decided[place]
            margin = RATIO_MARGIN if judgement.claim.is_ratio else MARGIN
            verdict = decide(judgement.deciding, p_value, margin)
            decided[place] = replace(judgement, p_value=p_value, verdict=verdict)
    return decided

"""Test the verdicts that differences imply."""

import math

import pytest

from cpaan.report.claims.claim import Claim, Contrast
from cpaan.report.claims.verdict import (
    CONFIRMED,
    NOT_FOUND,
    OPPOSITE,
    SMALLER,
    UNDECIDED,
    ClaimPart,
    Judgement,
    decide,
    holm,
    p_value_of,
    with_verdicts,
)
from cpaan.report.tables import Cell


def part_of(difference, interval, printed=None, p_value=0.01, by_seed=()) -> ClaimPart:
    return ClaimPart(Cell(difference, interval, 0, p_value, by_seed), printed)


def judgement_of(*parts: ClaimPart, kind="paper") -> Judgement:
    return Judgement(Claim("name", kind, (Contrast("A", "B", "novel", "fewest"),)), parts)


@pytest.mark.parametrize(
    ("parts", "p_value", "verdict"),
    [
        ([(4.5, 1.0, 9.0)], 0.05, CONFIRMED),  # exactly half of the printed gain
        ([(4.4, 1.0, 9.0)], 0.05, SMALLER),
        ([(0.6, 0.2, None)], 0.01, CONFIRMED),  # nothing is printed
        ([(0.07, 0.05, None)], 0.01, SMALLER),  # at most 0.12, where 0.5 is small
        ([(0.07, 0.05, 0.1)], 0.01, CONFIRMED),  # small, but more than half of the printed gain
        ([(-0.01, 0.005, None)], 0.001, NOT_FOUND),
        ([(-0.01, 0.005, None)], 0.07, NOT_FOUND),  # a larger p must not make it less clear
        ([(4.5, 1.0, 9.0)], 0.051, UNDECIDED),
        ([(-1.0, 0.9, 9.0)], 0.04, OPPOSITE),
        ([(-1.0, 0.9, 9.0)], 0.06, UNDECIDED),
        ([(0.1, 0.3, 9.0)], 0.6, NOT_FOUND),
        ([(0.1, 0.4, 9.0)], 0.6, NOT_FOUND),  # from -0.3 to 0.5
        ([(0.1, 0.41, 9.0)], 0.6, UNDECIDED),
        ([(0.3, 0.1, 9.0)], 0.07, UNDECIDED),  # without Holm's correction it would be significant
        ([(5.0, math.nan, 9.0)], 1.0, UNDECIDED),  # a single draw
        ([(5.0, 1.0, 9.0), (3.0, 1.0, 7.0)], 0.01, SMALLER),
        ([(5.0, 1.0, 9.0), (3.0, 1.0, None)], 0.01, CONFIRMED),
        ([(5.0, 1.0, 9.0), (0.1, 0.05, None)], 0.01, SMALLER),
        ([(5.0, 1.0, 9.0), (-3.0, 1.0, None)], 0.01, NOT_FOUND),
        ([(-5.0, 1.0, 9.0), (-0.1, 0.05, None)], 0.01, OPPOSITE),
        ([(-0.2, 0.1, None), (-0.1, 0.05, None)], 0.01, NOT_FOUND),
        ([(5.0, 1.0, 9.0), (-3.0, 4.0, None)], 0.3, UNDECIDED),
        ([(5.0, 1.0, 9.0), (0.0, 0.2, None)], 1.0, NOT_FOUND),
        ([(5.0, 1.0, 9.0), (0.0, 2.0, None)], 1.0, UNDECIDED),
    ],
)
def test_a_verdict_needs_significance_the_sign_and_half_of_the_printed_gain(
    parts, p_value, verdict
):
    assert decide([part_of(*part) for part in parts], p_value) == verdict


def test_a_claim_of_several_parts_is_as_sure_as_its_weakest_part():
    def p_value(*parts: tuple[float, float]) -> float:
        return p_value_of([part_of(difference, 0.1, None, p) for difference, p in parts])

    assert p_value((1.0, 0.01), (2.0, 0.03)) == 0.03
    # Two of three parts have the other sign. The surer one was picked out of three.
    assert p_value((1.0, 0.001), (-1.0, 0.01), (-2.0, 0.02)) == pytest.approx(0.03)
    assert p_value((1.0, 0.001), (-1.0, 0.7)) == 1.0


def test_one_small_loss_among_gains_is_not_the_opposite_of_the_claim():
    gains = [part_of(gain, gain / 10, None, 1e-9) for gain in (0.40, 0.08, 0.03)]
    parts = [*gains, part_of(-0.01, 0.005, None, 1e-6)]

    assert p_value_of(parts) == pytest.approx(4e-6)
    assert decide(parts, p_value_of(parts), margin=0.05) == NOT_FOUND


def test_holm_multiplies_the_smallest_p_by_the_number_of_claims_and_the_next_by_one_less():
    # 0.01 * 4, 0.02 * 3, 0.03 * 2 (which must not be below the one before), 0.5 * 1.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_every_kind_of_claims_is_corrected_for_its_own_number():
    def of_kind(kind, p_value: float) -> Judgement:
        return judgement_of(part_of(1.0, 0.5, None, p_value), kind=kind)

    judgements = [of_kind("paper", 0.03), of_kind("primary", 0.03), of_kind("paper", 0.02)]
    decided = with_verdicts(judgements)

    assert [judgement.p_value for judgement in decided] == pytest.approx([0.04, 0.03, 0.04])
    assert {judgement.verdict for judgement in decided} == {CONFIRMED}
    more = with_verdicts([*judgements, of_kind("paper", 0.9)])
    assert [judgement.verdict for judgement in more] == [UNDECIDED, CONFIRMED, UNDECIDED, UNDECIDED]


def test_a_claim_with_one_seed_is_undecided():
    several, single = (
        judgement_of(part_of(1.0, 0.5, by_seed=seeds)) for seeds in ((1.0, 1.2), (1.0,))
    )

    decided = with_verdicts([several, single])

    assert [judgement.verdict for judgement in decided] == [CONFIRMED, UNDECIDED]


def test_many_differences_are_represented_by_the_smallest_and_the_largest():
    judgement = judgement_of(*[part_of(1.5, 0.5, 2.0)] * 8, part_of(-1.0, math.nan, 3.0))

    assert [part.gap.value for part in judgement.extremes] == [-1.0, 1.5]
    assert judgement.printed == "+2.0 to +3.0"
    assert judgement_of(part_of(1.5, 0.5, 2.0)).printed == "+2.0"

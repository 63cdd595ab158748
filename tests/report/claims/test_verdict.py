"""Test the verdicts that intervals imply."""

import math

import pytest

from cpaan.report.claims.verdict import (
    all_of,
    any_of,
    is_not_negative,
    is_positive,
    is_relevant,
    listed,
)
from cpaan.report.gains import PairedDifference

YES, NO, UNCLEAR = "confirmed", "not confirmed", "unclear"


def gap_of(difference: float, interval: float, *by_seed: float) -> PairedDifference:
    return PairedDifference(("b", "linear"), ("a", "linear"), difference, interval, by_seed)


@pytest.mark.parametrize(
    ("judge", "difference", "interval", "verdict"),
    [
        (is_positive, 1.0, 0.9, YES),
        (is_positive, 0.02, 0.01, YES),
        (is_positive, 1.0, 1.0, UNCLEAR),
        (is_positive, -1.0, 0.9, NO),
        (is_positive, 0.1, 0.3, NO),  # within half a point of zero
        (is_positive, 0.4, 0.45, UNCLEAR),  # the upper limit is 0.85
        (is_positive, 0.0, 0.0, NO),
        (is_positive, -0.4, 0.6, UNCLEAR),
        (is_positive, 5.0, math.nan, UNCLEAR),
        (is_not_negative, 0.0, 0.4, YES),
        (is_not_negative, 2.0, 1.0, YES),
        (is_not_negative, -0.1, 0.05, NO),
        (is_not_negative, -0.3, 0.4, UNCLEAR),
        (is_not_negative, 5.0, math.nan, UNCLEAR),
        (is_relevant, 1.0, 0.6, YES),
        (is_relevant, 0.3, 0.1, NO),  # positive, but below half a point
        (is_relevant, 1.0, 1.5, UNCLEAR),
    ],
)
def test_the_interval_decides(judge, difference, interval, verdict):
    assert judge(gap_of(difference, interval)) == verdict


def test_a_claim_of_several_parts_needs_all_of_them_or_any():
    for verdicts, of_all, of_any in [
        ([YES, YES], YES, YES),
        ([YES, UNCLEAR], UNCLEAR, YES),
        ([UNCLEAR, NO, YES], NO, YES),
        ([UNCLEAR, NO], NO, UNCLEAR),
    ]:
        assert (all_of(verdicts), any_of(verdicts)) == (of_all, of_any)


def test_differences_are_listed_with_intervals_and_seeds():
    gaps = [("LSL", gap_of(1.234, 0.5, 1.0, -1.5)), ("GLSL", gap_of(-1.0, math.nan, -1.0))]

    assert listed(gaps, has_seeds=True) == "LSL +1.23 ± 0.50 (by seed +1.00, −1.50); GLSL −1.00"

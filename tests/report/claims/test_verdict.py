"""How an interval decides, and how numbers are told."""

import math

import pytest

from cpaan.report.claims.verdict import against_printed, all_of, show, verdict_of, verdict_of_equal
from cpaan.report.gains import Step


def step_of(difference: float, interval: float, *by_seed: float) -> Step:
    return Step("a", ("b", "linear"), ("a", "linear"), difference, interval, by_seed)


@pytest.mark.parametrize(
    ("difference", "interval", "verdict"),
    [
        (1.0, 0.9, "confirmed"),
        (0.02, 0.01, "confirmed"),
        (1.0, 1.0, "unclear"),
        (-1.0, 0.9, "not confirmed"),
        (0.1, 0.3, "not confirmed"),  # a measured zero
        (0.4, 0.45, "unclear"),  # it may be as much as 0.85
        (0.0, 0.0, "not confirmed"),
        (0.1, 0.5, "unclear"),
        (-0.4, 0.6, "unclear"),
        (5.0, math.nan, "unclear"),
    ],
)
def test_the_interval_decides_whether_a_difference_is_positive(difference, interval, verdict):
    assert verdict_of(step_of(difference, interval)) == verdict


@pytest.mark.parametrize(
    ("difference", "interval", "verdict"),
    [
        (0.0, 0.4, "confirmed"),
        (2.0, 1.0, "confirmed"),
        (-0.1, 0.05, "not confirmed"),
        (-0.3, 0.4, "unclear"),
        (5.0, math.nan, "unclear"),
    ],
)
def test_the_interval_decides_whether_a_difference_is_not_negative(difference, interval, verdict):
    assert verdict_of_equal(step_of(difference, interval)) == verdict


def test_a_claim_of_several_parts_holds_if_all_of_them_do():
    assert all_of(["confirmed", "confirmed"]) == "confirmed"
    assert all_of(["confirmed", "unclear"]) == "unclear"
    assert all_of(["unclear", "not confirmed", "confirmed"]) == "not confirmed"


def test_a_difference_is_shown_with_its_interval_and_seeds():
    assert show(step_of(1.234, 0.5, 1.0, 1.5), seeds=True) == (
        "+1.23 ± 0.50 (by seed +1.00, +1.50)"
    )
    assert show(step_of(-1.0, math.nan, -1.0), seeds=True) == "-1.00"


@pytest.mark.parametrize(("printed", "place"), [(9.0, "above"), (2.5, "in"), (0.5, "below")])
def test_a_printed_number_is_placed_beside_our_interval(printed, place):
    text = against_printed(step_of(2.0, 0.5), printed)

    assert text == f"; the printed {printed:+.1f} is {place} this interval"

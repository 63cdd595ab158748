import math

import numpy as np
import pandas as pd
import pytest

from cpaan.protocol.statistics import (
    Crossed,
    Estimate,
    bootstrap_interval,
    paired_differences,
    summarise,
)
from helpers.frames import frame_of

# Student's t, from a printed table, by degrees of freedom.
T_95_ONE_DEGREE, T_95_TWO_DEGREES, T_95_FOUR_DEGREES = 12.706205, 4.302653, 2.776445
NONE, COPY = ("none", "knn"), ("copy", "knn")


def crossed(values) -> Crossed:
    values = np.array(values, dtype=float)
    return Crossed(*(tuple(range(count)) for count in values.shape), values)


def test_an_interval_counts_draws_and_seeds():
    # Effects of three draws and of three seeds are -1, 0 and 1. Both mean squares are 3 * 1, so the
    # variance of the mean is (3 + 3) / 9.
    estimate = crossed([[-2, -1, 0], [-1, 0, 1], [0, 1, 2]]).estimate()

    assert estimate == (0.0, pytest.approx((6 / 9) ** 0.5), (2, 2), pytest.approx((0.5, 0.5)))
    assert estimate.interval() == pytest.approx(T_95_TWO_DEGREES * (6 / 9) ** 0.5)
    # Seeds 10, 10 and 16 in the mean over draws 11, 12 and 13: mean squares 3 * 1 and 3 * 12.
    unequal = crossed([[9, 9, 15], [10, 10, 16], [11, 11, 17]]).estimate()
    shares = pytest.approx((3 / 39, 36 / 39))
    assert unequal == (12.0, pytest.approx((39 / 9) ** 0.5), (2, 2), shares)


def test_quantiles_of_draws_and_seeds_are_averaged_with_their_shares_of_the_variance():
    estimate = Estimate(1.0, 0.1, degrees=(4, 1), shares=(0.75, 0.25))

    quantile = 0.75 * T_95_FOUR_DEGREES + 0.25 * T_95_ONE_DEGREE
    assert estimate.interval() == pytest.approx(0.1 * quantile)
    at_its_end = estimate._replace(mean=-estimate.interval())
    assert at_its_end.p_value() == pytest.approx(0.05)
    joint = estimate._replace(mean=estimate.interval(num_comparisons=20))
    assert joint.p_value(num_comparisons=20) == pytest.approx(0.05)


@pytest.mark.parametrize("values", [[[1.0], [2.0], [3.0]], [[1.0] * 3, [2.0] * 3, [3.0] * 3]])
def test_with_one_seed_or_equal_seeds_only_draws_count(values):
    estimate = crossed(values).estimate()

    assert (estimate.mean, estimate.error) == pytest.approx((2.0, 3**-0.5))
    assert estimate.interval() == pytest.approx(T_95_TWO_DEGREES * 3**-0.5)


def test_the_variance_is_never_below_that_of_draws_alone_or_of_seeds_alone():
    # The residual is as large as it can be: means of all draws, and of all seeds, are equal.
    residual = np.array([[1.0, -1.0], [-1.0, 1.0]])
    for effects in ([[0, 0], [4, 4]], [[0, 4], [0, 4]]):
        estimate = crossed(residual + effects).estimate()
        assert estimate.error == pytest.approx(2.0), "the standard error of the mean of 0 and 4"


@pytest.mark.parametrize(
    "deviations", [(1.0, 0.0, 1.0), (1.0, 0.2, 1.0), (0.2, 1.0, 0.5), (1.0, 1.0, 0.5)]
)
def test_intervals_of_simulated_scores_hold_the_true_mean_in_at_least_95_of_100_cases(deviations):
    of_draws, of_seeds, residual = deviations
    num_cases, shape = 2000, (50, 3)
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(num_cases):
        values = residual * rng.standard_normal(shape)
        values += of_draws * rng.standard_normal((shape[0], 1))
        values += of_seeds * rng.standard_normal((1, shape[1]))
        estimates.append(crossed(values).estimate())

    is_held = [abs(estimate.mean) <= estimate.interval() for estimate in estimates]
    assert 0.94 < sum(is_held) / num_cases < 0.985
    # With Satterthwaite's degrees of freedom, this share is up to 0.024.
    is_clear = [
        abs(estimate.mean) > estimate.interval(num_comparisons=11) for estimate in estimates
    ]
    assert sum(is_clear) / num_cases < 0.01


@pytest.mark.parametrize(
    ("values", "num_comparisons", "p_value"),
    [
        # For two degrees of freedom, p is 1 - t / sqrt(2 + t^2). Here t is 2 * sqrt(3).
        ([[1.0], [2.0], [3.0]], 1, 1 - (12 / 14) ** 0.5),
        ([[1.0], [2.0], [3.0]], 5, 5 * (1 - (12 / 14) ** 0.5)),
        ([[1.0], [2.0], [3.0]], 99, 1.0),
        ([[-1.0], [-2.0], [-3.0]], 1, 1 - (12 / 14) ** 0.5),
        ([[2.0], [2.0]], 1, 0.0),
        ([[0.0], [0.0]], 1, 1.0),
        ([[5.0, 6.0]], 1, 1.0),  # a single draw
    ],
)
def test_a_p_value_is_two_sided(values, num_comparisons, p_value):
    assert crossed(values).estimate().p_value(num_comparisons) == pytest.approx(p_value)


def test_a_summary_has_deviations_over_draws_and_seeds_and_one_draw_has_no_interval():
    # Means over seeds: 10, 20, 30; their standard deviation is 10. Means over draws: 18 and 22.
    draws = {NONE: [[9.0, 11.0], [18.0, 22.0], [27.0, 33.0]], COPY: [9.0]}
    scores = frame_of({row: {("novel", 1): top5} for row, top5 in draws.items()})

    cell, single = summarise(scores).to_dict(orient="records")

    assert cell["top5_mean"] == pytest.approx(20.0)
    assert cell["top1_mean"] == pytest.approx(10.0)
    assert cell["top5_std_draws"] == pytest.approx(10.0)
    assert cell["top5_std_seeds"] == pytest.approx(8**0.5)
    whole = crossed(draws[NONE]).estimate()
    assert whole.error == pytest.approx(((2 * 100 + 3 * 8) / 6) ** 0.5)
    assert cell["top5_interval"] == pytest.approx(whole.interval())
    assert single["top5_mean"] == 9.0
    assert pd.isna([single["top5_interval"], single["top5_std_draws"]]).all()
    assert math.isnan(crossed([[1.0, 2.0]]).estimate().interval())


@pytest.mark.parametrize(
    ("of_none", "of_copy"),
    [
        # Draws differ by tens of points, but only the differences of methods count: 1, 2 and 3.
        ([10.0, 30.0, 60.0], [11.0, 32.0, 63.0]),
        # Seeds also differ by ten points, but equally in both rows.
        ([[10.0, 20.0], [30.0, 40.0], [60.0, 70.0]], [[11.0, 21.0], [32.0, 42.0], [63.0, 73.0]]),
    ],
)
def test_differences_are_taken_draw_by_draw_and_seed_by_seed(of_none, of_copy):
    scores = frame_of({NONE: {("novel", 1): of_none}, COPY: {("novel", 1): of_copy}})

    (cell,) = paired_differences(scores, "none").to_dict(orient="records")

    assert (cell["method"], cell["head"]) == COPY
    assert cell["top5_difference"] == pytest.approx(2.0)
    assert cell["top5_interval"] == pytest.approx(T_95_TWO_DEGREES * 1.0 / 3**0.5)


def test_a_bootstrap_resamples_the_values():
    assert bootstrap_interval(np.full(5, 3.0)) == (3.0, 3.0)
    # Means of n resampled values 0 and 1 have the deviation 0.5 / sqrt(n).
    low, high = bootstrap_interval(np.arange(400.0) % 2)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.025, 0.5 + 1.96 * 0.025), abs=0.003)


def test_a_row_is_compared_with_the_same_head_or_with_a_named_one_that_there_is():
    means = {("none", "centroid"): 10.0, ("none", "linear"): 20.0, ("copy", "linear"): 23.0}
    scores = frame_of({row: {("novel", 1): top5} for row, top5 in means.items()})

    assert paired_differences(scores, "none")["top5_difference"].tolist() == [3.0]
    named = paired_differences(scores, "none/centroid")
    assert named["top5_difference"].tolist() == [10.0, 13.0]
    with pytest.raises(ValueError, match=r"no row 'none/knn' .* the rows are none/centroid, none"):
        paired_differences(scores, "none/knn")

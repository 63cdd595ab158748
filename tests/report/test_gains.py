"""Paired differences, on scores whose differences one can take by hand."""

import math

import pandas as pd
import pytest

from cpaan.protocol.statistics import Estimate
from cpaan.report.gains import PairedScores
from helpers.frames import frame_of

T_95_ONE_DEGREE = 12.706205  # Student's t, from a printed table
A, B = ("a", "x"), ("b", "x")


def scores_of(rows: dict[tuple[str, str], list], shots: int = 1) -> pd.DataFrame:
    """Return top-5 on novel classes by row and head, draw, and seed."""
    return frame_of({row: {("novel", shots): draws} for row, draws in rows.items()})


def compare(scores, subject=A, other=B, shots=1, **options):
    return PairedScores(scores).compare(subject, other, "novel", shots, **options)


def test_a_difference_is_the_mean_of_differences_by_draw():
    # Means over seeds differ by 1, 2 and 3 in the three draws, and means over draws by 1 and 3. The
    # mean squares of draws and seeds are 2 * 1 and 3 * 2.
    old, new = ("old", "centroid"), ("new", "linear")
    scores = scores_of(
        {new: [[10.0, 12.0], [31.0, 33.0], [62.0, 64.0]], old: [[10.0] * 2, [30.0] * 2, [60.0] * 2]}
    )

    gap = compare(scores, new, old)

    assert gap.value == pytest.approx(2.0)
    estimate = Estimate(2.0, ((2 + 6) / 6) ** 0.5, (2, 1), (2 / 8, 6 / 8))
    assert (gap.interval, gap.p_value) == pytest.approx((estimate.interval(), estimate.p_value()))
    assert gap.by_seed == pytest.approx((1.0, 3.0))


def test_only_common_seeds_are_compared_and_an_untrained_row_with_each_seed():
    scores = scores_of({A: [[11.0, 14.0], [21.0, 24.0]], B: [10.0, 20.0]})
    assert compare(scores).by_seed == pytest.approx((1.0, 4.0))
    assert compare(scores, B, A).by_seed == pytest.approx((-1.0, -4.0))

    scores = scores_of({A: [[11.0], [21.0]], B: [[10.0, 50.0], [20.0, 60.0]]})
    assert compare(scores).by_seed == (1.0, -39.0)
    assert compare(scores, same_seeds=True).by_seed == (1.0,), "a variant with one of the seeds"

    later = scores_of({B: [[17.0, 99.0]]})
    scores = pd.concat([scores_of({A: [[10.0, 20.0]]}), later.assign(seed=later["seed"] + 1)])
    assert compare(scores).by_seed == (3.0,)
    apart = scores[(scores["method"] == "a") | (scores["seed"] > 1)].assign(draw=0)
    assert compare(apart).by_seed == (10.0 - 99.0, 20.0 - 99.0), "as of a row without training"
    with pytest.raises(ValueError, match="none in common"):
        compare(pd.concat([scores_of({A: [[1.0, 2.0]]}), later.assign(seed=later["seed"] + 5)]))


def test_several_shots_or_columns_are_compared_by_their_mean():
    at_one = scores_of({A: [5.0, 6.0], B: [1.0, 1.0]}, shots=1)
    at_five = scores_of({A: [2.0, 1.0], B: [1.0, 1.0]}, shots=5)

    # By draw, (4 + 1) / 2 and (5 + 0) / 2: the spread is zero.
    gap = compare(pd.concat([at_one, at_five]), shots=[1, 5])
    both = pd.concat([at_one, at_five.assign(column="all", shots=1)])
    same = PairedScores(both).compare(A, B, ["novel", "all"], 1)

    assert (gap.value, gap.interval) == pytest.approx((2.5, 0.0))
    assert (same.value, same.interval) == pytest.approx((2.5, 0.0))


def test_a_single_draw_has_no_interval_and_one_picked_out_of_several_has_a_wider_one():
    scores = scores_of({A: [1.0, 3.0], B: [0.0, 0.0]})

    assert math.isnan(compare(scores[scores["draw"] == 0]).interval)
    # For one degree of freedom, t is 12.7 at 5 % and 63.7 at 1 %.
    assert compare(scores).interval == pytest.approx(T_95_ONE_DEGREE)
    assert compare(scores, num_comparisons=5).interval == pytest.approx(63.656741)


@pytest.mark.parametrize(
    ("draws", "text"),
    [({A: [-1.0] * 2, B: [1.0] * 2}, "−2.00 ± 0.00"), ({A: [-1e-9], B: [0.0]}, "+0.00")],
)
def test_a_difference_has_a_sign_that_is_read_aloud(draws, text):
    assert compare(scores_of(draws)).text() == text


@pytest.mark.parametrize(
    ("draws", "shots", "message"),
    [
        ({B: [1.0]}, 1, "no scores of a with the head x for novel at K = 1"),
        ({A: [5.0], B: [1.0]}, [1, 2], "no scores of a with the head x for novel at K = 2"),
        ({A: [5, 6, 7], B: [1, 2]}, 1, "a and b: 3 and 2 draws cannot be paired: draw 2 is"),
        ({A: [[5.0, 6.0], [7.0]], B: [1.0, 2.0]}, 1, "a, x, novel, 1: a seed lacks draws"),
    ],
)
def test_rows_that_cannot_be_paired_are_refused(draws, shots, message):
    with pytest.raises(ValueError, match=message):
        compare(scores_of(draws), shots=shots)


def test_two_scores_for_one_draw_and_seed_are_refused():
    scores = scores_of({A: [5.0], B: [1.0]})

    with pytest.raises(ValueError, match="duplicate"):
        PairedScores(pd.concat([scores, scores]))

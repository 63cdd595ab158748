"""Paired differences and parts of a gain, on scores whose differences one can take by hand."""

import math

import pandas as pd
import pytest

from cpaan.report.gains import PairedScores, split_gain

T_95_ONE_DEGREE, T_95_TWO_DEGREES = 12.706205, 4.302653  # Student's t, from a printed table
A, B = ("a", "x"), ("b", "x")


def scores_of(rows: dict[tuple[str, str], list[list[float]]], shots: int = 1, seed: int = 0):
    """Return top-5 on novel classes by row and head, draw, and seed."""
    index = ["method", "head", "column", "shots", "draw", "seed", "top5"]
    return pd.DataFrame(
        [
            (*row, "novel", shots, draw, number, value)
            for row, draws in rows.items()
            for draw, seeds in enumerate(draws)
            for number, value in enumerate(seeds, start=seed)
        ],
        columns=index,
    )


def compare(scores, subject=A, other=B, shots=1, **options):
    return PairedScores(scores).compare(subject, other, "novel", shots, **options)


def test_a_difference_is_the_mean_of_differences_by_draw():
    # Means over seeds differ by 1, 2 and 3, whatever the draw.
    old, new = ("old", "centroid"), ("new", "linear")
    scores = scores_of(
        {
            new: [[10.0, 12.0], [31.0, 33.0], [62.0, 64.0]],
            old: [[10.0, 10.0], [30.0, 30.0], [60.0, 60.0]],
        }
    )

    gap = compare(scores, new, old)

    assert gap.difference == pytest.approx(2.0)
    assert gap.interval == pytest.approx(T_95_TWO_DEGREES * 1.0 / 3**0.5)
    assert (gap.low, gap.high) == pytest.approx((2 - gap.interval, 2 + gap.interval))
    assert (gap.start, gap.end, gap.label) == (old, new, "new")
    assert gap.by_seed == pytest.approx((1.0, 3.0))


def test_an_untrained_row_is_compared_with_each_seed_of_a_trained_one():
    scores = scores_of({A: [[11.0, 14.0], [21.0, 24.0]], B: [[10.0], [20.0]]})

    assert compare(scores).by_seed == pytest.approx((1.0, 4.0))
    assert compare(scores, B, A).by_seed == pytest.approx((-1.0, -4.0))


def test_of_two_trained_rows_only_common_seeds_are_compared():
    scores = pd.concat(
        [scores_of({A: [[10.0, 20.0]]}, seed=0), scores_of({B: [[17.0, 99.0]]}, seed=1)]
    )

    assert compare(scores).by_seed == (3.0,)
    assert compare(scores).difference == 15.0 - 58.0
    assert compare(scores, same_seeds=True).difference == 15.0 - 17.0


def test_several_shots_are_compared_by_their_mean():
    scores = pd.concat(
        [
            scores_of({A: [[5.0], [6.0]], B: [[1.0], [1.0]]}, shots=1),
            scores_of({A: [[2.0], [1.0]], B: [[1.0], [1.0]]}, shots=5),
        ]
    )

    # By draw (4 + 1) / 2 and (5 + 0) / 2, so that nothing is left of the spread.
    gap = compare(scores, shots=[1, 5])

    assert (gap.difference, gap.interval) == pytest.approx((2.5, 0.0))


def test_a_single_draw_has_no_interval_and_one_picked_out_of_several_has_a_wider_one():
    scores = scores_of({A: [[1.0], [3.0]], B: [[0.0], [0.0]]})

    assert math.isnan(compare(scores[scores["draw"] == 0]).interval)
    # One degree of freedom: 12.7 leaves 5 % outside, 63.7 leaves 1 %.
    assert compare(scores).interval == pytest.approx(T_95_ONE_DEGREE)
    assert compare(scores, num_comparisons=5).interval == pytest.approx(63.656741)


@pytest.mark.parametrize(
    ("gap", "text"),
    [
        (compare(scores_of({A: [[-1.0], [-1.0]], B: [[1.0], [1.0]]})), "−2.00 ± 0.00"),
        (compare(scores_of({A: [[-1e-9]], B: [[0.0]]})), "+0.00"),
    ],
)
def test_a_difference_has_a_sign_that_is_read_aloud(gap, text):
    assert gap.text() == text


@pytest.mark.parametrize(
    ("draws", "shots", "message"),
    [
        ({B: [[1.0]]}, 1, "no scores of a with the head x for novel at K = 1"),
        ({A: [[5.0]], B: [[1.0]]}, [1, 2], "no scores of a with the head x for novel at K = 2"),
        ({A: [[5], [6], [7]], B: [[1], [2]]}, 1, "a has 3 draws and b 2: draw 2 is not in both"),
        ({A: [[5.0, 6.0], [7.0]], B: [[1.0], [2.0]]}, 1, "a with the head x lacks draws of some"),
    ],
)
def test_rows_that_cannot_be_paired_are_refused(draws, shots, message):
    with pytest.raises(ValueError, match=message):
        compare(scores_of(draws), shots=shots)


def test_two_scores_for_one_draw_and_seed_are_refused():
    scores = scores_of({A: [[5.0]], B: [[1.0]]})

    with pytest.raises(ValueError, match="duplicate"):
        PairedScores(pd.concat([scores, scores]))


# No augmentation 40; the embedding adds 2, the cosine head 3, the GAN 4; copying adds 5 there.
GAIN = scores_of(
    {
        ("none", "centroid"): [[39.0], [41.0]],
        ("none", "cosine"): [[42.0], [44.0]],
        ("PN", "centroid"): [[40.5, 40.5], [43.5, 43.5]],
        ("PN", "cosine"): [[44.0, 44.0], [46.0, 46.0]],
        ("cCov-GAN-PN", "cosine"): [[47.0, 49.0], [49.0, 51.0]],
        ("copy-PN", "cosine"): [[49.0, 49.0], [51.0, 51.0]],
    }
)


def split_of(**changes):
    arguments = {
        "title": "cCov-GAN on PN",
        "augmented": "cCov-GAN-PN",
        "plain": "none",
        "embedded": "PN",
        "head": "cosine",
        "paper_head": "centroid",
        "controls": ["PN", "copy-PN"],
    }
    return split_gain(GAIN, **{**arguments, **changes})


def test_a_gain_is_split_into_parts_that_add_up():
    split = split_of()

    assert split.start == pytest.approx(40.0)
    assert [step.label for step in split.steps] == ["representation", "head", "augmentation"]
    assert [step.difference for step in split.steps] == pytest.approx([2.0, 3.0, 4.0])
    assert split.total.difference == pytest.approx(9.0)
    # Each step starts where the one before it ended.
    ends = [split.total.start, *(step.end for step in split.steps)]
    assert [step.start for step in split.steps] == ends[:-1]
    assert ends[-1] == split.total.end == ("cCov-GAN-PN", "cosine")
    # 1.5 and 2.5 by draw; the augmentation gives 4 in both draws.
    assert split.steps[0].interval == pytest.approx(T_95_ONE_DEGREE * 0.5)
    assert split.steps[2].interval == pytest.approx(0.0, abs=1e-9)
    assert split.steps[2].by_seed == pytest.approx((3.0, 5.0))


def test_controls_start_where_the_augmentation_starts():
    (control,) = split_of().beside  # no augmentation is not a control of itself

    assert (control.start, control.end) == (("PN", "cosine"), ("copy-PN", "cosine"))
    assert control.difference == pytest.approx(5.0)
    assert split_of(embedded=None).beside[-1].start == ("none", "cosine")


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"embedded": None}, {"head": 3.0, "augmentation": 6.0}),
        ({"embedded": None, "paper_head": "cosine"}, {"augmentation": 6.0}),
    ],
)
def test_a_step_that_changes_nothing_is_left_out(changes, steps):
    found = {step.label: step.difference for step in split_of(**changes).steps}

    assert found == pytest.approx(steps)


def test_a_row_without_scores_is_named():
    with pytest.raises(ValueError, match="no scores of PN with the head knn"):
        split_of(head="knn")

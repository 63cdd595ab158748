"""Parts of a gain, on scores whose differences one can take by hand."""

import math

import pandas as pd
import pytest

from cpaan.report.gains import PairedScores, compare, split_gain

T_95_ONE_DEGREE, T_95_TWO_DEGREES = 12.706205, 4.302653  # Student's t, from a printed table

Draws = list[list[float]]


def scores_of(
    rows: dict[tuple[str, str], Draws], *, column: str = "novel", shots: int = 1, seed: int = 0
) -> pd.DataFrame:
    """Top-5 by row and head, draw, and seed; top-1 is half of it."""
    return pd.DataFrame(
        {
            "method": method,
            "head": head,
            "column": column,
            "shots": shots,
            "draw": draw,
            "seed": seed + number,
            "top1": value / 2,
            "top5": value,
        }
        for (method, head), draws in rows.items()
        for draw, seeds in enumerate(draws)
        for number, value in enumerate(seeds)
    )


def test_a_step_is_the_mean_of_differences_by_draw():
    # Means over seeds differ by 1, 2 and 3, whatever the draw.
    scores = scores_of(
        {
            ("new", "linear"): [[10.0, 12.0], [31.0, 33.0], [62.0, 64.0]],
            ("old", "centroid"): [[10.0, 10.0], [30.0, 30.0], [60.0, 60.0]],
        }
    )

    step = compare(scores, ("new", "linear"), ("old", "centroid"), "novel", 1)

    assert step.difference == pytest.approx(2.0)
    assert step.interval == pytest.approx(T_95_TWO_DEGREES * 1.0 / 3**0.5)
    assert (step.start, step.end) == (("old", "centroid"), ("new", "linear"))
    assert step.by_seed == pytest.approx((1.0, 3.0))
    by_top1 = compare(scores, ("new", "linear"), ("old", "centroid"), "novel", 1, "top1")
    assert by_top1.difference == pytest.approx(1.0)


def test_an_untrained_row_stands_beside_each_seed_of_a_trained_one():
    scores = scores_of(
        {("GAN", "linear"): [[11.0, 14.0], [21.0, 24.0]], ("none", "linear"): [[10.0], [20.0]]}
    )

    forth = compare(scores, ("GAN", "linear"), ("none", "linear"), "novel", 1)
    back = compare(scores, ("none", "linear"), ("GAN", "linear"), "novel", 1)

    assert forth.by_seed == pytest.approx((1.0, 4.0))
    assert back.by_seed == pytest.approx((-1.0, -4.0))


def test_of_two_trained_rows_only_common_seeds_are_compared():
    scores = pd.concat(
        [
            scores_of({("a", "linear"): [[10.0, 20.0]]}, seed=0),
            scores_of({("b", "linear"): [[17.0, 99.0]]}, seed=1),
        ]
    )

    assert compare(scores, ("a", "linear"), ("b", "linear"), "novel", 1).by_seed == (3.0,)


def test_several_shots_are_compared_by_their_mean():
    scores = pd.concat(
        [
            scores_of({("a", "x"): [[5.0], [6.0]], ("b", "x"): [[1.0], [1.0]]}, shots=1),
            scores_of({("a", "x"): [[2.0], [1.0]], ("b", "x"): [[1.0], [1.0]]}, shots=5),
        ]
    )

    # By draw: (4 + 1) / 2 and (5 + 0) / 2, so that nothing is left of the spread.
    step = compare(scores, ("a", "x"), ("b", "x"), "novel", [1, 5])

    assert step.difference == pytest.approx(2.5)
    assert step.interval == pytest.approx(0.0, abs=1e-9)


def test_a_single_draw_has_a_difference_but_no_interval():
    scores = scores_of({("a", "x"): [[5.0]], ("b", "x"): [[1.0]]})

    step = compare(scores, ("a", "x"), ("b", "x"), "novel", 1)

    assert step.difference == 4.0
    assert math.isnan(step.interval)


def test_one_picked_out_of_several_has_a_wider_interval():
    scores = scores_of({("a", "x"): [[1.0], [3.0]], ("b", "x"): [[0.0], [0.0]]})
    paired = PairedScores.of(scores)

    alone = paired.compare(("a", "x"), ("b", "x"), "novel", 1)
    picked = paired.compare(("a", "x"), ("b", "x"), "novel", 1, num_comparisons=5)

    # One degree of freedom: 12.7 leaves 5 % outside, 63.7 leaves 1 %.
    assert alone.interval == pytest.approx(T_95_ONE_DEGREE)
    assert picked.interval == pytest.approx(63.656741)
    assert alone.difference == picked.difference == 2.0


@pytest.mark.parametrize(
    ("subject", "column", "shots", "message"),
    [
        (("a", "linear"), "novel", 1, "no scores of a with the head linear"),
        (("c", "x"), "novel", 1, "no scores of c with the head x"),
        (("a", "x"), "all", 1, "a with the head x has no all at K = 1"),
        (("a", "x"), "novel", [1, 2], "a with the head x has no novel at K = 2"),
    ],
)
def test_what_has_no_scores_is_refused(subject, column, shots, message):
    scores = scores_of({("a", "x"): [[5.0]], ("b", "x"): [[1.0]]})

    with pytest.raises(ValueError, match=message):
        compare(scores, subject, ("b", "x"), column, shots)


def test_draws_that_only_one_of_two_rows_has_are_refused():
    scores = scores_of({("a", "x"): [[5.0], [6.0], [7.0]], ("b", "x"): [[1.0], [2.0]]})

    with pytest.raises(ValueError, match="a has 3 draws and b 2: draw 2 is not in both"):
        compare(scores, ("a", "x"), ("b", "x"), "novel", 1)


def test_a_seed_that_lacks_a_draw_is_refused():
    scores = scores_of({("a", "x"): [[5.0, 6.0], [7.0]], ("b", "x"): [[1.0], [2.0]]})

    with pytest.raises(ValueError, match="a with the head x lacks draws of some seeds"):
        compare(scores, ("a", "x"), ("b", "x"), "novel", 1)


def test_two_scores_for_one_draw_and_seed_are_refused():
    scores = scores_of({("a", "x"): [[5.0]], ("b", "x"): [[1.0]]})

    with pytest.raises(ValueError, match="two scores for a, x, novel, 1, 0, 0"):
        compare(pd.concat([scores, scores]), ("a", "x"), ("b", "x"), "novel", 1)


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


def split_of(scores: pd.DataFrame = GAIN, **changes):
    arguments = {
        "title": "cCov-GAN on PN",
        "augmented": "cCov-GAN-PN",
        "plain": "none",
        "embedded": "PN",
        "head": "cosine",
        "paper_head": "centroid",
        "controls": ["copy-PN"],
    }
    return split_gain(scores, **{**arguments, **changes})


def test_a_gain_is_split_into_representation_head_and_augmentation():
    split = split_of()

    assert (split.title, split.column, split.shots) == ("cCov-GAN on PN", "novel", 1)
    assert split.start == pytest.approx(40.0)
    assert [step.label for step in split.steps] == ["representation", "head", "augmentation"]
    assert [step.difference for step in split.steps] == pytest.approx([2.0, 3.0, 4.0])
    # 1.5 and 2.5 by draw; the augmentation gives 4 in both draws.
    intervals = [step.interval for step in split.steps]
    assert intervals[0] == pytest.approx(T_95_ONE_DEGREE * 0.5)
    assert intervals[2] == pytest.approx(0.0, abs=1e-9)
    assert split.steps[-1].by_seed == pytest.approx((3.0, 5.0))
    assert (split.total.start, split.total.end) == (("none", "centroid"), ("cCov-GAN-PN", "cosine"))
    assert split.total.difference == pytest.approx(9.0)


def test_each_step_starts_where_the_one_before_it_ended():
    split = split_of()

    ends = [split.total.start, *(step.end for step in split.steps)]
    assert [step.start for step in split.steps] == ends[:-1]
    assert ends[-1] == split.total.end
    assert sum(step.difference for step in split.steps) == pytest.approx(split.total.difference)


def test_controls_start_where_the_augmentation_starts():
    (control,) = split_of().beside

    assert (control.label, control.start, control.end) == (
        "copy-PN",
        ("PN", "cosine"),
        ("copy-PN", "cosine"),
    )
    assert control.difference == pytest.approx(5.0)


def test_no_augmentation_is_no_control_of_itself():
    assert [step.label for step in split_of(controls=["PN", "copy-PN"]).beside] == ["copy-PN"]


def test_without_an_embedding_there_is_no_step_of_the_representation():
    split = split_of(embedded=None)

    assert [step.label for step in split.steps] == ["head", "augmentation"]
    assert [step.difference for step in split.steps] == pytest.approx([3.0, 6.0])
    assert split.beside[0].start == ("none", "cosine")


def test_with_the_paper_s_head_there_is_no_step_of_the_head():
    split = split_of(paper_head="cosine", embedded=None)

    assert [step.label for step in split.steps] == ["augmentation"]
    assert split.start == pytest.approx(43.0)


def test_all_rows_that_are_missing_are_named_at_once():
    with pytest.raises(
        ValueError, match="no scores of cCov-GAN-PN with the head knn, mean-shift with the head knn"
    ):
        split_of(
            pd.concat([GAIN, scores_of({("PN", "knn"): [[1.0], [2.0]]})]),
            head="knn",
            controls=["mean-shift"],
        )

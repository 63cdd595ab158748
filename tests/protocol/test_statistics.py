import pandas as pd
import pytest

from cpaan.protocol.statistics import paired_differences, summarise
from helpers.frames import frame_of

T_95_TWO_DEGREES = 4.302653  # Student's t, from a printed table
NONE, COPY = ("none", "knn"), ("copy", "knn")


def test_the_interval_is_over_draws_of_means_over_seeds_and_one_draw_has_none():
    # Means over seeds: 10, 20, 30; their standard deviation is 10.
    draws = {NONE: [[9.0, 11.0], [18.0, 22.0], [27.0, 33.0]], COPY: [9.0]}
    scores = frame_of({row: {("novel", 1): each} for row, each in draws.items()})

    cell, single = summarise(scores).to_dict(orient="records")

    assert cell["top5_mean"] == pytest.approx(20.0)
    assert cell["top1_mean"] == pytest.approx(10.0)
    assert cell["top5_std_draws"] == pytest.approx(10.0)
    assert cell["top5_std_seeds"] == pytest.approx(8**0.5)  # of 18 and 22
    assert cell["top5_interval"] == pytest.approx(T_95_TWO_DEGREES * 10.0 / 3**0.5)
    assert single["top5_mean"] == 9.0
    assert pd.isna([single["top5_interval"], single["top5_std_draws"]]).all()


def test_differences_are_taken_draw_by_draw():
    # Draws differ by tens of points, but only the differences of methods count: 1, 2 and 3.
    draws = {NONE: [10.0, 30.0, 60.0], COPY: [11.0, 32.0, 63.0]}
    scores = frame_of({row: {("novel", 1): each} for row, each in draws.items()})

    (cell,) = paired_differences(scores, "none").to_dict(orient="records")

    assert (cell["method"], cell["head"]) == ("copy", "knn")
    assert cell["top5_difference"] == pytest.approx(2.0)
    assert cell["top5_interval"] == pytest.approx(T_95_TWO_DEGREES * 1.0 / 3**0.5)


def test_a_row_is_compared_with_the_same_head_or_with_a_named_one_that_there_is():
    means = {("none", "centroid"): 10.0, ("none", "linear"): 20.0, ("copy", "linear"): 23.0}
    scores = frame_of({row: {("novel", 1): top5} for row, top5 in means.items()})

    assert paired_differences(scores, "none")["top5_difference"].tolist() == [3.0]
    named = paired_differences(scores, "none/centroid")
    assert named["top5_difference"].tolist() == [10.0, 13.0]
    with pytest.raises(ValueError, match=r"no row 'none/knn' .* the rows are none/centroid, none"):
        paired_differences(scores, "none/knn")

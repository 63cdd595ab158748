import pandas as pd
import pytest

from cpaan.report.figures.accuracy import (
    accuracy_against_diversity,
    accuracy_against_shots,
    draw_accuracy,
)
from cpaan.report.figures.picture import PALE, look_of
from helpers.frames import scores_of

SCORES = scores_of(
    {
        ("PN", "centroid"): {1: [40, 42], 5: [60, 62]},
        ("PN", "linear"): {1: [90, 90], 5: [90, 90]},
        ("FH", "linear"): {1: [44, 46], 5: [58, 60]},
        ("copy", "linear"): {1: [30, 32], 5: [50, 52]},
        ("an ablation", "linear"): {1: [99, 99], 5: [99, 99]},
    }
)
HEADS = {"PN": "centroid", "FH": "linear", "copy": "linear"}


def test_lines_are_means_over_draws_with_the_head_of_each_row():
    picture = accuracy_against_shots(SCORES, HEADS, ["PN", "FH"])

    novel, every = picture.figure.axes
    lines = {line.get_color(): list(line.get_ydata()) for line in novel.lines}
    assert lines == {PALE: [31, 51], look_of(0).color: [41, 61], look_of(1).color: [45, 59]}
    assert [list(x.get_ydata()) for x in every.lines if x.get_color() == PALE] == [[41, 61]]
    assert {text.get_text() for text in novel.texts} == {"PN", "FH"}
    assert "At K = 1, of 3 rows, FH has the highest LSL, 45.0 %" in picture.alt
    assert "At K = 5, of 3 rows, PN has the highest LSL, 61.0 %" in picture.alt
    assert "the other 1 rows" in picture.caption


def test_a_row_without_scores_is_named_and_a_single_draw_is_drawn():
    with pytest.raises(ValueError, match="FH has no scores with the head own"):
        accuracy_against_shots(SCORES, {**HEADS, "FH": "own"}, ["FH"])
    one_draw = scores_of({("PN", "centroid"): {1: [40], 5: [60]}})
    assert "40.0 %" in accuracy_against_shots(one_draw, HEADS, ["PN"]).alt


def test_an_evaluation_is_drawn_by_head_as_a_file_of_its_own():
    content = draw_accuracy(SCORES)

    assert content.startswith("<?xml")
    assert all(title in content for title in ("LSL, centroid", "GLSL, linear", "FH", "copy"))


def diversity_of(ratios: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        (name, 1, draw, 0, value) for name, of in ratios.items() for draw, value in enumerate(of)
    ]
    return pd.DataFrame(rows, columns=["method", "shots", "draw", "seed", "ratio"])


def test_generators_are_where_their_diversity_and_their_accuracy_are():
    diversity = diversity_of({"FH": [0.8, 1.0], "copy": [1.4, 1.4], "another": [1, 1]})

    picture = accuracy_against_diversity(SCORES, diversity, HEADS)

    assert picture.alt == (
        "At K = 1, of 2 generators, FH has the highest LSL, 45.0 %, with a diversity of 0.90 times "
        "the real one; FH is nearest to the real diversity, with 0.90 and an LSL of 45.0 %."
    )
    novel = picture.figure.axes[0]
    (points,) = [line for line in novel.lines if line.get_marker() == "o"]
    assert sorted(map(tuple, points.get_xydata())) == [
        pytest.approx((0.9, 45)),
        pytest.approx((1.4, 31)),
    ]
    assert {text.get_text() for text in novel.texts} == {"FH", "copy", "real examples"}
    with pytest.raises(ValueError, match="no row has scores and a diversity at K = 5"):
        accuracy_against_diversity(SCORES, diversity, HEADS, 5)

import pytest

from cpaan.report.figures.accuracy import accuracy_against_shots, draw_accuracy
from cpaan.report.figures.style import PALE, look_of
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
    novel, every = accuracy_against_shots(SCORES, HEADS, ["PN", "FH"]).figure.axes

    lines = {line.get_color(): list(line.get_ydata()) for line in novel.lines}
    assert lines == {
        PALE: [31, 51],
        look_of(0).colour: [41, 61],
        look_of(1).colour: [45, 59],
    }
    assert [list(line.get_ydata()) for line in every.lines if line.get_color() == PALE] == [
        [41, 61]
    ]
    assert [text.get_text() for text in novel.texts] == ["PN", "FH"]


def test_the_words_say_which_row_is_best_where():
    picture = accuracy_against_shots(SCORES, HEADS, ["PN", "FH"])

    assert "At K = 1, of 3 rows, FH has the highest LSL, 45.0 %" in picture.alt
    assert "At K = 5, of 3 rows, PN has the highest LSL, 61.0 %" in picture.alt
    assert "the other 1 rows" in picture.caption


def test_a_row_without_scores_is_named():
    with pytest.raises(ValueError, match="FH has no scores with the head own"):
        accuracy_against_shots(SCORES, {**HEADS, "FH": "own"}, ["FH"])


def test_a_single_draw_has_no_band_and_is_drawn():
    scores = scores_of({("PN", "centroid"): {1: [40], 5: [60]}})

    assert "40.0 %" in accuracy_against_shots(scores, HEADS, ["PN"]).alt


def test_an_evaluation_is_drawn_by_head_as_a_file_of_its_own():
    content = draw_accuracy(SCORES)

    assert content.startswith("<?xml")
    assert all(title in content for title in ("LSL, centroid", "GLSL, linear", "FH", "copy"))

import pytest

from cpaan.report.figures.differences import differences
from cpaan.report.figures.forest import with_interval
from cpaan.report.figures.style import look_of
from helpers.frames import scores_of

# Draws differ by tens of points. The subject is 4 better than PN, 2 worse than FH, and better or
# worse than copy by turns.
SCORES = scores_of(
    {
        ("ours", "cosine"): {1: [20, 40, 60]},
        ("PN", "centroid"): {1: [15.9, 36.0, 56.1]},
        ("FH", "linear"): {1: [22.1, 42.0, 61.9]},
        ("copy", "linear"): {1: [17, 43, 60]},
    }
)
HEADS = {"ours": "cosine", "PN": "centroid", "FH": "linear", "copy": "linear"}


def test_the_subject_is_compared_draw_by_draw_whatever_the_heads():
    picture = differences(SCORES, "ours", HEADS, list(HEADS))

    assert (
        picture.alt == "At K = 1, of 3 rows, ours is in LSL ahead of 1, behind 1, unclear for 1; "
        "in GLSL ahead of 1, behind 1, unclear for 1."
    )
    novel, _ = picture.figure.axes
    marks = [line for line in novel.lines if line.get_marker() == look_of(0).marker]
    assert [line.get_xdata()[0] for line in marks] == pytest.approx([4, -2, 0])
    assert [line.get_markerfacecolor() for line in marks] == [look_of(0).colour] * 2 + ["none"]
    assert [label.get_text() for label in novel.get_yticklabels()] == ["PN", "FH", "copy"]


def test_shots_without_scores_are_passed_over():
    picture = differences(SCORES, "ours", HEADS, ["PN"], shots=(1, 5))

    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["K = 1"]


def test_a_subject_alone_or_without_scores_is_refused():
    with pytest.raises(ValueError, match="no row to compare ours with"):
        differences(SCORES, "ours", HEADS, ["ours"])
    with pytest.raises(ValueError, match="MN has no scores with the head None"):
        differences(SCORES, "ours", HEADS, ["MN"])


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((1.25, 0.31), "+1.2 ± 0.3"), ((-0.04, 0.2), "+0.0 ± 0.2"), ((-2, float("nan")), "−2.0")],
)
def test_a_difference_has_a_sign_that_is_read_aloud(numbers, text):
    assert with_interval(*numbers) == text

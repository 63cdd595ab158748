import math

import pandas as pd
import pytest

from cpaan.report.figures.differences import (
    differences,
    gain_by_idea,
    gain_by_neighbours,
    gain_steps,
)
from cpaan.report.figures.picture import look_of
from cpaan.report.gains import GainSplit, PairedDifference
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


def marks_of(axes):
    return [line for line in axes.lines if line.get_marker() in ("o", "s")]


def places_of(axes):
    return [float(line.get_xdata()[0]) for line in marks_of(axes)]


def test_the_subject_is_compared_draw_by_draw_whatever_the_heads():
    picture = differences(SCORES, "ours", HEADS, list(HEADS), shots=(1, 5))

    assert picture.alt == (
        "At K = 1, of 3 rows, ours is in LSL ahead of 1, behind 1, unclear for 1; "
        "in GLSL ahead of 1, behind 1, unclear for 1."
    )
    novel, _ = picture.figure.axes
    assert places_of(novel) == pytest.approx([4, -2, 0])
    blue = look_of(0).color
    assert [line.get_markerfacecolor() for line in marks_of(novel)] == [blue, blue, "none"]
    assert [label.get_text() for label in novel.get_yticklabels()] == ["PN", "FH", "copy"]
    (legend,) = picture.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["K = 1"], "no scores at five shots"


def test_a_subject_alone_or_without_scores_is_refused():
    with pytest.raises(ValueError, match="no row to compare ours with"):
        differences(SCORES, "ours", HEADS, ["ours"])
    with pytest.raises(ValueError, match="no scores of MN"):
        differences(SCORES, "ours", HEADS, ["MN"])


VARIANTS = scores_of(
    {
        ("none", "linear"): {1: [20, 40, 60], 5: [30, 50, 70]},
        ("soft", "linear"): {1: [24, 44, 64], 5: [31, 51, 71]},
        ("hard 5", "linear"): {1: [21, 41, 61], 5: [31, 51, 71]},
        ("hard 5", "cosine"): {1: [99, 99, 99], 5: [99, 99, 99]},
    }
)


def test_gains_are_over_the_reference_with_the_same_head():
    labels = {"NBS-H, k = 5": "hard 5", "NBS-S": "soft"}

    picture = gain_by_neighbours(VARIANTS, labels, "linear", "none")

    assert picture.alt == "Gain in LSL at K = 1. NBS-S: +4.0 ± 0.0; NBS-H, k = 5: +1.0 ± 0.0."
    assert places_of(picture.figure.axes[0]) == pytest.approx([1, 4, 1, 1])
    assert "that of none with the same linear head" in picture.caption
    with pytest.raises(ValueError, match="no scores of soft with the head cosine"):
        gain_by_neighbours(VARIANTS, labels, "cosine", "hard 5")


def test_what_an_idea_gives_is_what_is_lost_without_it_worst_first():
    labels = {"hard ones": "hard 5", "without neighbours": "none"}

    picture = gain_by_idea(VARIANTS, labels, "linear", "soft")

    assert picture.alt == (
        "Difference in LSL at K = 1. without neighbours: −4.0 ± 0.0; hard ones: −3.0 ± 0.0."
    )


def test_a_variant_with_one_seed_is_compared_with_that_seed():
    one_seed = VARIANTS[(VARIANTS["method"] == "soft") & (VARIANTS["seed"] == 0)]
    scores = pd.concat([VARIANTS, one_seed.assign(method="soft again")])

    picture = gain_by_idea(scores, {"nothing taken away": "soft again"}, "linear", "soft")

    # The other seed of the whole is a point above this one.
    assert places_of(picture.figure.axes[0]) == pytest.approx([0, 0])
    assert "one training seed" in picture.caption


PN, NONE, OURS, COPY = [("PN", "centroid")] + [(row, "cosine") for row in ("none", "ours", "copy")]
SPLIT = GainSplit(
    title="ours over PN",
    column="novel",
    shots=1,
    start=40.0,
    steps=(
        PairedDifference("representation", PN, NONE, -1.0, 0.5),
        PairedDifference("augmentation", NONE, OURS, 4.0, 0.3),
    ),
    beside=(PairedDifference("copy", NONE, COPY, 1.5, math.nan),),
    total=PairedDifference("total", PN, OURS, 3.0, 0.6),
)


def test_every_bar_of_a_gain_begins_where_the_one_before_it_ends():
    picture = gain_steps([SPLIT])

    (axes,) = picture.figure.axes
    # What could stand in the place of the augmentation begins where that does.
    assert [bar.get_x() for bar in axes.patches] == pytest.approx([40, 39, 39])
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == pytest.approx([39, 43, 40.5])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["PN, centroid", "representation", "augmentation", "ours, cosine", "copy"]
    assert "+1.5" in {text.get_text() for text in axes.texts}
    assert picture.alt == (
        "ours over PN, LSL at K = 1: from 40.0 % to 43.0 %, of which representation −1.0 ± 0.5, "
        "augmentation +4.0 ± 0.3."
    )
    assert len(gain_steps([SPLIT, SPLIT]).figure.axes) == 2
    with pytest.raises(ValueError, match="no gain to draw"):
        gain_steps([])

import pytest

from cpaan.report.figures.gains import gain_steps
from cpaan.report.gains import GainSplit
from cpaan.report.gains import PairedDifference as Step

PN, NONE, OURS, COPY = (
    ("PN", "centroid"),
    ("none", "cosine"),
    ("ours", "cosine"),
    ("copy", "cosine"),
)
SPLIT = GainSplit(
    title="ours over PN",
    column="novel",
    shots=1,
    start=40.0,
    steps=(
        Step("representation", PN, NONE, -1.0, 0.5),
        Step("augmentation", NONE, OURS, 4.0, 0.3),
    ),
    beside=(Step("copy", NONE, COPY, 1.5, float("nan")),),
    total=Step("total", PN, OURS, 3.0, 0.6),
)


def test_every_bar_begins_where_the_one_before_it_ends():
    (axes,) = gain_steps([SPLIT]).figure.axes

    starts = [bar.get_x() for bar in axes.patches]
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    # What could stand in the place of the augmentation begins where that does.
    assert starts == pytest.approx([40, 39, 39])
    assert ends == pytest.approx([39, 43, 40.5])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["PN, centroid", "representation", "augmentation", "ours, cosine", "copy"]


def test_the_words_have_every_step():
    picture = gain_steps([SPLIT])

    assert (
        picture.alt == "ours over PN, LSL at K = 1: from 40.0 % to 43.0 %, of which "
        "representation −1.0 ± 0.5, augmentation +4.0 ± 0.3."
    )
    assert "+1.5" in {text.get_text() for text in picture.figure.axes[0].texts}


def test_there_is_a_panel_for_each_split_and_none_for_nothing():
    assert len(gain_steps([SPLIT, SPLIT]).figure.axes) == 2
    with pytest.raises(ValueError, match="no gain to draw"):
        gain_steps([])

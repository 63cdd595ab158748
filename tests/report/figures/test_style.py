import matplotlib as mpl
import pytest
from matplotlib.text import Text

from cpaan.report.figures.style import (
    drawing,
    label_ends,
    look_of,
    new_figure,
    number_ticks,
    spread,
)


def test_places_that_are_far_apart_stay():
    assert spread([0.5, 0.1, 0.9], gap=0.2) == [0.5, 0.1, 0.9]


def test_places_that_touch_move_apart_around_their_mean_and_keep_their_order():
    assert spread([0.52, 0.48], gap=0.2) == pytest.approx([0.6, 0.4])
    # The first two would reach into the third, which joins them.
    assert spread([0.40, 0.42, 0.55], gap=0.2) == pytest.approx([0.2567, 0.4567, 0.6567], abs=1e-3)


def test_places_stay_between_the_limits():
    assert spread([1.3, 0.98, 0.97], gap=0.1, low=0, high=1) == pytest.approx([1.0, 0.9, 0.8])
    assert spread([-0.2, 0.05, 0.8], gap=0.1, low=0, high=1) == pytest.approx([0.0, 0.1, 0.8])


def test_no_two_things_of_a_picture_look_alike_in_colour_or_otherwise():
    looks = [look_of(number) for number in range(21)]

    assert len(set(looks)) == 21
    assert len({(look.marker, look.dashes) for look in looks}) == 21


def test_the_users_own_style_is_neither_used_nor_changed():
    with mpl.rc_context({"font.size": 33.0, "axes.grid": False}):
        with drawing():
            assert mpl.rcParams["font.size"] != 33.0
        assert mpl.rcParams["font.size"] == 33.0
        assert not mpl.rcParams["axes.grid"]


@pytest.mark.parametrize(
    ("limits", "labels"), [((2, 30), ["2", "5", "10", "20"]), ((0.001, 10), ["0.001", "0.01"])]
)
def test_logarithmic_axes_have_plain_numbers(limits, labels):
    axes = new_figure(height=2).subplots()
    axes.set(xscale="log", xlim=limits)
    number_ticks(axes.xaxis)

    texts = [label.get_text() for label in axes.get_xticklabels()]

    shown = [text for text in texts if limits[0] <= float(text) <= limits[1]]
    assert shown[: len(labels)] == labels


def test_labels_of_equal_ends_do_not_lie_on_each_other():
    axes = new_figure(height=2).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))

    label_ends(axes, [(name, "#000000", 1.0, 0.999) for name in ("one", "two", "three")])

    axes.figure.draw_without_rendering()
    # Without the lines to the points.
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[n + 1 :])
    assert max(box.y1 for box in boxes) < axes.get_window_extent().y1 + 10

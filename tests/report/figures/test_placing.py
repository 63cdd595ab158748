import pytest
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from cpaan.report.figures.placing import label_points
from cpaan.report.figures.style import new_figure


@pytest.fixture
def axes():
    axes = new_figure(height=3).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return axes


def boxes_of(axes: Axes) -> list[Bbox]:
    """Return the room that labels take, without the lines to their points."""
    axes.figure.draw_without_rendering()
    return [Text.get_window_extent(text) for text in axes.texts]


def test_labels_of_neighbours_hide_neither_each_other_nor_points(axes):
    points = {f"point {n}": (0.5 + 0.01 * n, 0.5) for n in range(5)}

    label_points(axes, points)

    boxes = boxes_of(axes)
    assert [text.get_text() for text in axes.texts] == list(points)
    assert not any(one.overlaps(other) for n, one in enumerate(boxes) for other in boxes[n + 1 :])
    for place in axes.transData.transform(list(points.values())):
        assert not any(box.contains(*place) for box in boxes)


def test_labels_stay_within_the_panel_and_off_its_lines(axes):
    label_points(axes, {"at the edge": (0.99, 0.5), "left of a line": (0.4, 0.2)}, lines=[0.45])

    edge, other = boxes_of(axes)
    assert edge.x1 < axes.get_window_extent().x1
    assert other.x1 < axes.transData.transform((0.45, 0))[0]

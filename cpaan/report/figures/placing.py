"""Where labels of points stand: near their points, and not on each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from cpaan.report.figures.style import INK, SMALL

_DISTANCES = (6.0, 14.0, 24.0, 36.0)  # points between a mark and its label
_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
_ALIGNED = {-1: ("right", "top"), 0: ("center", "center"), 1: ("left", "bottom")}


class _Place(NamedTuple):
    """Where a label may stand: to which side of its point, how far, and what it then covers."""

    across: int
    up: int
    distance: float
    offset: tuple[float, float]  # in points
    box: Bbox


def label_points(
    axes: Axes, points: Mapping[str, tuple[float, float]], lines: Sequence[float] = ()
) -> None:
    """Write the label of each point beside it, where it hides neither labels nor points.

    Of the places around a point, near ones and, with a line to the point, farther ones, the one
    is taken where the label hides least.

    Args:
        axes: The panel, with its final limits.
        points: By label, in the panel's data coordinates.
        lines: Vertical lines of the panel, which no label should cross.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    panel = axes.get_window_extent()
    places = axes.transData.transform(list(points.values())).tolist()
    centres = {label: (x, y) for label, (x, y) in zip(points, places, strict=True)}
    mark = 8 * scale
    taken = [Bbox.from_bounds(x - mark / 2, y - mark / 2, mark, mark) for x, y in places]
    for line in lines:
        x = axes.transData.transform((line, 0))[0]
        taken.append(Bbox.from_extents(x - scale, panel.y0, x + scale, panel.y1))

    def cost(place: _Place) -> float:
        hidden = sum(_common(place.box, other) for other in taken)
        outside = place.box.width * place.box.height - _common(place.box, panel)
        return hidden + 3 * outside + 0.02 * place.distance * place.box.height

    for label, centre in centres.items():
        text = axes.annotate(label, points[label], size=SMALL)
        best = min(_places(centre, text.get_window_extent(), scale), key=cost)
        taken.append(best.box)
        text.remove()
        axes.annotate(
            label,
            points[label],
            xytext=best.offset,
            textcoords="offset points",
            size=SMALL,
            ha=_ALIGNED[best.across][0],
            va=_ALIGNED[best.up][1],
            arrowprops={"arrowstyle": "-", "color": INK, "lw": 0.5, "alpha": 0.5, "shrinkB": 3}
            if best.distance > _DISTANCES[0]
            else None,
        )


def _places(centre: tuple[float, float], size: Bbox, scale: float) -> Iterator[_Place]:
    """Yield places around a point, near ones first.

    Args:
        centre: The point, in pixels.
        size: Of the label, in pixels.
        scale: Pixels a point.
    """
    for distance in _DISTANCES:
        for across, up in _DIRECTIONS:
            # As far on a diagonal as on an axis.
            shift = distance * (0.75 if across and up else 1.0)
            left = centre[0] + across * shift * scale - (1 - across) / 2 * size.width
            bottom = centre[1] + up * shift * scale - (1 - up) / 2 * size.height
            box = Bbox.from_bounds(left, bottom, size.width, size.height)
            yield _Place(across, up, distance, (across * shift, up * shift), box)


def _common(one: Bbox, other: Bbox) -> float:
    """Return the area that two boxes share."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)

"""How all pictures look: colours, sizes, and where labels stand."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

INK = "#262626"
"""Text, axes and whatever is to be as strong as these: light on a dark page."""
PALE = "#999999"
"""What is there for comparison only; seen on light and on dark pages."""
# Okabe and Ito's colours, which people with any kind of colour vision can tell apart. Without
# yellow, which is lost on a white page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
DASHES = ("-", "--", ":")  # for lines beyond these colours
PANELS = {"novel": "LSL", "all": "GLSL"}
WIDTH = 5.6
"""Inches: scaled to the width of a phone, the text is still large enough to be read."""
SMALL = 8.5
"""Size in points of labels beside points and lines."""

_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    # From the start: a colour bar of a figure without it would not fit in later.
    "figure.constrained_layout.use": True,
    # Text stays text: small, searchable, and in the reader's own font.
    "svg.fonttype": "none",
    "svg.hashsalt": "cpaan",
}


class Look(NamedTuple):
    """How one of several things is told from the others: never by its colour alone."""

    colour: str
    marker: str
    dashes: str


def look_of(number: int) -> Look:
    """Return the look of the first (0), second, ... thing that is drawn."""
    colours = (*COLOURS, INK)
    return Look(
        colours[number % len(colours)],
        MARKERS[number % len(MARKERS)],
        DASHES[number // len(colours) % len(DASHES)],
    )


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in our style, whatever the user's own is; that is left as it was."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure of a size in inches whose panels find their places by themselves."""
    return Figure(figsize=(width, height), layout="constrained")


def number_ticks(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis out, without powers of ten; its limits are final."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


def shots_axis(axes: Axes, shots: Sequence[int]) -> None:
    """Make the horizontal axis one of the numbers of shots."""
    axes.set_xscale("log")
    axes.set_xticks(shots, [str(k) for k in shots])
    axes.minorticks_off()


def spread(
    places: Sequence[float], gap: float, low: float = -math.inf, high: float = math.inf
) -> list[float]:
    """Move places apart until neighbours are a gap apart: in their order, as little as possible.

    Args:
        places: In any order.
        gap: The least distance of two of them.
        low: None is below this, if there is room.
        high: None is above this.

    Returns:
        The new places, in the order of ``places``. Those that are far from all others stay.
    """
    order = sorted(range(len(places)), key=lambda number: places[number])
    # Each group is laid out evenly around the mean of its members' wishes; groups that touch join.
    groups: list[tuple[float, list[int]]] = []
    for number in order:
        centre, members = min(max(places[number], low), high), [number]
        while groups and centre - groups[-1][0] < gap * (len(members) + len(groups[-1][1])) / 2:
            members = groups.pop()[1] + members
            centre = sum(places[member] for member in members) / len(members)
            half = gap * (len(members) - 1) / 2
            centre = min(max(centre, low + half), high - half)
        groups.append((centre, members))
    moved = list(places)
    for centre, members in groups:
        for position, member in enumerate(members):
            moved[member] = centre + gap * (position - (len(members) - 1) / 2)
    return moved


def label_ends(axes: Axes, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Write labels beside the right edge of a panel, joined to the points that they name.

    Args:
        axes: The panel, with its final limits.
        ends: Label, colour, and the point, of each.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    height = axes.get_window_extent().height * 72 / figure.dpi
    to_panel = axes.transData - axes.transAxes
    wished = [float(to_panel.transform((x, y))[1]) for _, _, x, y in ends]
    places = spread(wished, 1.2 * SMALL / height, low=0, high=1)
    for (label, colour, x, y), place in zip(ends, places, strict=True):
        axes.annotate(
            label,
            xy=(x, y),
            xytext=(1.06, place),
            textcoords="axes fraction",
            va="center",
            color=colour,
            size=SMALL,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "lw": 0.6,
                "alpha": 0.6,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 3,
            },
        )

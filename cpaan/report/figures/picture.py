"""The style of all pictures, their labels, and the forms in which a picture is written."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

INK = "#262626"
"""Text, axes and what should be as strong as these; on a page, the page's text colour."""
PALE = "#999999"
"""What is there for comparison only; visible on light and on dark pages."""
# Okabe and Ito's colours, which people with any kind of colour vision can tell apart. Without
# yellow, which is lost on a white page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH = 5.6
"""Inches: scaled to the width of a phone, the text is still legible."""
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
    "svg.fonttype": "none",  # text stays text: small, searchable, and in the reader's own font
    "svg.hashsalt": "cpaan",
}
_WITHOUT_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}
_PIXELS_A_POINT = 1.6  # on a screen, where there is room
_LABEL_PLACES = tuple(product((6.0, 14.0, 24.0, 36.0), (1, -1, 0), (0, 1, -1)))
_ALIGNED = {-1: ("right", "top"), 0: ("center", "center"), 1: ("left", "bottom")}


class Look(NamedTuple):
    """How one of several lines is told from the others: never by its colour alone."""

    color: str
    marker: str
    linestyle: str


def look_of(number: int) -> Look:
    """Return the look of the first (0), second, ... thing that is drawn."""
    colours, markers, dashes = (*COLOURS, INK), "osD^vPX", ("-", "--", ":")
    return Look(colours[number % 7], markers[number % 7], dashes[number // 7 % 3])


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in our style, whatever the user's own style is."""
    with matplotlib.style.context(["default", _STYLE]):
        yield


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure of a size in inches, with constrained layout."""
    return Figure(figsize=(width, height), layout="constrained")


def number_ticks(axis: Axis) -> None:
    """Write the numbers of a logarithmic axis out, without powers of ten; its limits are final."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(NullFormatter())


def hide_ticks(axes: Axes) -> None:
    """Frame a panel of points whose coordinates mean nothing."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, alpha=0.3)


def write_beside(
    axes: Axes, text: str, place: tuple[float, float], offset: tuple[float, float], **style: Any
) -> None:
    """Write a text at a distance in points from a place in data coordinates."""
    style = {"size": SMALL, **style}
    axes.annotate(text, place, xytext=offset, textcoords="offset points", **style)


def label_ends(axes: Axes, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Write labels beside the right edge of a panel, joined to the points that they name.

    The panel has its final limits. An end is a label, its colour, and the point.
    """
    # Imported here, because every evaluation imports this module and few draw such labels.
    from scipy.optimize import isotonic_regression

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    gap = 1.2 * SMALL * figure.dpi / 72 / axes.get_window_extent().height
    wished = (axes.transData - axes.transAxes).transform([end[2:] for end in ends])[:, 1]
    order = np.argsort(wished, kind="stable")
    # The nearest heights (least squares) in the same order that are a gap apart, within the panel.
    steps = gap * np.arange(len(ends))
    heights = isotonic_regression(wished[order] - steps).x.clip(0, max(0, 1 - steps[-1])) + steps
    for number, height in zip(order, heights, strict=True):
        label, colour, *point = ends[number]
        arrow = {"arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6}
        axes.annotate(
            label,
            (point[0], point[1]),
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            color=colour,
            size=SMALL,
            arrowprops={**arrow, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3},
        )


def label_points(
    axes: Axes, points: Mapping[str, tuple[float, float]], lines: Sequence[float] = ()
) -> None:
    """Write the label of each point beside it, where it hides least of other labels and points.

    The panel has its final limits. Labels do not cross vertical ``lines`` either.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale, panel = figure.dpi / 72, axes.get_window_extent()
    marks = axes.transData.transform(list(points.values()))
    taken = [Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale) for x, y in marks]
    for x, _ in axes.transData.transform([(line, 0) for line in lines] or np.empty((0, 2))):
        taken.append(Bbox.from_extents(x - scale, panel.y0, x + scale, panel.y1))
    for label, point in points.items():
        arrow = {"arrowstyle": "-", "color": INK, "lw": 0.5, "alpha": 0.5, "shrinkB": 3}
        text = axes.annotate(
            label, point, (0, 0), textcoords="offset points", size=SMALL, arrowprops=arrow
        )
        text.get_window_extent()  # ties the label's coordinates to its point

        def move(place: tuple[float, int, int], text: Text = text) -> Bbox:
            distance, across, up = place
            shift = distance * (0.75 if across and up else 1.0)  # as far on a diagonal
            text.set_position((across * shift, up * shift))
            text.set(ha=_ALIGNED[across][0], va=_ALIGNED[up][1])
            return Text.get_window_extent(text)

        def cost(place: tuple[float, int, int]) -> float:
            box = move(place)
            outside = box.width * box.height - _overlap(box, panel)
            hidden = sum(_overlap(box, other) for other in taken)
            return hidden + 3 * outside + 0.02 * place[0] * box.height

        best = min((place for place in _LABEL_PLACES if any(place[1:])), key=cost)
        taken.append(move(best))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(best[0] > _LABEL_PLACES[0][0])


def _overlap(one: Bbox, other: Bbox) -> float:
    """Return the area that two boxes share."""
    both = Bbox.intersection(one, other)
    return 0.0 if both is None else float(both.width * both.height)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its words."""

    name: str
    """Of its files, and of all ids within its SVG."""
    title: str
    caption: str
    alt: str
    """The facts, for people who cannot see the figure."""
    figure: Figure

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.name):
            raise ValueError(f"{self.name!r} is not a picture's name: letters, digits and hyphens")
        if not (self.title and self.caption and self.alt):
            raise ValueError(f"the picture {self.name} needs a title, a caption and an alt text")
        # Laid out once: a layout that is computed at every drawing differs a little each time.
        with drawing():
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def svg(self) -> str:
        """Return SVG for an HTML page: in the page's text colour, without a background.

        Its ids begin with the name, so several pictures may be on the same page.
        """
        text = self._save("svg", transparent=True).decode()
        box = re.search(r'viewBox="(\S+ \S+ (\S+) \S+)"', text)
        assert box is not None
        body = text[text.index(">", text.index("<svg")) + 1 :].strip()
        # Rules of a <style> would apply to the whole page.
        body = re.sub(r"(?s)<(metadata|style)\b.*?</\1>", "", body)
        body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", body)
        body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: _rounded(found[0]), body)
        body = body.replace("xlink:href", "href").replace("'DejaVu Sans', ", "")
        width = _PIXELS_A_POINT * float(box[2])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}" width="100%" '
            f'style="max-width: {width:.0f}px; height: auto" stroke-linejoin="round" '
            f'stroke-linecap="butt" role="img" aria-label={quoteattr(self.alt)}>'
            f"<title>{escape(self.title)}</title>{body.replace(INK, 'currentColor')}\n"
        )

    def svg_file(self) -> str:
        """Return SVG that stands alone, on white."""
        return self._save("svg").decode()

    def png(self) -> bytes:
        """Return the picture in pixels, on white."""
        return self._save("png")

    def _save(self, kind: str, *, transparent: bool = False) -> bytes:
        content = io.BytesIO()
        with drawing():
            self.figure.savefig(
                content,
                format=kind,
                dpi=150,
                transparent=transparent,
                facecolor="none" if transparent else "white",
                metadata=_WITHOUT_DATE if kind == "svg" else {"Software": None},
            )
        return content.getvalue()


def _rounded(text: str) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", text)


def slug(name: str) -> str:
    """Return the name of a row as part of a picture's name: letters, digits and hyphens."""
    return re.sub("[^A-Za-z0-9]+", "-", name.replace("+", "-plus")).strip("-")

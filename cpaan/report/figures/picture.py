"""The style of all pictures, their labels, and the forms in which a picture is written."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

INK = "#262626"
"""Text, axes and what should be as strong as these; on a page, the page's text colour."""
GROUND = "#fffffe"
"""The ground of a picture; on a page, the page's."""
PALE = "#999999"
"""What is there for comparison only; visible on light and on dark pages."""
# Okabe and Ito's colours, which people with any kind of colour vision can tell apart. Without
# yellow, which is lost on a white page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH = 5.0
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
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "lines.markersize": 5,
    "svg.fonttype": "none",  # text stays text: small, searchable, and in the reader's own font
    "svg.hashsalt": "cpaan",
}
_WITHOUT_DATE = {"Date": None, "Creator": None, "Format": None, "Type": None}
_PIXELS_A_POINT = 1.6  # on a screen, where there is room


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
        # Colours of lines are too faint for text on a dark page.
        arrow = {"arrowstyle": "-", "color": colour, "lw": 1.2}
        axes.annotate(
            label,
            (point[0], point[1]),
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            size=SMALL,
            arrowprops={**arrow, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3},
        )


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its words."""

    name: str
    """Of its files, and of all ids within its SVG: letters, digits and hyphens."""
    title: str
    caption: str
    alt: str
    """The facts, for people who cannot see the figure."""
    figure: Figure

    def __post_init__(self) -> None:
        # Laid out once: every drawing would compute a slightly different layout.
        with drawing():
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def svg(self) -> str:
        """Return SVG for an HTML page: in the page's text colour, without a background.

        Its ids begin with the name, so several pictures may be on the same page.
        """
        text = self.file("svg", transparent=True).decode()
        box = re.search(r'viewBox="(\S+ \S+ (\S+) \S+)"', text)
        assert box is not None
        body = text[text.index(">", text.index("<svg")) + 1 :].strip()
        # Rules of a <style> would apply to the whole page.
        body = re.sub(r"(?s)<(metadata|style)\b.*?</\1>", "", body)
        # Short numbers, no spaces between elements and no unused ids: half the size.
        body = re.sub(r' (?:d|x|y)="[^"]*"', lambda attribute: _rounded(attribute[0]), body)
        body = re.sub(r">\s+<", "><", body)
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
        body = re.sub(r' id="([^"]+)"', lambda one: one[0] if one[1] in used else "", body)
        body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{self.name}-", body)
        body = body.replace("xlink:href", "href").replace("'DejaVu Sans', ", "")
        body = body.replace(INK, "currentColor").replace(GROUND, "var(--ground)")
        width = _PIXELS_A_POINT * float(box[2])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box[1]}" width="100%" '
            f'style="max-width: {width:.0f}px; height: auto" stroke-linejoin="round" '
            f'stroke-linecap="butt" role="img" aria-label={quoteattr(self.alt)}>'
            f"<title>{escape(self.title)}</title>{body}\n"
        )

    def file(self, kind: str, *, transparent: bool = False) -> bytes:
        """Return a file of the kind svg or png that stands alone, on white if not transparent."""
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

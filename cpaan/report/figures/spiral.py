"""The paper's toy experiment as a picture (its Figure 3)."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from cpaan.data.synthetic import Spiral
from cpaan.gan.spiral import SpiralOutcome
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.style import COLOURS, INK, drawing, new_figure

_NUM_COLUMNS = 3
_OF_BASE, _OF_NOVEL = COLOURS[0:2], COLOURS[2:4]


@drawing()
def draw_spiral(points: Spiral, outcomes: Mapping[str, SpiralOutcome]) -> Picture:
    """Draw the raw spiral and, a panel each, what GANs make of it.

    Pale: the truth; crosses: the novel points that may be used; strong dots: base points
    translated into the novel arms; strong rings: these, translated back.

    Raises:
        ValueError: If there are no outcomes.
    """
    if not outcomes:
        raise ValueError("there are no outcomes of GANs to draw")
    num_rows = -(-(2 + len(outcomes)) // _NUM_COLUMNS)  # with the raw spiral, and the key
    figure = new_figure(height=2.2 * num_rows, width=6.4)
    panels = list(figure.subplots(num_rows, _NUM_COLUMNS).flat)
    for axes, name in zip(panels, ["raw", *outcomes], strict=False):
        outcome = outcomes.get(name)
        _draw_panel(axes, points, outcome)
        axes.set_title(name if outcome is None else f"{name}: {outcome.diversity_ratio:.2f}")
    for axes in panels[1 + len(outcomes) :]:
        axes.set_axis_off()
    _draw_key(panels[1 + len(outcomes)])
    facts = ", ".join(f"{name} {outcome.diversity_ratio:.2f}" for name, outcome in outcomes.items())
    return Picture(
        name="spiral",
        title="The spiral: what the GANs make of it",
        caption="Two base arms, top and bottom, are translated into two novel ones, left and "
        "right, of which only the crosses are known. The number is the diversity of translated "
        "points over that of true ones: one is right. First, what is given; one training seed.",
        alt=f"Diversity of translated points over that of true ones: {facts}.",
        figure=figure,
    )


def _draw_panel(axes: Axes, points: Spiral, outcome: SpiralOutcome | None) -> None:
    for number, (of_base, of_novel) in enumerate(zip(_OF_BASE, _OF_NOVEL, strict=True)):
        _scatter(axes, points.base[number], color=of_base, alpha=0.8 if outcome is None else 0.15)
        _scatter(axes, points.novel[number], color=of_novel, alpha=0.15)
        if outcome is not None:
            _scatter(axes, outcome.translated[number], color=of_novel, alpha=0.9)
            ring: dict[str, Any] = {"facecolors": "none", "edgecolors": of_novel, "linewidths": 0.5}
            _scatter(axes, outcome.returned[number], alpha=0.6, **ring)
        shots = points.shots[number]
        axes.scatter(shots[:, 0], shots[:, 1], marker="x", s=30, color=INK, lw=1.2, zorder=3)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_alpha(0.3)


def _scatter(axes: Axes, points: Tensor, **style: Any) -> None:
    # As pixels: thousands of points drawn as curves make a file of megabytes.
    style = {"linewidths": 0, "rasterized": True, **style}
    axes.scatter(points[:, 0], points[:, 1], s=6, **style)


def _draw_key(axes: Axes) -> None:
    looks: dict[str, dict[str, Any]] = {
        "base arms": {"marker": "o", "color": _OF_BASE[0], "mew": 0},
        "true novel arms": {"marker": "o", "color": _OF_NOVEL[0], "alpha": 0.25, "mew": 0},
        "shots": {"marker": "x", "color": INK},
        "translated": {"marker": "o", "color": _OF_NOVEL[0], "mew": 0},
        "translated back": {"marker": "o", "color": _OF_NOVEL[0], "mfc": "none"},
    }
    handles = [Line2D([], [], ls="", label=label, **look) for label, look in looks.items()]
    axes.legend(handles=handles, loc="center left", labelspacing=0.8)

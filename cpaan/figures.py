"""Pictures of results."""

import io
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from cpaan.spiral import SpiralOutcome
from cpaan.summary import summarise
from cpaan.synthetic import Spiral

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", ":")  # for lines beyond these colours
PANELS = {"novel": "LSL", "all": "GLSL"}


def draw_accuracy(scores: pd.DataFrame) -> str:
    """Draw top-5 accuracy against the number of shots: a panel a head, a line a method.

    Bands are 95 % intervals over draws.

    Args:
        scores: As in `cpaan.benchmark.Results`.

    Returns:
        The picture as SVG.
    """
    summary = summarise(scores)
    heads = list(summary["head"].unique())
    figure = Figure(figsize=(2.6 * len(heads) + 0.8, 5.2), layout="constrained")
    grid = figure.subplots(2, len(heads), sharex=True, sharey="row", squeeze=False)
    for axes_of_column, (column, title) in zip(grid, PANELS.items(), strict=True):
        for axes, head in zip(axes_of_column, heads, strict=True):
            cells = summary[(summary["column"] == column) & (summary["head"] == head)]
            _draw_panel(axes, cells)
            axes.set_title(f"{title}, {head}", fontsize=10)
        axes_of_column[0].set_ylabel("top-5 accuracy, %")
    for axes in grid[-1]:
        axes.set_xlabel("shots a class")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return _as_svg(figure)


def _draw_panel(axes: Axes, cells: pd.DataFrame) -> None:
    for number, (method, line) in enumerate(cells.groupby("method", sort=False)):
        colour = COLOURS[number % len(COLOURS)]
        dashes = DASHES[number // len(COLOURS) % len(DASHES)]
        axes.plot(
            line["shots"], line["top5_mean"], f"o{dashes}", color=colour, ms=3, lw=1.2, label=method
        )
        axes.fill_between(
            line["shots"],
            line["top5_mean"] - line["top5_interval"],
            line["top5_mean"] + line["top5_interval"],
            color=colour,
            alpha=0.12,
            lw=0,
        )
    shots = sorted(cells["shots"].unique())
    axes.set_xscale("log")
    axes.set_xticks(shots, [str(k) for k in shots])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def draw_spiral(points: Spiral, outcomes: Mapping[str, SpiralOutcome]) -> str:
    """Draw the raw spiral and, a panel each, what GANs make of it.

    Pale: the truth; crosses: the novel points that may be used; strong dots: base points
    translated into the novel arms; strong rings: these, translated back.

    Returns:
        The picture as SVG.
    """
    figure = Figure(figsize=(3.2 * (1 + len(outcomes)), 2.9), layout="constrained")
    panels = figure.subplots(1, 1 + len(outcomes), sharex=True, sharey=True)
    for axes, name in zip(panels, ["raw", *outcomes], strict=True):
        base_alpha = 0.8 if name == "raw" else 0.15
        for number in range(len(points.base)):
            of_base, of_novel = COLOURS[1 + number], COLOURS[3 + number]
            _scatter(axes, points.base[number], color=of_base, alpha=base_alpha)
            _scatter(axes, points.novel[number], color=of_novel, alpha=0.15)
            if name in outcomes:
                outcome = outcomes[name]
                _scatter(axes, outcome.translated[number], color=of_novel, alpha=0.9)
                _scatter(
                    axes,
                    outcome.returned[number],
                    alpha=0.6,
                    facecolors="none",
                    edgecolors=of_novel,
                    linewidths=0.5,
                )
            shots = points.shots[number]
            axes.scatter(shots[:, 0], shots[:, 1], marker="x", s=40, color="black", zorder=3)
        title = name
        if name in outcomes:
            title += f", diversity {outcomes[name].diversity_ratio:.2f}"
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
    return _as_svg(figure)


def _scatter(axes: Axes, points: Tensor, **style: Any) -> None:
    # As pixels: thousands of points drawn as curves make a file of megabytes.
    style = {"linewidths": 0, "rasterized": True, **style}
    axes.scatter(points[:, 0], points[:, 1], s=6, **style)


def _as_svg(figure: Figure) -> str:
    picture = io.StringIO()
    figure.savefig(picture, format="svg", dpi=200)
    return picture.getvalue()

"""Pictures of results."""

import io

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpaan.summary import summarise

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
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
    picture = io.StringIO()
    figure.savefig(picture, format="svg")
    return picture.getvalue()


def _draw_panel(axes: Axes, cells: pd.DataFrame) -> None:
    for number, (method, line) in enumerate(cells.groupby("method", sort=False)):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(line["shots"], line["top5_mean"], "o-", color=colour, ms=3, lw=1.2, label=method)
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

"""Accuracy against the number of shots."""

import io
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cpaan.protocol.statistics import summarise
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.selection import cells_of, highest, shots_in, with_heads
from cpaan.report.figures.style import (
    COLOURS,
    DASHES,
    PALE,
    PANELS,
    drawing,
    label_ends,
    look_of,
    new_figure,
    shots_axis,
)


@drawing()
def accuracy_against_shots(
    scores: pd.DataFrame, head_of: Mapping[str, str], rows: Sequence[str]
) -> Picture:
    """Draw top-5 accuracy against the number of shots: a panel each for LSL and GLSL.

    Args:
        scores: A row for each method (a row of the table), head, column, shots, draw and seed.
        head_of: The head of each row that is drawn.
        rows: Those to look at, strongest colour first; the others are pale.

    Raises:
        ValueError: If one of ``rows`` has no scores with its head.
    """
    summary = summarise(with_heads(scores, head_of, rows))
    shots = shots_in(summary)
    figure = new_figure(height=7.0)
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
        _draw_lines(axes, cells_of(summary, column), rows)
        axes.set_title(title)
        axes.set_ylabel("top-5 accuracy, %")
        shots_axis(axes, shots)
    panels[-1].set_xlabel("shots a class")
    # The limits are final only when all panels are there.
    for axes, column in zip(panels, PANELS, strict=True):
        ends = []
        for number, row in enumerate(rows):
            line = _line_of(cells_of(summary, column), row)
            last = line.iloc[-1]
            ends.append((row, look_of(number).colour, last["shots"], last["top5_mean"]))
        label_ends(axes, ends)
    num_others = summary["method"].nunique() - len(rows)
    others = f"; grey: the other {num_others} rows" if num_others else ""
    return Picture(
        name="accuracy",
        title="Accuracy against the number of shots",
        caption=f"Top-5 accuracy with K labelled examples of each novel class, on novel classes "
        f"alone (LSL) and on all (GLSL). Bands are 95 % intervals over draws{others}.",
        alt=" ".join(_best_of(summary, k) for k in dict.fromkeys((shots[0], shots[-1]))),
        figure=figure,
    )


def _line_of(cells: pd.DataFrame, row: str) -> pd.DataFrame:
    return cells[cells["method"] == row].sort_values("shots")


def _draw_lines(axes: Axes, cells: pd.DataFrame, rows: Sequence[str]) -> None:
    for row in cells["method"].unique():
        if row not in rows:
            line = _line_of(cells, row)
            axes.plot(line["shots"], line["top5_mean"], color=PALE, lw=0.8, alpha=0.55, zorder=1)
    # The first is drawn last, on top of the others.
    for number, row in reversed(list(enumerate(rows))):
        look, line = look_of(number), _line_of(cells, row)
        axes.plot(
            line["shots"],
            line["top5_mean"],
            color=look.colour,
            marker=look.marker,
            linestyle=look.dashes,
            zorder=3,
        )
        _draw_band(axes, line, look.colour)


def _draw_band(axes: Axes, line: pd.DataFrame, colour: str) -> None:
    axes.fill_between(
        line["shots"],
        line["top5_mean"] - line["top5_interval"],
        line["top5_mean"] + line["top5_interval"],
        color=colour,
        alpha=0.15,
        lw=0,
    )


def _best_of(summary: pd.DataFrame, shots: int) -> str:
    parts = []
    for column, title in PANELS.items():
        cells = cells_of(summary, column, shots)
        best = highest(cells, "top5_mean")
        parts.append(f"{best['method']} has the highest {title}, {best['top5_mean']:.1f} %")
    num_rows = summary["method"].nunique()
    return f"At K = {shots}, of {num_rows} rows, {' and '.join(parts)}."


@drawing()
def draw_accuracy(scores: pd.DataFrame) -> str:
    """Draw top-5 accuracy against the number of shots: a panel a head, a line a method.

    Bands are 95 % intervals over draws.

    Args:
        scores: As in `cpaan.evaluation.runner.Results`.

    Returns:
        The picture as an SVG file.
    """
    summary = summarise(scores)
    heads = list(summary["head"].unique())
    methods = list(summary["method"].unique())
    figure = Figure(figsize=(2.6 * len(heads) + 0.8, 5.2), layout="constrained")
    grid = figure.subplots(2, len(heads), sharex=True, sharey="row", squeeze=False)
    for axes_of_column, (column, title) in zip(grid, PANELS.items(), strict=True):
        for axes, head in zip(axes_of_column, heads, strict=True):
            cells = cells_of(summary, column)
            _draw_methods(axes, cells[cells["head"] == head], methods)
            axes.set_title(f"{title}, {head}")
        axes_of_column[0].set_ylabel("top-5 accuracy, %")
    for axes in grid[-1]:
        axes.set_xlabel("shots a class")
    # Of all panels: a method need not have every head.
    lines = {line.get_label(): line for axes in grid.flat for line in axes.lines}
    handles = [lines[method] for method in methods]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 + 2 * len(heads))
    picture = io.StringIO()
    figure.savefig(picture, format="svg", dpi=200)
    return picture.getvalue()


def _draw_methods(axes: Axes, cells: pd.DataFrame, methods: Sequence[str]) -> None:
    colours = ("#000000", *COLOURS)
    for method, line in cells.groupby("method", sort=False):
        number = methods.index(str(method))
        colour = colours[number % len(colours)]
        dashes = DASHES[number // len(colours) % len(DASHES)]
        axes.plot(
            line["shots"], line["top5_mean"], f"o{dashes}", color=colour, ms=3, lw=1.2, label=method
        )
        _draw_band(axes, line, colour)
    shots_axis(axes, shots_in(cells))

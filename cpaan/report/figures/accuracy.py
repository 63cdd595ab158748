"""Accuracy against the number of shots, and against the diversity of synthetic examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from cpaan.protocol.statistics import mean_interval, summarise
from cpaan.report.figures.picture import (
    COLOURS,
    INK,
    PALE,
    Look,
    Picture,
    drawing,
    label_ends,
    label_points,
    look_of,
    new_figure,
    write_beside,
)
from cpaan.report.tables import TITLES

_ACCURACY, _SHOTS = "top-5 accuracy, %", "shots a class"


def _summarise(
    scores: pd.DataFrame, head_of: Mapping[str, str], rows: Sequence[str] = ()
) -> pd.DataFrame:
    """Summarise every row that has a head, with that head; ``rows`` must have scores."""
    found = scores[scores["head"] == scores["method"].map(dict(head_of))]
    missing = [row for row in rows if row not in set(found["method"])]
    if missing:
        raise ValueError(f"{missing[0]} has no scores with the head {head_of.get(missing[0])}")
    return summarise(found).sort_values("shots", kind="stable")


def _highest(cells: pd.DataFrame, column: str = "top5_mean") -> "pd.Series[Any]":
    """Return the cell with the highest value; of equal ones, the first."""
    return cells.sort_values(column, ascending=False, kind="stable").iloc[0]


@drawing()
def accuracy_against_shots(
    scores: pd.DataFrame, head_of: Mapping[str, str], rows: Sequence[str]
) -> Picture:
    """Draw top-5 accuracy against the number of shots: a panel each for LSL and GLSL.

    Rows that have a head but are not among ``rows`` are pale.
    """
    summary = _summarise(scores, head_of, rows)
    names = list(summary["method"].unique())
    figure = new_figure(height=7.0)
    panels = dict(zip(TITLES, figure.subplots(len(TITLES), 1, sharex=True), strict=True))
    ends: dict[str, list[tuple[str, str, float, float]]] = {column: [] for column in TITLES}
    for column, axes in panels.items():
        lines = dict(iter(summary[summary["column"] == column].groupby("method", sort=False)))
        for name in set(names) - set(rows):
            line = lines[name]
            axes.plot(line["shots"], line["top5_mean"], color=PALE, lw=0.8, alpha=0.55, zorder=1)
        for number, row in reversed(list(enumerate(rows))):  # the first is on top of the others
            _draw_line(axes, lines[row], look_of(number), zorder=3)
        for number, row in enumerate(rows):
            last = lines[row].iloc[-1]
            ends[column].append((row, look_of(number).color, last["shots"], last["top5_mean"]))
        axes.set(title=TITLES[column], ylabel=_ACCURACY)
    panels["all"].set_xlabel(_SHOTS)
    for column, axes in panels.items():  # the limits are final only when all panels are drawn
        label_ends(axes, ends[column])
    facts = []
    for shots in dict.fromkeys([summary["shots"].min(), summary["shots"].max()]):
        cells = summary[summary["shots"] == shots]
        parts = []
        for column, title in TITLES.items():
            best = _highest(cells[cells["column"] == column])
            parts.append(f"{best['method']} has the highest {title}, {best['top5_mean']:.1f} %")
        facts.append(f"At K = {shots}, of {len(names)} rows, {' and '.join(parts)}.")
    num_others = len(names) - len(rows)
    others = f"; grey: the other {num_others} rows" if num_others else ""
    return Picture(
        name="accuracy",
        title="Accuracy against the number of shots",
        caption=f"Top-5 accuracy with K labelled examples of each novel class, on novel classes "
        f"alone (LSL) and on all (GLSL). Bands are 95 % intervals over draws{others}.",
        alt=" ".join(facts),
        figure=figure,
    )


def _draw_line(axes: Axes, line: pd.DataFrame, look: Look, **style: Any) -> None:
    """Draw one row's accuracy, with its interval as a band."""
    shots, mean, interval = line["shots"], line["top5_mean"], line["top5_interval"]
    axes.plot(shots, mean, **look._asdict(), **style)
    axes.fill_between(shots, mean - interval, mean + interval, color=look.color, alpha=0.15, lw=0)
    axes.set_xscale("log")
    axes.set_xticks(shots, [str(k) for k in shots])
    axes.minorticks_off()


@drawing()
def draw_accuracy(scores: pd.DataFrame) -> str:
    """Return an SVG file of accuracy against shots: a panel a head, a line a method."""
    summary = summarise(scores)
    heads, methods = list(summary["head"].unique()), list(summary["method"].unique())
    figure = new_figure(height=5.2, width=2.6 * len(heads) + 0.8)
    grid = figure.subplots(len(TITLES), len(heads), sharex=True, sharey="row", squeeze=False)
    drawn: dict[Any, Any] = {}
    for panels, (column, title) in zip(grid, TITLES.items(), strict=True):
        for axes, head in zip(panels, heads, strict=True):
            cells = summary[(summary["column"] == column) & (summary["head"] == head)]
            for method, line in cells.groupby("method", sort=False):
                look = look_of(methods.index(method))
                _draw_line(axes, line.sort_values("shots"), look, label=method, ms=3, lw=1.2)
            axes.set_title(f"{title}, {head}")
            drawn |= {line.get_label(): line for line in axes.lines}
        panels[0].set_ylabel(_ACCURACY)
    for axes in grid[-1]:
        axes.set_xlabel(_SHOTS)
    handles = [drawn[method] for method in methods]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 + 2 * len(heads))
    text = "Top-5 accuracy against the number of shots, with 95 % intervals over draws."
    return Picture("accuracy", "Accuracy", text, text, figure).svg_file()


@drawing()
def accuracy_against_diversity(
    scores: pd.DataFrame, diversity: pd.DataFrame, head_of: Mapping[str, str], shots: int = 1
) -> Picture:
    """Draw accuracy against the diversity of synthetic examples (the paper's Figure 5b).

    The ``ratio`` of a row is the mean distance of two synthetic examples of a class over that of
    two real ones.
    """
    ratios = diversity[diversity["shots"] == shots].groupby(["method", "draw"])["ratio"].mean()
    found = ratios.groupby("method").agg(["mean", mean_interval])
    cells = _summarise(scores[scores["shots"] == shots], head_of)
    cells = cells[cells["method"].isin(found.index)].join(found, on="method")
    if cells.empty:
        raise ValueError(f"no row has scores and a diversity at K = {shots}")
    figure = new_figure(height=7.4)
    panels = dict(zip(TITLES, figure.subplots(len(TITLES), 1, sharex=True), strict=True))
    for column, axes in panels.items():
        _draw_diversity(axes, cells[cells["column"] == column])
        axes.set(title=f"{TITLES[column]}, K = {shots}", ylabel=_ACCURACY)
    panels["all"].set_xlabel("diversity of synthetic examples over that of real ones")
    for column, axes in panels.items():
        of_panel = cells[cells["column"] == column].set_index("method")
        points = of_panel[["mean", "top5_mean"]].itertuples(name=None)
        label_points(axes, {name: (x, y) for name, x, y in points}, lines=[1])
    novel = cells[cells["column"] == "novel"]
    best = _highest(novel)
    nearest = _highest(novel.assign(nearness=-(novel["mean"] - 1).abs()), "nearness")
    return Picture(
        name="diversity",
        title="Accuracy against diversity",
        caption="Diversity is the mean distance of two synthetic examples of a class over that of "
        f"two real ones, at K = {shots} too: at one (dashed) they are as diverse as real examples. "
        "Bars are 95 % intervals over draws.",
        alt=f"At K = {shots}, of {len(novel)} generators, {best['method']} has the highest LSL, "
        f"{best['top5_mean']:.1f} %, with a diversity of {best['mean']:.2f} times the real one; "
        f"{nearest['method']} is nearest to the real diversity, with {nearest['mean']:.2f} and an "
        f"LSL of {nearest['top5_mean']:.1f} %.",
        figure=figure,
    )


def _draw_diversity(axes: Axes, cells: pd.DataFrame) -> None:
    axes.axvline(1, color=INK, lw=1, ls="--")
    # Along the line: above it, the label would meet the title where the line is far left.
    where = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "bottom", "rotation": 90}
    write_beside(axes, "real examples", (1, 0), (-3, 4), **where)
    axes.errorbar(
        cells["mean"],
        cells["top5_mean"],
        xerr=cells["mean_interval"].fillna(0),
        yerr=cells["top5_interval"].fillna(0),
        fmt="o",
        color=COLOURS[0],
        ecolor=f"{COLOURS[0]}55",  # paler than the labels that cross them
        elinewidth=0.9,
    )
    axes.margins(x=0.12, y=0.1)

"""Accuracy against shots and against diversity, and gains of variants of a row."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

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
)
from cpaan.report.gains import PairedScores
from cpaan.report.table_one import Cells, ranked_cells
from cpaan.report.tables import TITLES, side_of

_ACCURACY, _SHOTS = "top-5 accuracy, %", "shots a class"
_SHOTS_OF_VARIANTS = (1, 5)


def _lsl_and_glsl(cells: Cells) -> dict[str, pd.DataFrame]:
    """Return cells as a frame each for LSL and GLSL: row, shots, value, interval and rank."""
    names = ["row", "column", "shots", "value", "interval", "rank"]
    frame = pd.DataFrame([(*key, *cell) for key, cell in cells.items()], columns=names)
    return {column: frame[frame["column"] == column].sort_values("shots") for column in TITLES}


def _best(frame: pd.DataFrame) -> Any:
    return frame[frame["rank"] == 1].iloc[0]


@drawing()
def accuracy_against_shots(cells: Cells, rows: Sequence[str]) -> Picture:
    """Draw top-5 accuracy against the number of shots: a panel each for LSL and GLSL.

    Rows that have cells but are not among ``rows`` are pale.
    """
    frames = _lsl_and_glsl(cells)
    num_rows = frames["novel"]["row"].nunique()
    figure = new_figure(height=7.0)
    panels = dict(zip(TITLES, figure.subplots(len(TITLES), 1, sharex=True), strict=True))
    ends: dict[str, list[tuple[str, str, float, float]]] = {column: [] for column in TITLES}
    for column, axes in panels.items():
        lines = dict(iter(frames[column].groupby("row")))
        for name in lines.keys() - set(rows):
            axes.plot("shots", "value", data=lines[name], color=PALE, lw=0.8, alpha=0.55, zorder=1)
        for number, row in reversed(list(enumerate(rows))):  # the first is on top of the others
            _draw_line(axes, lines[row], look_of(number), zorder=3)
            last = lines[row].iloc[-1]
            ends[column].append((row, look_of(number).color, last["shots"], last["value"]))
        axes.set(title=TITLES[column], ylabel=_ACCURACY)
    panels["all"].set_xlabel(_SHOTS)
    for column, axes in panels.items():  # the limits are final only when all panels are drawn
        label_ends(axes, ends[column])
    facts = []
    shots = frames["novel"]["shots"]
    for k in dict.fromkeys([shots.min(), shots.max()]):
        best = {title: _best(frames[c][frames[c]["shots"] == k]) for c, title in TITLES.items()}
        parts = [f"{x['row']} has the highest {of}, {x['value']:.1f} %" for of, x in best.items()]
        facts.append(f"At K = {k}, of {num_rows} rows, {' and '.join(parts)}.")
    num_others = num_rows - len(rows)
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
    shots, mean, interval = line["shots"], line["value"], line["interval"]
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
    for head, panels in zip(heads, grid.T, strict=True):
        frames = _lsl_and_glsl(ranked_cells(summary, dict.fromkeys(methods, head)))
        for axes, (column, title) in zip(panels, TITLES.items(), strict=True):
            for method, line in frames[column].groupby("row"):
                look = look_of(methods.index(method))
                _draw_line(axes, line, look, label=method, ms=3, lw=1.2)
            axes.set_title(f"{title}, {head}")
            drawn |= {line.get_label(): line for line in axes.lines}
        panels[-1].set_xlabel(_SHOTS)
    for axes in grid[:, 0]:
        axes.set_ylabel(_ACCURACY)
    handles = [drawn[method] for method in methods]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 + 2 * len(heads))
    text = "Top-5 accuracy against the number of shots, with 95 % intervals over draws."
    return Picture("accuracy", "Accuracy", text, text, figure).file("svg").decode()


@drawing()
def accuracy_against_diversity(cells: Cells, diversity: pd.DataFrame, shots: int = 1) -> Picture:
    """Draw accuracy against the diversity of synthetic examples (the paper's Figure 5b).

    The ``ratio`` of a row is the mean distance of two synthetic examples of a class over that of
    two real ones. Rows without a ratio are left out.

    Raises:
        ValueError: If no row is left.
    """
    ratios = diversity[diversity["shots"] == shots].groupby(["method", "draw"])["ratio"].mean()
    found = ratios.groupby("method").agg(["mean", mean_interval]).dropna(subset="mean")
    frames = {
        column: frame[frame["shots"] == shots].join(found, on="row", how="inner")
        for column, frame in _lsl_and_glsl(cells).items()
    }
    novel = frames["novel"]
    if novel.empty:
        raise ValueError(f"no row has scores and a diversity at K = {shots}")
    figure = new_figure(height=7.4)
    panels = dict(zip(TITLES, figure.subplots(len(TITLES), 1, sharex=True), strict=True))
    # Bars are paler than the labels that cross them.
    look: Any = {"fmt": "o", "color": COLOURS[0], "ecolor": f"{COLOURS[0]}55", "elinewidth": 0.9}
    for column, axes in panels.items():
        x, y, across, up = (
            frames[column][c] for c in ("mean", "value", "mean_interval", "interval")
        )
        axes.axvline(1, color=INK, lw=1, ls="--")
        axes.errorbar(x, y, xerr=across, yerr=up, **look)
        axes.margins(x=0.12, y=0.1)
        axes.set(title=f"{TITLES[column]}, K = {shots}", ylabel=_ACCURACY)
    panels["all"].set_xlabel("diversity of synthetic examples over that of real ones")
    for column, axes in panels.items():
        points = frames[column][["row", "mean", "value"]].itertuples(index=False, name=None)
        label_points(axes, {name: (x, y) for name, x, y in points}, lines=[1])
    best = novel.sort_values("rank", kind="stable").iloc[0]
    nearest = novel.iloc[(novel["mean"] - 1).abs().argmin()]
    return Picture(
        name="diversity",
        title="Accuracy against diversity",
        caption="Diversity is the mean distance of two synthetic examples of a class over that of "
        f"two real ones, at K = {shots} too: at one (dashed) they are as diverse as real examples. "
        "Bars are 95 % intervals over draws.",
        alt=f"At K = {shots}, of {len(novel)} generators, {best['row']} has the highest LSL, "
        f"{best['value']:.1f} %, with a diversity of {best['mean']:.2f} times the real one; "
        f"{nearest['row']} is nearest to the real diversity, with {nearest['mean']:.2f} and an "
        f"LSL of {nearest['value']:.1f} %.",
        figure=figure,
    )


@drawing()
def gain_of_variants(
    scores: pd.DataFrame,
    labels: Mapping[str, str],
    head: str,
    reference: str,
    *,
    name: str,
    title: str,
    meaning: str,
) -> Picture:
    """Draw variants minus a reference with the same head, paired by draw, with 95 % intervals.

    A panel each for LSL and GLSL, a line a variant, a mark a number of shots.

    Args:
        scores: Scores by method (name of a row), head, column, shots, draw and seed.
        labels: Label of a variant to its row, from top to bottom.
        head: Of all of them.
        reference: The row that the variants are compared with.
        name: Of the picture.
        title: Of the picture.
        meaning: How to read the differences.
    """
    paired = PairedScores(scores[scores["method"].isin([reference, *labels.values()])])
    shots = [k for k in _SHOTS_OF_VARIANTS if k in paired.shots] or paired.shots[:1]
    texts = [textwrap.fill(label, 24) for label in labels]
    num_lines = sum(max(1.0, 0.8 * (1 + text.count("\n"))) for text in texts)
    figure = new_figure(height=1.3 + 0.27 * num_lines)
    figure.supxlabel(f"minus {reference}, points of top-5", size="medium")
    gaps = {}
    panels = dict(zip(TITLES, figure.subplots(1, len(TITLES), sharey=True), strict=True))
    for column, axes in panels.items():
        for place in range(0, len(labels), 2):
            axes.axhspan(place - 0.5, place + 0.5, color=INK, alpha=0.04, lw=0)
        axes.axvline(0, color=INK, lw=0.9)
        for number, k in enumerate(shots):
            # A variant may have fewer seeds than the reference. Other seeds of the reference
            # would add a difference between seeds.
            gaps[column, k] = found = [
                paired.compare((row, head), (reference, head), column, k, same_seeds=True)
                for row in labels.values()
            ]
            color, marker, _ = look_of(number)
            x, reach = [gap.difference for gap in found], [gap.interval for gap in found]
            y = np.arange(len(found)) + 0.36 * ((number + 0.5) / len(shots) - 0.5)
            axes.errorbar(x, y, xerr=reach, fmt="none", ecolor=color, elinewidth=1.3)
            filled = [color if side_of(*each) else "none" for each in zip(x, reach, strict=True)]
            look = {"marker": marker, "facecolors": filled, "edgecolors": color, "zorder": 3}
            axes.scatter(x, y, 22, label=f"K = {k}", **look)
        axes.set_title(TITLES[column])
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.set_yticks(range(len(texts)), texts)
        axes.set_ylim(len(texts) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=len(shots))
    of_novel = dict(zip(labels, gaps["novel", shots[0]], strict=True))
    ranked = sorted(of_novel, key=lambda label: -of_novel[label].difference)
    facts = "; ".join(f"{label}: {of_novel[label].text(1)}" for label in ranked)
    num_seeds = scores.loc[scores["method"].isin(labels.values()), "seed"].nunique()
    seeds = "one training seed" if num_seeds == 1 else f"{num_seeds} training seeds"
    return Picture(
        name=name,
        title=title,
        caption=f"Top-5 accuracy minus that of {reference} with the same {head} head, paired by "
        f"draw, with 95 % intervals: {meaning}. Filled marks are clear of zero; {seeds}.",
        alt=f"Difference in LSL at K = {shots[0]}, the largest first. {facts}.",
        figure=figure,
    )

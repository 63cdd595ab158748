"""Gains over no augmentation: by row and by shots; and gains of variants of a row."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cpaan.protocol.calibration import CALIBRATED
from cpaan.protocol.statistics import summarise
from cpaan.report.figures.picture import (
    INK,
    PALE,
    Look,
    Picture,
    drawing,
    label_ends,
    look_of,
    new_figure,
)
from cpaan.report.gains import PairedScores
from cpaan.report.table_one import Cells, ranked_cells
from cpaan.report.tables import ALL_TITLES, TITLES, Cell, diversity_cells, signed

_SHOTS, _GAIN, _DIVERSITY = "shots a class", "minus no augmentation, points", "diversity"

_Series = Mapping[str, Mapping[tuple[str, str], Cell]]
"""Differences by label of the series, then by label of the line and column."""


def _titles(cells: Cells) -> dict[str, str]:
    """Return the titles of the columns of cells that are LSL or a kind of GLSL."""
    known = {column for _, column, _ in cells}
    return {column: title for column, title in ALL_TITLES.items() if column in known}


def _calibrated(titles: Mapping[str, str]) -> str:
    """Say that GLSL is calibrated, for a caption."""
    text = " GLSL is calibrated: a number, chosen on validation, is added to novel classes’ scores."
    return text if CALIBRATED in titles else ""


def _draw_differences(
    lines: Sequence[str], series: _Series, label: str, panels: Mapping[str, str] = TITLES
) -> Figure:
    """Draw differences with intervals: a panel for every column, a mark for every series.

    A line of which no series has a difference is the heading of the lines below it. A panel of
    ratios has its line at one in place of zero.
    """
    texts = [textwrap.fill(line, 26) for line in lines]
    num_lines = sum(max(1.0, 0.8 * (1 + text.count("\n"))) for text in texts)
    figure = new_figure(height=1.3 + 0.22 * num_lines)
    figure.supxlabel(label, size="medium")
    shares = {line: [name for name in series if (line, "novel") in series[name]] for line in lines}
    for column, axes in zip(panels, figure.subplots(1, len(panels), sharey=True), strict=True):
        for place in range(0, len(lines), 2):
            axes.axhspan(place - 0.5, place + 0.5, color=INK, alpha=0.04, lw=0)
        zero = float(column == _DIVERSITY)
        axes.axvline(zero, color=INK, lw=0.9)
        ends = [zero]
        for number, (name, cells) in enumerate(series.items()):
            drawn = [line for line in lines if (line, column) in cells]
            x, reach = (np.array([cells[line, column][at] for line in drawn]) for at in (0, 1))
            steps = [(shares[line].index(name) + 0.5) / len(shares[line]) - 0.5 for line in drawn]
            y = [lines.index(line) + 0.36 * step for line, step in zip(drawn, steps, strict=True)]
            color, marker, _ = look_of(number)
            axes.errorbar(x, y, xerr=reach, fmt="none", ecolor=color, elinewidth=1.3)
            sides = [Cell(*pair).side for pair in zip(x - zero, reach, strict=True)]
            filled = [color if side else "none" for side in sides]
            look = {"marker": marker, "facecolors": filled, "edgecolors": color, "zorder": 3}
            axes.scatter(x, y, 22, label=name, **look)
            ends += [*(x - np.nan_to_num(reach)), *(x + np.nan_to_num(reach))]
        room = 0.08 * (max(ends) - min(ends)) or 0.1
        axes.set_xlim(min(ends) - room, max(ends) + room)  # whiskers are whole
        axes.set_title(panels[column])
        axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
        axes.set_yticks(range(len(texts)), texts)
        axes.set_ylim(len(texts) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    for line, text in zip(lines, figure.axes[0].get_yticklabels(), strict=True):
        text.set_fontweight("normal" if shares[line] else "bold")
    handles = figure.axes[1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper right", ncols=len(series))
    return figure


@drawing()
def gains_by_row(
    gains: Cells,
    diversity: pd.DataFrame,
    spaces: Mapping[str, str],
    trained: Collection[str],
    shots: int,
) -> Picture:
    """Draw the gains of rows over no augmentation of their features, the largest first.

    The paper's Figure 5b compares gains with diversity, for rows that have it: it is in a panel
    beside them. ``spaces`` are the features of rows in words, in the order of the parts of the
    picture; ``trained`` are the rows that train a generator.
    """
    of_shots = diversity_cells(diversity[diversity["shots"] == shots])
    diverse, titles = {name: cell for (name, _, _), cell in of_shots.items()}, _titles(gains)
    ranked = sorted(spaces, key=lambda name: -gains[name, "novel", shots].value)
    lines, series = list[str](), dict[str, dict[tuple[str, str], Cell]]()
    for space in dict.fromkeys(spaces.values()):
        lines += [space, *(name for name in ranked if spaces[name] == space)]
    for title, is_trained in (("trained generator", True), ("nothing trained", False)):
        names = [name for name in ranked if (name in trained) == is_trained]
        cells = {(name, column): gains[name, column, shots] for name in names for column in titles}
        cells |= {(name, _DIVERSITY): diverse[name] for name in names if name in diverse}
        if cells:
            series[title] = cells
    panels, label, meaning = titles, _GAIN, _calibrated(titles)
    if diverse.keys() & set(ranked):
        panels = {**titles, _DIVERSITY: "Diversity"}
        label = "gain in points; diversity over that of real examples"
        meaning += (
            " Diversity is the mean distance of two synthetic examples of a class over that of two "
            "real ones."
        )
    facts = [
        f"{name} {gains[name, 'novel', shots].text(1)}"
        + (f" (diversity {diverse[name].value:.2f})" if name in diverse else "")
        for name in ranked
    ]
    return Picture(
        name="gains",
        title=f"Gain over no augmentation, K = {shots}",
        caption="Top-5 accuracy minus that of no augmentation of the same features, with the same "
        "final classifier where it has one, paired, with 95 % intervals. Filled marks are clear of "
        f"the line.{meaning}",
        alt=f"Gain in LSL at K = {shots}, the largest first: {', '.join(facts)}.",
        figure=_draw_differences(lines, series, label, panels),
    )


@drawing()
def gains_against_shots(gains: Cells, rows: Sequence[str]) -> Picture:
    """Draw gains over no augmentation against the number of shots: a panel for LSL and for GLSL.

    Rows that have gains but are not among ``rows`` are pale.
    """
    titles, shots = _titles(gains), sorted({k for _, _, k in gains})
    names = list(dict.fromkeys(name for name, _, _ in gains))
    figure = new_figure(height=6.2)
    panels = dict(zip(titles, figure.subplots(len(titles), 1, sharex=True), strict=True))
    ends: dict[str, list[tuple[str, str, float, float]]] = {column: [] for column in titles}
    for column, axes in panels.items():
        lines = {name: [gains[name, column, k] for k in shots] for name in names}
        axes.axhline(0, color=INK, lw=0.9)
        for name in sorted(set(names) - set(rows)):
            values = [cell.value for cell in lines[name]]
            axes.plot(shots, values, color=PALE, lw=0.8, alpha=0.55, zorder=1)
        for number, name in reversed(list(enumerate(rows))):  # the first is on top of the others
            look, last = look_of(number), lines[name][-1].value
            _draw_line(axes, shots, lines[name], look, zorder=3)
            ends[column].append((name, look.color, shots[-1], last))
        axes.set(title=titles[column], ylabel=_GAIN)
    axes.set_xlabel(_SHOTS)
    for column, axes in panels.items():  # the limits are final only when all panels are drawn
        label_ends(axes, ends[column])
    facts = []
    for k in dict.fromkeys([shots[0], shots[-1]]):
        parts = []
        for column, title in titles.items():
            best = max(names, key=lambda name: gains[name, column, k].value)
            parts.append(f"{best} in {title}, {signed(gains[best, column, k].value, 1)}")
        facts.append(f"At K = {k}, of {len(names)} rows, the largest gains: {'; '.join(parts)}.")
    num_others = len(names) - len(rows)
    others = f"; grey: the other {num_others} rows" if num_others else ""
    return Picture(
        name="shots",
        title="Gain against the number of shots",
        caption="Top-5 accuracy minus that of no augmentation, with K labelled examples of each "
        "novel class, on novel classes alone (LSL) and on all (GLSL). Bands are 95 % intervals of "
        f"the paired difference{others}.{_calibrated(titles)}",
        alt=" ".join(facts),
        figure=figure,
    )


def _draw_line(
    axes: Axes, shots: Sequence[int], cells: Sequence[Cell], look: Look, **style: Any
) -> None:
    """Draw one row's numbers, with their intervals as a band."""
    mean, interval = (np.array([cell[place] for cell in cells]) for place in (0, 1))
    axes.plot(shots, mean, **look._asdict(), **style)
    axes.fill_between(shots, mean - interval, mean + interval, color=look.color, alpha=0.15, lw=0)
    axes.set_xscale("log")
    axes.set_xticks(shots, [str(k) for k in shots])
    axes.minorticks_off()


@drawing()
def draw_accuracy(scores: pd.DataFrame) -> str:
    """Return an SVG file of accuracy against shots: a panel a head, a line a method."""
    summary, shots = summarise(scores), sorted(map(int, scores["shots"].unique()))
    heads, methods = list(summary["head"].unique()), list(summary["method"].unique())
    figure = new_figure(height=5.2, width=2.6 * len(heads) + 0.8)
    grid = figure.subplots(len(TITLES), len(heads), sharex=True, sharey="row", squeeze=False)
    drawn: dict[Any, Any] = {}
    for head, panels in zip(heads, grid.T, strict=True):
        cells = ranked_cells(summary, dict.fromkeys(methods, head))
        for axes, (column, title) in zip(panels, TITLES.items(), strict=True):
            for method in sorted(name for name, *cell in cells if cell == [column, shots[0]]):
                line, look = [cells[method, column, k] for k in shots], methods.index(method)
                _draw_line(axes, shots, line, look_of(look), label=method, ms=3, lw=1.2)
            axes.set_title(f"{title}, {head}")
            drawn |= {line.get_label(): line for line in axes.lines}
        panels[-1].set_xlabel(_SHOTS)
    for axes in grid[:, 0]:
        axes.set_ylabel("top-5 accuracy, %")
    handles = [drawn[method] for method in methods]
    figure.legend(handles=handles, loc="outside lower center", ncols=2 + 2 * len(heads))
    text = "Top-5 accuracy against the number of shots, with 95 % intervals."
    return Picture("accuracy", "Accuracy", text, text, figure).file("svg").decode()


@drawing()
def gain_of_variants(
    paired: PairedScores,
    labels: Mapping[str, str],
    head: str,
    reference: str,
    *,
    name: str,
    title: str,
    meaning: str,
) -> Picture:
    """Draw variants minus a reference with the same head, paired, with 95 % intervals.

    The variants are rows by label, from top to bottom; ``meaning`` says how to read differences.
    """
    shots = [k for k in (1, 5) if k in paired.shots] or paired.shots[:1]
    series: dict[str, dict[tuple[str, str], Cell]] = {f"K = {k}": {} for k in shots}
    seeds: set[int] = set()
    for (label, row), column, k in product(labels.items(), TITLES, shots):
        # A variant may have fewer seeds than the reference. Other seeds of the reference would add
        # a difference between seeds.
        gap = paired.compare((row, head), (reference, head), column, k, same_seeds=True)
        series[f"K = {k}"][label, column] = gap
        seeds |= set(paired.values((row, head), column, k).seeds)
    of_novel = {label: series[f"K = {shots[0]}"][label, "novel"] for label in labels}
    ranked = sorted(of_novel, key=lambda label: -of_novel[label].value)
    facts = "; ".join(f"{label}: {of_novel[label].text(1)}" for label in ranked)
    over = f"{len(seeds)} seeds" if len(seeds) > 1 else "one training seed: over draws alone"
    return Picture(
        name=name,
        title=title,
        caption=f"Top-5 accuracy minus that of {reference} with the same {head} head, paired, "
        f"with 95 % intervals ({over}): {meaning}. Filled marks are clear of zero.",
        alt=f"Difference in LSL at K = {shots[0]}, the largest first. {facts}.",
        figure=_draw_differences(list(labels), series, f"minus {reference}, points of top-5"),
    )

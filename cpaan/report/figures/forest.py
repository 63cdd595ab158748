"""Differences with their intervals, one below the other: filled marks are clear of zero."""

import textwrap
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cpaan.report.figures.selection import cells_of
from cpaan.report.figures.style import INK, PANELS, look_of, new_figure

_LINE = 0.27  # inches for a row of one or two numbers of shots
_LONGEST = 24  # characters of a label in one line


def draw_forest(
    cells: pd.DataFrame, labels: Mapping[str, str], shots: Sequence[int], meaning: str
) -> Figure:
    """Draw differences: a line for each label, a panel each for LSL and GLSL.

    Args:
        cells: Columns method, column, shots, difference and interval.
        labels: Label to method, from top to bottom.
        shots: Numbers of shots that are drawn, each with a mark of its own.
        meaning: Of the horizontal axis.
    """
    texts = [textwrap.fill(label, _LONGEST) for label in labels]
    num_lines = sum(max(1.0, 0.8 * (1 + text.count("\n"))) for text in texts)
    figure = new_figure(height=1.3 + _LINE * num_lines)
    panels = figure.subplots(1, len(PANELS), sharey=True)
    places = range(len(labels))
    for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
        for place in places[::2]:
            axes.axhspan(place - 0.5, place + 0.5, color=INK, alpha=0.04, lw=0)
        axes.axvline(0, color=INK, lw=0.9)
        for number, k in enumerate(shots):
            look = look_of(number)
            shift = 0.36 * ((number + 0.5) / len(shots) - 0.5)
            found = gaps_of(cells, column, k)
            for place, method in zip(places, labels.values(), strict=True):
                if method not in found:
                    continue
                difference, interval = found[method]
                axes.errorbar(
                    difference,
                    place + shift,
                    xerr=None if pd.isna(interval) else interval,
                    color=look.colour,
                    marker=look.marker,
                    ms=4.5,
                    lw=1.3,
                    mfc=look.colour if abs(difference) > interval else "none",
                )
        axes.set_title(title)
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(places, texts)
    panels[0].set_ylim(len(labels) - 0.5, -0.5)
    figure.supxlabel(meaning, size=9.5)
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, ms=4.5, label=f"K = {k}")
        for k, look in zip(shots, map(look_of, range(len(shots))), strict=True)
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def gaps_of(cells: pd.DataFrame, column: str, shots: int) -> dict[str, tuple[float, float]]:
    """Return difference and interval of each method, in one column with one number of shots."""
    found = cells_of(cells, column, shots)
    pairs = zip(found["difference"], found["interval"], strict=True)
    return dict(zip(found["method"], pairs, strict=True))


def count_signs(cells: pd.DataFrame, column: str, shots: int) -> tuple[int, int, int]:
    """Return how many differences are clearly above zero, clearly below, and neither."""
    found = gaps_of(cells, column, shots).values()
    # Without an interval, which is then NaN, nothing is clear.
    above = sum(difference > interval for difference, interval in found)
    below = sum(difference < -interval for difference, interval in found)
    return above, below, len(found) - above - below


def with_interval(difference: float, interval: float) -> str:
    """Return a difference as people read it, with half its interval if it has one."""
    # Zero in place of -0.0; and a minus sign, which is read aloud where a hyphen is not.
    text = f"{round(difference, 1) + 0.0:+.1f}".replace("-", "−")
    return text + ("" if pd.isna(interval) else f" ± {interval:.1f}")

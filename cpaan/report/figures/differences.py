"""Differences with their intervals, one below the other."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cpaan.report.figures.picture import (
    COLOURS,
    INK,
    PALE,
    Picture,
    drawing,
    look_of,
    new_figure,
    write_beside,
)
from cpaan.report.gains import GainSplit, PairedDifference, PairedScores
from cpaan.report.tables import TITLES

_SHOTS = (1, 5)

Gaps = Mapping[tuple[str, int], Mapping[str, PairedDifference]]
"""By column and shots: differences by label, from top to bottom."""


def _draw_forest(gaps: Gaps, meaning: str) -> Figure:
    """Draw differences: a line a label, a panel each for LSL and GLSL, a mark a number of shots."""
    labels = list(next(iter(gaps.values())))
    shots = list(dict.fromkeys(k for _, k in gaps))
    texts = [textwrap.fill(label, 24) for label in labels]
    num_lines = sum(max(1.0, 0.8 * (1 + text.count("\n"))) for text in texts)
    figure = new_figure(height=1.3 + 0.27 * num_lines)
    panels = dict(zip(TITLES, figure.subplots(1, len(TITLES), sharey=True), strict=True))
    for column, axes in panels.items():
        for place in range(0, len(labels), 2):
            axes.axhspan(place - 0.5, place + 0.5, color=INK, alpha=0.04, lw=0)
        axes.axvline(0, color=INK, lw=0.9)
        for number, k in enumerate(shots):
            look = look_of(number)
            shift = 0.36 * ((number + 0.5) / len(shots) - 0.5)
            for place, gap in enumerate(gaps[column, k].values()):
                is_clear = abs(gap.difference) > gap.interval
                axes.errorbar(
                    gap.difference,
                    place + shift,
                    xerr=None if math.isnan(gap.interval) else gap.interval,
                    color=look.color,
                    marker=look.marker,
                    ms=4.5,
                    lw=1.3,
                    mfc=look.color if is_clear else "none",
                )
        axes.set_title(TITLES[column])
        axes.margins(x=0.06)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        _list_rows(axes, texts)
    figure.supxlabel(meaning, size=9.5)
    handles = [
        Line2D([], [], color=look_of(n).color, marker=look_of(n).marker, ms=4.5, label=f"K = {k}")
        for n, k in enumerate(shots)
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def _list_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the lines of a panel, from top to bottom."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


@drawing()
def differences(
    scores: pd.DataFrame,
    subject: str,
    head_of: Mapping[str, str],
    rows: Sequence[str],
    shots: Sequence[int] = _SHOTS,
) -> Picture:
    """Draw the subject minus each of the rows, paired by draw, with 95 % intervals.

    The subject itself is skipped, as are numbers of shots without scores.

    Raises:
        ValueError: If a row has no scores with its head, or there are no rows.
    """
    others = [row for row in rows if row != subject]
    if not others:
        raise ValueError(f"there is no row to compare {subject} with")
    paired = PairedScores(scores)
    drawn = _known(shots, paired)
    ours = (subject, head_of[subject])
    gaps = {
        (column, k): {
            row: paired.compare(ours, (row, head_of.get(row, "")), column, k) for row in others
        }
        for column in TITLES
        for k in drawn
    }
    facts = []
    for column, title in TITLES.items():
        found = gaps[column, drawn[0]].values()
        ahead, behind = sum(gap.low > 0 for gap in found), sum(gap.high < 0 for gap in found)
        unclear = len(found) - ahead - behind
        facts.append(f"in {title} ahead of {ahead}, behind {behind}, unclear for {unclear}")
    return Picture(
        name="differences",
        title=f"{subject} minus every other row",
        caption="Difference in top-5 accuracy, paired by draw, with 95 % intervals: right of zero, "
        f"{subject} is better. Filled marks are clear of zero.",
        alt=f"At K = {drawn[0]}, of {len(others)} rows, {subject} is {'; '.join(facts)}.",
        figure=_draw_forest(gaps, f"{subject} minus the row, points of top-5"),
    )


def _known(shots: Sequence[int], paired: PairedScores) -> list[int]:
    """Return those of the numbers of shots that have scores, or else the fewest."""
    return [k for k in shots if k in paired.shots] or paired.shots[:1]


def _draw_variants(
    scores: pd.DataFrame,
    labels: Mapping[str, str],
    head: str,
    reference: str,
    *,
    name: str,
    title: str,
    meaning: str,
    what: str,
) -> Picture:
    """Draw variants minus a reference, all with one head."""
    paired = PairedScores(scores[scores["method"].isin([reference, *labels.values()])])
    drawn = _known(_SHOTS, paired)
    # A variant may have fewer seeds than the reference. Other seeds of the reference would add a
    # difference between seeds.
    gaps = {
        (column, k): {
            label: paired.compare((row, head), (reference, head), column, k, same_seeds=True)
            for label, row in labels.items()
        }
        for column in TITLES
        for k in drawn
    }
    of_novel = gaps["novel", drawn[0]]
    is_gain = what == "Gain"  # the largest first; otherwise the largest loss
    ranked = sorted(of_novel, key=lambda label: of_novel[label].difference, reverse=is_gain)
    facts = [f"{label}: {of_novel[label].text(1)}" for label in ranked]
    num_seeds = scores.loc[scores["method"].isin(labels.values()), "seed"].nunique()
    seeds = "one training seed" if num_seeds == 1 else f"{num_seeds} training seeds"
    return Picture(
        name=name,
        title=title,
        caption=f"Top-5 accuracy minus that of {reference} with the same {head} head, paired by "
        f"draw, with 95 % intervals: {meaning}. Filled marks are clear of zero; {seeds}.",
        alt=f"{what} in LSL at K = {drawn[0]}. {'; '.join(facts)}.",
        figure=_draw_forest(gaps, f"minus {reference}, points of top-5"),
    )


@drawing()
def gain_by_neighbours(
    scores: pd.DataFrame, labels: Mapping[str, str], head: str, reference: str
) -> Picture:
    """Draw what augmentation gains, by the choice of base classes (the paper's Figure 5a).

    Args:
        scores: Scores by method (name of a row), head, column, shots, draw and seed.
        labels: Kind of neighbour selection to row, from top to bottom.
        head: Of all of them.
        reference: The row without augmentation.
    """
    return _draw_variants(
        scores,
        labels,
        head,
        reference,
        name="gain-by-neighbours",
        title="Gain by the choice of base classes",
        meaning="base classes weighted by their similarity (NBS-S), the k nearest ones (NBS-H), or "
        "all alike",
        what="Gain",
    )


@drawing()
def gain_by_idea(
    scores: pd.DataFrame, labels: Mapping[str, str], head: str, reference: str
) -> Picture:
    """Draw what is lost when one idea at a time is taken away from the reference."""
    return _draw_variants(
        scores,
        labels,
        head,
        reference,
        name="gain-by-idea",
        title=f"{reference}, with one idea at a time taken away",
        meaning="left of zero, the idea helps",
        what="Difference",
    )


@drawing()
def gain_steps(splits: Sequence[GainSplit]) -> Picture:
    """Draw where a gain comes from: bars from one accuracy to the next, a panel for each split.

    Below the steps are controls, which start where the augmentation does.

    Raises:
        ValueError: If there is no split.
    """
    if not splits:
        raise ValueError("there is no gain to draw")
    heights = [3 + len(split.steps) + len(split.beside) for split in splits]
    figure = new_figure(height=0.5 + 0.34 * sum(heights) + 0.35 * len(splits))
    panels = figure.subplots(len(splits), 1, squeeze=False, height_ratios=heights)
    facts = []
    for (axes,), split in zip(panels, splits, strict=True):
        _draw_split(axes, split)
        steps = ", ".join(f"{step.label} {step.text(1)}" for step in split.steps)
        facts.append(
            f"{split.title}, {TITLES[split.column]} at K = {split.shots}: from {split.start:.1f} % "
            f"to {split.start + split.total.difference:.1f} %, of which {steps}."
        )
    panels[-1][0].set_xlabel("top-5 accuracy, %")
    return Picture(
        name="gain-steps",
        title="Where the gain comes from",
        caption="From the accuracy at the top to that at the end of the steps, one change at a "
        "time, paired by draw, ± half the 95 % interval. Pale bars below are what else could stand "
        "in the place of the augmentation, under the same head.",
        alt=" ".join(facts),
        figure=figure,
    )


def _draw_split(axes: Axes, split: GainSplit) -> None:
    levels = [split.start]
    for place, step in enumerate(split.steps, start=1):
        axes.plot([levels[-1]] * 2, [place - 1, place], color=INK, lw=0.7, alpha=0.5)
        colour = COLOURS[0] if step.difference >= 0 else COLOURS[1]
        _draw_step(axes, step, levels[-1], place, height=0.62, color=colour)
        levels.append(levels[-1] + step.difference)
    end = 1 + len(split.steps)
    total = f"{levels[-1]:.1f}  (total {split.total.text(1)})"
    for place, level, text in [(0, split.start, f"{split.start:.1f}"), (end, levels[-1], total)]:
        axes.plot([level], [place], "|", color=INK, ms=14, mew=2)
        write_beside(axes, text, (level, place), (5, 0), va="center")
    before = levels[-2]
    if split.beside:
        axes.axhline(end + 0.5, color=INK, lw=0.7, ls=":", alpha=0.6)
        axes.plot([before] * 2, [end + 0.5, end + 0.5 + len(split.beside)], color=INK, lw=0.7)
    for place, step in enumerate(split.beside, start=end + 1):
        _draw_step(axes, step, before, place, height=0.5, color=PALE, alpha=0.6)
        levels.append(before + step.difference)
    low, high = min(levels), max(levels)
    width = high - low or 1.0
    axes.set_xlim(low - 0.08 * width, high + 0.45 * width)
    start, *labels = ", ".join(split.total.start), *(step.label for step in split.steps)
    controls = [step.end[0] for step in split.beside]
    _list_rows(axes, [start, *labels, ", ".join(split.total.end), *controls])
    axes.set_title(f"{split.title}: {TITLES[split.column]}, K = {split.shots}")


def _draw_step(axes: Axes, step: PairedDifference, start: float, place: int, **style: Any) -> None:
    axes.barh(place, step.difference, left=start, lw=0, **style)
    end = start + step.difference
    reach = 0.0 if math.isnan(step.interval) else step.interval
    if reach:
        axes.plot([end - reach, end + reach], [place, place], color=INK, lw=1)
    write_beside(axes, step.text(1), (max(start, end + reach), place), (5, 0), va="center")

"""Where an accuracy comes from, step by step."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from cpaan.report.figures.forest import with_interval
from cpaan.report.figures.picture import Picture
from cpaan.report.figures.style import COLOURS, INK, PALE, PANELS, SMALL, drawing, new_figure
from cpaan.report.gains import GainSplit
from cpaan.report.gains import PairedDifference as Step

_LINE = 0.34  # inches a bar
_UP, _DOWN = COLOURS[0], COLOURS[1]


@drawing()
def gain_steps(splits: Sequence[GainSplit]) -> Picture:
    """Draw where a gain comes from: bars from one accuracy to the next, a panel for each split.

    Below the steps, what else the last of them could have been: controls from the same start.

    Raises:
        ValueError: If there is no split.
    """
    if not splits:
        raise ValueError("there is no gain to draw")
    heights = [3 + len(split.steps) + len(split.beside) for split in splits]
    figure = new_figure(height=0.5 + _LINE * sum(heights) + 0.35 * len(splits))
    panels = figure.subplots(len(splits), 1, squeeze=False, height_ratios=heights)
    for (axes,), split in zip(panels, splits, strict=True):
        _draw_split(axes, split)
    panels[-1][0].set_xlabel("top-5 accuracy, %")
    return Picture(
        name="gain-steps",
        title="Where the gain comes from",
        caption="From the accuracy at the top to that at the end of the steps, one change at a "
        "time, paired by draw, ± half the 95 % interval. Pale bars below are what else could stand "
        "in the place of the augmentation, under the same head.",
        alt=" ".join(map(_facts, splits)),
        figure=figure,
    )


def _draw_split(axes: Axes, split: GainSplit) -> None:
    names = [_name(split.steps[0].start)]
    levels = [split.start]
    axes.plot([split.start], [0], "|", color=INK, ms=14, mew=2)
    _write(axes, split.start, 0, f"{split.start:.1f}")
    for place, step in enumerate(split.steps, start=1):
        _draw_step(axes, step, levels[-1], place, is_pale=False)
        names.append(step.label)
        levels.append(levels[-1] + step.difference)
    place = len(names)
    axes.plot([levels[-1]], [place], "|", color=INK, ms=14, mew=2)
    total = with_interval(split.total.difference, split.total.interval)
    _write(axes, levels[-1], place, f"{levels[-1]:.1f}  (total {total})")
    names.append(_name(split.total.end))
    # All of these start where the augmentation does.
    before = levels[-2]
    if split.beside:
        axes.axhline(place + 0.5, color=INK, lw=0.7, ls=":", alpha=0.6)
        axes.plot(
            [before, before], [place + 0.5, place + 0.5 + len(split.beside)], color=INK, lw=0.7
        )
    for place, step in enumerate(split.beside, start=len(names)):
        _draw_step(axes, step, before, place, is_pale=True)
        names.append(step.end[0])
    for place, level in enumerate(levels[:-1]):
        axes.plot([level, level], [place, place + 1], color=INK, lw=0.7, alpha=0.5)
    ends = [*levels, *(before + step.difference for step in split.beside)]
    width = max(ends) - min(ends) or 1.0
    axes.set_xlim(min(ends) - 0.08 * width, max(ends) + 0.45 * width)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(f"{split.title}: {PANELS.get(split.column, split.column)}, K = {split.shots}")
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _draw_step(axes: Axes, step: Step, start: float, place: int, *, is_pale: bool) -> None:
    colour = PALE if is_pale else _UP if step.difference >= 0 else _DOWN
    axes.barh(
        place,
        step.difference,
        left=start,
        height=0.5 if is_pale else 0.62,
        color=colour,
        alpha=0.6 if is_pale else 1,
        lw=0,
    )
    end = start + step.difference
    reach = 0.0 if pd.isna(step.interval) else step.interval
    if reach:
        axes.plot([end - reach, end + reach], [place, place], color=INK, lw=1)
    text = with_interval(step.difference, step.interval)
    _write(axes, max(start, end + reach), place, text)


def _write(axes: Axes, x: float, place: int, text: str) -> None:
    axes.annotate(
        text, (x, place), xytext=(5, 0), textcoords="offset points", va="center", size=SMALL
    )


def _name(row_and_head: tuple[str, str]) -> str:
    row, head = row_and_head
    return f"{row}, {head}"


def _facts(split: GainSplit) -> str:
    steps = ", ".join(
        f"{step.label} {with_interval(step.difference, step.interval)}" for step in split.steps
    )
    end = split.start + split.total.difference
    return (
        f"{split.title}, {PANELS.get(split.column, split.column)} at K = {split.shots}: "
        f"from {split.start:.1f} % to {end:.1f} %, of which {steps}."
    )

"""Synthetic examples beside real ones: where they lie, how they spread, and the paper's spiral."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cpaan.data.synthetic import Spiral
from cpaan.gan.spiral import SpiralOutcome
from cpaan.report.figures.picture import (
    COLOURS,
    INK,
    Look,
    Picture,
    drawing,
    hide_ticks,
    label_ends,
    look_of,
    new_figure,
    number_ticks,
    write_beside,
)
from cpaan.report.illustration import REAL, SHOT, SYNTHETIC

_LEAST_SHARE = 1e-6


def _scatter(axes: Axes, x: Any, y: Any, **style: Any) -> None:
    # As pixels: thousands of points drawn as curves make a file of megabytes.
    axes.scatter(x, y, **{"lw": 0, "rasterized": True, **style})


def _draw_key(panels: Sequence[Axes], looks: Mapping[str, Mapping[str, Any]]) -> None:
    """Use the first of the panels that are left over for the key."""
    for axes in panels:
        axes.set_axis_off()
    handles = [Line2D([], [], ls="", label=label, **look) for label, look in looks.items()]
    panels[0].legend(handles=handles, loc="center left", labelspacing=0.7)


@drawing()
def projections(frame: pd.DataFrame) -> Picture:
    """Draw synthetic examples among real ones in the plane (the paper's Figure 5c-e).

    See `cpaan.report.illustration.Illustration` for the columns.
    """
    if frame.empty:
        raise ValueError("there are no points to draw")
    methods, classes = list(frame["method"].unique()), list(frame["class"].unique())
    num_rows = len(methods) // 2 + 1  # with a panel for the key
    figure = new_figure(height=2.75 * num_rows)
    panels = list(figure.subplots(num_rows, 2).flat)
    for axes, method in zip(panels, methods, strict=False):
        of_method = frame[frame["method"] == method]
        for number, name in enumerate(classes):
            points = of_method[of_method["class"] == name]
            _draw_class(axes, dict(iter(points.groupby("kind"))), number)
        axes.set_title(method)
        axes.margins(0.12)
        axes.set_aspect("equal", adjustable="datalim")
        hide_ticks(axes)
    looks: dict[str, dict[str, Any]] = {
        REAL: {"color": INK, "marker": "o", "alpha": 0.28, "mew": 0},
        SHOT: {"color": INK, "marker": "x"},
        SYNTHETIC: {"color": INK, "marker": "*", "ms": 6, "mew": 0},
    }
    for number, name in enumerate(classes):
        looks[f"{number + 1}  {name}"] = {"color": look_of(number).color, "marker": "o", "mew": 0}
    _draw_key(panels[len(methods) :], looks)
    spread = frame.groupby(["kind", "method", "class"])[["x", "y"]].var().sum(axis=1)
    of_kind = spread.groupby(["kind", "method"]).mean() ** 0.5
    shares = of_kind[SYNTHETIC] / of_kind[REAL]
    facts = ", ".join(f"{method} {shares[method]:.2f}" for method in methods)
    num_shots = frame[frame["kind"] == SHOT].groupby(["method", "class"]).size().max()
    return Picture(
        name="projections",
        title="Where synthetic examples lie",
        caption=f"t-SNE of {len(classes)} novel classes: real examples pale, the {num_shots} shots "
        "of each class as crosses, synthetic examples as stars. Good ones cover the pale clouds of "
        "their own class, and no other. Each panel is a t-SNE of its own.",
        alt=f"Spread of the synthetic examples around their class's centre, as a share of that of "
        f"the real ones, in the plane of the picture: {facts}.",
        figure=figure,
    )


def _draw_class(axes: Axes, points: Mapping[str, pd.DataFrame], number: int) -> None:
    """Draw the points of a class by kind, with its number above the real ones."""
    colour, real = look_of(number).color, points[REAL]
    _scatter(axes, real["x"], real["y"], s=16, color=colour, alpha=0.28)
    if SYNTHETIC in points:
        made = points[SYNTHETIC]
        _scatter(axes, made["x"], made["y"], s=20, marker="*", color=colour, alpha=0.9)
    if SHOT in points:
        shots = points[SHOT]
        axes.scatter(shots["x"], shots["y"], s=34, marker="x", color=INK, lw=1.3, zorder=3)
    place = real["x"].mean(), real["y"].max()
    bold = {"ha": "center", "color": colour, "weight": "bold", "size": None}
    write_beside(axes, str(number + 1), place, (0, 3), **bold)


@drawing()
def spectra(frame: pd.DataFrame) -> Picture:
    """Draw how the variance of a class is shared among directions: real, and synthetic by method.

    See `cpaan.report.illustration.Illustration` for the columns; the method "real" is the truth.
    """
    methods = list(frame["method"].unique())
    if REAL not in methods:
        raise ValueError(f"there are no real shares, only those of {', '.join(methods)}")
    others = [name for name in methods if name != REAL]
    quartiles = (
        frame.groupby(["method", "index"])["share"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    )
    # Examples that span few directions have rounding errors in the others.
    quartiles = quartiles[quartiles[0.5] >= _LEAST_SHARE].clip(lower=_LEAST_SHARE)
    figure = new_figure(height=3.8)
    axes = figure.subplots()
    ends = []
    for number, method in enumerate([REAL, *others]):
        look, line = look_of(number - 1), quartiles.loc[method]
        style: dict[str, Any] = {**look._asdict(), "lw": 1.4, "markevery": 4}
        if method == REAL:
            look = Look(INK, "", "-")
            style = {"color": INK, "lw": 2.4, "zorder": 3}
        axes.plot(line.index, line[0.5], **style)
        band: dict[str, Any] = {"color": look.color, "alpha": 0.12, "lw": 0}
        axes.fill_between(line.index, line[0.25], line[0.75], **band)
        ends.append((method, look.color, float(line.index[-1]), float(line[0.5].iloc[-1])))
    axes.set_yscale("log")
    number_ticks(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="direction, by its variance", ylabel="share of the real variance")
    label_ends(axes, ends)
    totals = frame.groupby(["method", "class"])["share"].sum().groupby("method").median()
    facts = ", ".join(f"{name} {totals[name]:.2f}" for name in others)
    return Picture(
        name="spectra",
        title="Covariance spectra of real and synthetic classes",
        caption="Eigenvalues of a novel class's covariance, largest first, as shares of the real "
        "class's total variance: median over classes, with the quartiles as a band. A line ends "
        "where less than a millionth is left.",
        alt=f"The first {frame['index'].max()} directions have {totals[REAL]:.2f} of the real "
        f"variance; of synthetic examples, in the same unit: {facts}.",
        figure=figure,
    )


@drawing()
def draw_spiral(points: Spiral, outcomes: Mapping[str, SpiralOutcome]) -> Picture:
    """Draw the paper's toy experiment (its Figure 3): the raw spiral, and what GANs make of it.

    Pale: the truth; crosses: the novel points that may be used; strong dots: base points
    translated into the novel arms; rings: these, translated back.
    """
    if not outcomes:
        raise ValueError("there are no outcomes of GANs to draw")
    num_rows = -(-(2 + len(outcomes)) // 3)  # with the raw spiral, and the key
    figure = new_figure(height=2.2 * num_rows, width=6.4)
    panels = list(figure.subplots(num_rows, 3).flat)
    for axes, name in zip(panels, ["raw", *outcomes], strict=False):
        outcome = outcomes.get(name)
        for number in range(len(points.base)):
            _draw_arms(axes, points, outcome, number)
        axes.set_title(name if outcome is None else f"{name}: {outcome.diversity_ratio:.2f}")
        axes.set_aspect("equal")
        hide_ticks(axes)
    base, novel = COLOURS[0], COLOURS[2]
    looks: dict[str, dict[str, Any]] = {
        "base arms": {"marker": "o", "color": base, "mew": 0},
        "true novel arms": {"marker": "o", "color": novel, "alpha": 0.25, "mew": 0},
        "shots": {"marker": "x", "color": INK},
        "translated": {"marker": "o", "color": novel, "mew": 0},
        "translated back": {"marker": "o", "color": novel, "mfc": "none"},
    }
    _draw_key(panels[1 + len(outcomes) :], looks)
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


def _draw_arms(axes: Axes, points: Spiral, outcome: SpiralOutcome | None, number: int) -> None:
    """Draw a base arm and a novel one."""
    base, novel = COLOURS[number], COLOURS[2 + number]
    is_raw = outcome is None
    _scatter(axes, *points.base[number].T, s=6, color=base, alpha=0.8 if is_raw else 0.15)
    _scatter(axes, *points.novel[number].T, s=6, color=novel, alpha=0.15)
    if outcome is not None:
        _scatter(axes, *outcome.translated[number].T, s=6, color=novel, alpha=0.9)
        ring = {"facecolors": "none", "edgecolors": novel, "lw": 0.5}
        _scatter(axes, *outcome.returned[number].T, s=6, alpha=0.6, **ring)
    x, y = points.shots[number].T
    axes.scatter(x, y, s=30, marker="x", color=INK, lw=1.2, zorder=3)

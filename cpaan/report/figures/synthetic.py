"""Synthetic examples beside real ones: where they lie, how they spread, and the paper's spiral."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cpaan.evaluation.illustration import REAL, SHOT, SYNTHETIC
from cpaan.report.figures.picture import (
    COLOURS,
    GROUND,
    INK,
    WIDTH,
    Picture,
    drawing,
    label_ends,
    look_of,
    new_figure,
    number_ticks,
)

_LEAST_SHARE = 1e-6
_SHOT_LOOK = {"s": 34, "marker": "x", "color": INK, "lw": 1.3, "zorder": 3, "rasterized": False}

_Layer = tuple[Any, Mapping[str, Any]]
"""Points, shape (n, 2), and how `Axes.scatter` draws them."""


def _scatter_panels(
    panels: Mapping[str, Sequence[_Layer]],
    key: Mapping[str, Mapping[str, Any]],
    num_columns: int,
) -> tuple[Figure, list[Axes]]:
    """Draw panels of points by title, and a key of looks by label below them."""
    num_rows = -(-len(panels) // num_columns)
    figure = new_figure(height=WIDTH / num_columns * num_rows + 0.25 * len(key) / num_columns)
    every = list(figure.subplots(num_rows, num_columns).flat)
    for axes, (title, layers) in zip(every, panels.items(), strict=False):
        for points, style in layers:
            # As pixels: thousands of points drawn as curves make a file of megabytes.
            axes.scatter(*np.asarray(points).T, **{"lw": 0, "rasterized": True, **style})
        axes.set(title=title, xticks=[], yticks=[])
        axes.margins(0.12)
        axes.set_aspect("equal", adjustable="datalim")
        axes.spines[:].set(visible=True, alpha=0.3)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    handles = [Line2D([], [], ls="", label=label, **look) for label, look in key.items()]
    figure.legend(handles=handles, loc="outside lower left", ncols=num_columns)
    return figure, every


@drawing()
def projections(frame: pd.DataFrame) -> Picture:
    """Draw synthetic examples among real ones in the plane (the paper's Figure 5c-e).

    See `cpaan.evaluation.illustration.Illustration` for the columns.
    """
    methods, classes = list(frame["method"].unique()), list(frame["class"].unique())
    colours = {name: look_of(number).color for number, name in enumerate(classes)}
    panels: dict[str, list[_Layer]] = {method: [] for method in methods}
    groups: Any = frame.groupby(["method", "class", "kind"])
    for (method, name, kind), points in groups:
        look = {
            REAL: {"s": 16, "color": colours[name], "alpha": 0.28},
            SYNTHETIC: {"s": 20, "color": colours[name], "alpha": 0.9, "marker": "*"},
            SHOT: _SHOT_LOOK,
        }[kind]
        panels[method].append((points[["x", "y"]], look))
    key: dict[str, dict[str, Any]] = {
        REAL: {"color": INK, "marker": "o", "alpha": 0.28, "mew": 0},
        SHOT: {"color": INK, "marker": "x"},
        SYNTHETIC: {"color": INK, "marker": "*", "ms": 6, "mew": 0},
    }
    for number, name in enumerate(classes, start=1):
        key[f"{number}  {name}"] = {"color": colours[name], "marker": "o", "mew": 0}
    figure, every = _scatter_panels(panels, key, num_columns=3 if len(panels) == 3 else 2)
    for (method, name, kind), points in groups:
        if kind == REAL:  # the number of its class is in the middle of them
            style: Any = {"ha": "center", "va": "center", "color": INK, "weight": "bold"}
            x, y, number = points["x"].median(), points["y"].median(), classes.index(name) + 1
            ring = {"boxstyle": "circle,pad=0.2", "fc": GROUND, "ec": colours[name], "lw": 1.5}
            every[methods.index(method)].text(x, y, str(number), bbox=ring, zorder=4, **style)
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


@drawing()
def spectra(frame: pd.DataFrame) -> Picture:
    """Draw how the variance of a class is shared among directions: real, and synthetic by method.

    `cpaan.evaluation.illustration` has the columns; the method "real" is the truth.
    """
    methods = list(frame["method"].unique())
    others = [name for name in methods if name != REAL]
    looks: dict[str, dict[str, Any]] = {REAL: {"color": INK, "lw": 2.4, "zorder": 3}}
    looks |= {name: {**look_of(n)._asdict(), "markevery": 4} for n, name in enumerate(others)}
    quartiles = (
        frame.groupby(["method", "index"])["share"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    )
    # Examples that span few directions have rounding errors in the others.
    quartiles = quartiles[quartiles[0.5] >= _LEAST_SHARE].clip(lower=_LEAST_SHARE)
    figure = new_figure(height=3.8)
    axes = figure.subplots()
    ends = []
    for method, look in looks.items():
        line, colour = quartiles.loc[method], look["color"]
        axes.plot(line.index, line[0.5], **look)
        axes.fill_between(line.index, line[0.25], line[0.75], color=colour, alpha=0.12, lw=0)
        ends.append((method, colour, float(line.index[-1]), float(line[0.5].iloc[-1])))
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
def draw_spiral(spiral: Mapping[str, Any]) -> Picture:
    """Draw the paper's toy experiment, as `cpaan.gan.spiral.to_plain` returns it.

    Pale: the truth; crosses: the novel points that may be used; strong dots: base points
    translated into the novel arms; rings: these, translated back.
    """
    panels: dict[str, list[_Layer]] = {}
    outcomes: Mapping[str, Mapping[str, Any]] = spiral["outcomes"]
    for name, outcome in {"raw": None, **outcomes}.items():
        title = name if outcome is None else f"{name}: {outcome['diversity_ratio']:.2f}"
        layers = panels[title] = []
        for number, (base, novel) in enumerate(zip(COLOURS[:2], COLOURS[2:4], strict=True)):
            alpha = 0.8 if outcome is None else 0.15
            layers.append((spiral["base"][number], {"s": 6, "color": base, "alpha": alpha}))
            layers.append((spiral["novel"][number], {"s": 6, "color": novel, "alpha": 0.15}))
            if outcome is not None:
                ring = {"s": 6, "facecolors": "none", "edgecolors": novel, "lw": 0.5, "alpha": 0.6}
                layers.append(
                    (outcome["translated"][number], {"s": 6, "color": novel, "alpha": 0.9})
                )
                layers.append((outcome["returned"][number], ring))
            layers.append((spiral["shots"][number], _SHOT_LOOK))
    base, novel = COLOURS[0], COLOURS[2]
    key: dict[str, dict[str, Any]] = {
        "base arms": {"marker": "o", "color": base, "mew": 0},
        "true novel arms": {"marker": "o", "color": novel, "alpha": 0.25, "mew": 0},
        "shots": {"marker": "x", "color": INK},
        "translated": {"marker": "o", "color": novel, "mew": 0},
        "translated back": {"marker": "o", "color": novel, "mfc": "none"},
    }
    facts = ", ".join(
        f"{name} {outcome['diversity_ratio']:.2f}" for name, outcome in outcomes.items()
    )
    return Picture(
        name="spiral",
        title="The spiral: what the GANs make of it",
        caption="Two base arms, top and bottom, are translated into two novel ones, left and "
        "right, of which only the crosses are known. The number is the diversity of translated "
        "points over that of true ones: one is right. First, what is given; one training seed.",
        alt=f"Diversity of translated points over that of true ones: {facts}.",
        figure=_scatter_panels(panels, key, num_columns=3)[0],
    )

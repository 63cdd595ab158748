"""Synthetic examples beside real ones: where they lie, and how they spread."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cpaan.report.figures.picture import Picture
from cpaan.report.figures.style import (
    INK,
    Look,
    drawing,
    label_ends,
    look_of,
    new_figure,
    number_ticks,
)

REAL = "real"
_NUM_COLUMNS = 2
_LEAST_SHARE = 1e-6


@drawing()
def projections(frame: pd.DataFrame, class_names: Mapping[str, str]) -> Picture:
    """Draw synthetic examples among real ones in the plane (the paper's Figure 5c-e).

    Args:
        frame: Columns method, class, kind ("real", "shot" or "synthetic"), x and y.
        class_names: What to call a class, where its own name says little.

    Raises:
        ValueError: If there is no point.
    """
    if frame.empty:
        raise ValueError("there are no points to draw")
    methods = list(frame["method"].unique())
    classes = list(frame["class"].unique())
    num_rows = len(methods) // _NUM_COLUMNS + 1  # one place more, for the key
    figure = new_figure(height=2.75 * num_rows)
    places = list(figure.subplots(num_rows, _NUM_COLUMNS).flat)
    for axes, method in zip(places, methods, strict=False):
        _draw_points(axes, frame[frame["method"] == method], classes)
        axes.set_title(method)
    rest = places[len(methods) :]
    for axes in rest:
        axes.set_axis_off()
    _draw_key(rest[0], [class_names.get(name, name) for name in classes])
    num_shots = frame[frame["kind"] == "shot"].groupby(["method", "class"]).size().max()
    shares = _reach(frame)
    facts = ", ".join(f"{method} {share:.2f}" for method, share in shares.items())
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


def _draw_points(axes: Axes, points: pd.DataFrame, classes: list[str]) -> None:
    for number, name in enumerate(classes):
        colour = look_of(number).colour
        of_class = points[points["class"] == name]
        real, shots, made = (
            of_class[of_class["kind"] == kind] for kind in (REAL, "shot", "synthetic")
        )
        # As pixels: thousands of points drawn as curves make a file of megabytes.
        axes.scatter(real["x"], real["y"], s=16, color=colour, alpha=0.28, lw=0, rasterized=True)
        axes.scatter(
            made["x"], made["y"], s=20, marker="*", color=colour, alpha=0.9, lw=0, rasterized=True
        )
        axes.scatter(shots["x"], shots["y"], s=34, marker="x", color=INK, lw=1.3, zorder=3)
        axes.annotate(
            str(number + 1),
            (real["x"].mean(), real["y"].max()),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=colour,
            weight="bold",
        )
    axes.margins(0.12)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_alpha(0.3)


def _draw_key(axes: Axes, names: list[str]) -> None:
    def mark(label: str, look: Look, **style: object) -> Line2D:
        return Line2D([], [], ls="", color=look.colour, label=label, **style)  # type: ignore[arg-type]

    ink = Look(INK, "", "")
    handles = [
        mark("real", ink, marker="o", alpha=0.28, mew=0),
        mark("shot", ink, marker="x"),
        mark("synthetic", ink, marker="*", ms=6, mew=0),
        *(
            mark(f"{number + 1}  {name}", look_of(number), marker="o", mew=0)
            for number, name in enumerate(names)
        ),
    ]
    axes.legend(handles=handles, loc="center left", labelspacing=0.6)


def _reach(frame: pd.DataFrame) -> dict[str, float]:
    """Return the spread of synthetic examples over that of real ones, by method."""

    def spread(points: pd.DataFrame) -> pd.Series:
        variances = points.groupby(["method", "class"])[["x", "y"]].var()
        return variances.sum(axis=1).groupby("method", sort=False).mean() ** 0.5

    shares = spread(frame[frame["kind"] == "synthetic"]) / spread(frame[frame["kind"] == REAL])
    return {method: float(shares[method]) for method in frame["method"].unique()}


@drawing()
def spectra(frame: pd.DataFrame) -> Picture:
    """Draw how the variance of a class is shared among directions: real, and synthetic by method.

    Args:
        frame: Columns method ("real" is the truth), class, index (from 1) and share: the
            eigenvalue over the trace of the real class's covariance.

    Raises:
        ValueError: If there are no real shares.
    """
    methods = list(frame["method"].unique())
    if REAL not in methods:
        raise ValueError(f"there are no real shares, only those of {', '.join(methods)}")
    by_index = frame.groupby(["method", "index"])["share"]
    # Examples that span few directions have rounding errors in the others: no share of anything.
    median = by_index.median().where(lambda share: share >= _LEAST_SHARE).dropna()
    low, high = by_index.quantile(0.25), by_index.quantile(0.75)
    figure = new_figure(height=3.8)
    axes = figure.subplots()
    ends = []
    for number, method in enumerate([REAL, *(name for name in methods if name != REAL)]):
        look = Look(INK, "", "-") if method == REAL else look_of(number - 1)
        line = median[method]
        axes.plot(
            line.index,
            line,
            color=look.colour,
            ls=look.dashes,
            marker=look.marker,
            markevery=4,
            lw=2.4 if method == REAL else 1.4,
            zorder=3 if method == REAL else 2,
        )
        axes.fill_between(
            line.index,
            low[method][line.index].clip(lower=_LEAST_SHARE),
            high[method][line.index],
            color=look.colour,
            alpha=0.12,
            lw=0,
        )
        ends.append((method, look.colour, float(line.index[-1]), float(line.iloc[-1])))
    axes.set_yscale("log")
    number_ticks(axes.yaxis)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("direction, by its variance")
    axes.set_ylabel("share of the real variance")
    label_ends(axes, ends)
    totals = frame.groupby(["method", "class"])["share"].sum().groupby("method").median()
    facts = ", ".join(f"{name} {totals[name]:.2f}" for name in methods if name != REAL)
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

"""Optuna's own plots, taken out of pyplot and put into our style."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import optuna
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from optuna.exceptions import ExperimentalWarning

from cpaan.report.figures.style import COLOURS, INK, PALE, WIDTH, drawing, number_ticks

_NUM_COLUMNS = 3
BETTER = LinearSegmentedColormap.from_list("better", [PALE, COLOURS[0]])
"""From pale to blue: both ends are seen on light and on dark pages."""


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Let Optuna make studies and plots without telling so; its settings are left as they were."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            # Of importances; captions say how few trials there are.
            warnings.filterwarnings("ignore", "Some regimes for parameter", UserWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def taken(plot: Callable[..., Any], *arguments: Any, **named: Any) -> list[Axes]:
    """Return the panels of a plot that Optuna draws with pyplot, which forgets them.

    The user's backend and settings of matplotlib are left as they were.
    """
    backend = mpl.get_backend()
    plt.switch_backend("agg")  # no windows
    try:
        # Within the style, since Optuna sets another for all that follows.
        with drawing(), quiet_optuna():
            panels = np.atleast_1d(plot(*arguments, **named))
        plt.close(panels[0].get_figure())
    finally:
        plt.switch_backend(backend)
    return list(panels)


def restyle(panels: Sequence[Axes], height: float) -> Figure:
    """Give panels of Optuna our style, and their figure our width; return that."""
    figure = panels[0].get_figure(root=True)
    assert figure is not None
    figure.set_layout_engine("constrained")
    figure.set_size_inches(WIDTH, height)
    figure.suptitle("")
    for axes in figure.axes:
        axes.set_title("")
        axes.set_title("", loc="left")
        axes.set_facecolor("none")
        axes.tick_params(which="both", colors=INK, labelsize=9)
        axes.spines[:].set_color(INK)
        axes.spines[:].set_linewidth(0.8)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_color(INK)
            axis.label.set_fontsize(9.5)
            if axis.get_scale() == "log":
                number_ticks(axis)
    for axes in panels:
        axes.set_axisbelow(True)
        axes.grid(visible=True, color=INK, alpha=0.12, lw=0.7, ls="-")
        axes.spines[["left", "bottom"]].set_visible(True)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def stack(panels: Sequence[Axes]) -> int:
    """Put panels that stand in one long row into rows of three; return how many rows."""
    num_rows = -(-len(panels) // _NUM_COLUMNS)
    figure = panels[0].get_figure()
    assert figure is not None
    grid = figure.add_gridspec(num_rows, _NUM_COLUMNS)
    for number, axes in enumerate(panels):
        axes.set_subplotspec(grid[number // _NUM_COLUMNS, number % _NUM_COLUMNS])
        is_first = number % _NUM_COLUMNS == 0
        axes.tick_params(labelleft=is_first, labelbottom=True)
        axes.yaxis.label.set_visible(is_first)
    return num_rows


def without_bar(figure: Figure) -> None:
    """Take a figure's colour bar away, and give its room to the panels."""
    for axes in figure.axes:
        for collection in axes.collections:
            if collection.colorbar is not None:
                collection.colorbar.remove()


def without_legend(axes: Axes) -> None:
    """Take a panel's legend away, if it has one."""
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()


def name_choices(axes: Axes) -> None:
    """Write choices below a panel as people do, where Optuna writes them as Python does."""
    if not axes.xaxis.have_units():
        return
    labels = [label.get_text().strip("'") for label in axes.get_xticklabels()]
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.5, len(labels) - 0.5)

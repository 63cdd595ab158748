"""What the trials of searches cost."""

from collections.abc import Mapping

import pandas as pd
from matplotlib.lines import Line2D

from cpaan.report.figures.picture import Picture
from cpaan.report.figures.style import COLOURS, INK, SMALL, drawing, new_figure, number_ticks
from cpaan.report.figures.trials import COMPLETE, FAILED, STOPPED, UNFINISHED


@drawing()
def cost_of_trials(trials_of: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw how long trials took: a line for each row, a mark for each trial, by how it ended.

    Args:
        trials_of: The ``trials.parquet`` of each row.

    Raises:
        ValueError: If no trial has begun.
    """
    num_trials = sum(map(len, trials_of.values()))
    if not num_trials:
        raise ValueError("there are no trials to draw")
    looks = {
        COMPLETE: ("o", COLOURS[0]),
        STOPPED: ("v", COLOURS[4]),
        FAILED: ("x", COLOURS[1]),
        UNFINISHED: ("1", INK),
    }
    figure = new_figure(height=1.4 + 0.27 * len(trials_of))
    axes = figure.subplots()
    totals = {row: float(trials["seconds"].sum()) for row, trials in trials_of.items()}
    for place, (row, trials) in enumerate(trials_of.items()):
        for state, (marker, colour) in looks.items():
            seconds = trials.loc[(trials["state"] == state) & (trials["seconds"] > 0), "seconds"]
            axes.plot(
                seconds, [place] * len(seconds), marker, color=colour, ms=5, alpha=0.75, mew=1
            )
        axes.annotate(
            _duration(totals[row]),
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=SMALL,
        )
    axes.set_xscale("log")
    number_ticks(axes.xaxis)
    axes.set_xlabel("seconds a trial")
    axes.set_yticks(range(len(trials_of)), list(trials_of))
    axes.set_ylim(len(trials_of) - 0.5, -0.8)
    axes.set_title("all trials", loc="right", size=SMALL, weight="normal")
    there = set(pd.concat([trials["state"] for trials in trials_of.values()]))
    handles = [
        Line2D([], [], ls="", marker=marker, color=colour, label=state)
        for state, (marker, colour) in looks.items()
        if state in there
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    dearest = max(totals, key=lambda row: totals[row])
    return Picture(
        name="cost",
        title="What the searches cost",
        caption="Seconds of training and evaluation of each trial, by how it ended; at the right, "
        "the sum of each search.",
        alt=f"{num_trials} trials of {len(trials_of)} searches took "
        f"{_duration(sum(totals.values()))}; the longest search is that of {dearest}, with "
        f"{_duration(totals[dearest])}.",
        figure=figure,
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

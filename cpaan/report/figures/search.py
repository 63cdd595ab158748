"""Pictures of a search: scores of trials, parameters, learning curves and cost."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    IntDistribution,
    json_to_distribution,
)
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from cpaan.report.figures.picture import (
    COLOURS,
    INK,
    PALE,
    SMALL,
    Picture,
    drawing,
    new_figure,
    number_ticks,
    slug,
)

COMPLETE, STOPPED, FAILED, UNFINISHED = "complete", "stopped early", "failed", "unfinished"
_SCORE = "validation score, %"
_LEAST = 4  # trials, below which nothing is said of parameters
_MOST_COORDINATES = 5  # parallel axes that are legible on a phone
_BEST_SHARE = 0.25  # of the trials: importances compare these with all
_BETTER = LinearSegmentedColormap.from_list("better", [PALE, COLOURS[0]])


@dataclass(frozen=True)
class _Search:
    """The scored trials of a search, without those far below the others."""

    method: str
    trials: pd.DataFrame
    left_out: str
    """Which trials are far below the others, in words."""

    def picture(self, kind: str, title: str, caption: str, **others: Any) -> Picture:
        name, title = f"{slug(self.method)}-{kind}", f"{self.method}: {title}"
        return Picture(name=name, title=title, caption=caption + self.left_out, **others)

    @property
    def best(self) -> Any:
        return self.trials.iloc[self.trials["score"].argmax()]

    @cached_property
    def ranges(self) -> dict[str, BaseDistribution]:
        """The ranges of parameters of which trials tried more than one value."""
        found = {
            name: json_to_distribution(text)
            for each in self.trials["distributions"]
            for name, text in json.loads(each).items()
        }
        return {name: of for name, of in found.items() if self.trials[name].nunique() > 1}

    def parameters(self, trial: Any) -> dict[str, Any]:
        """Return a trial's parameters, whole numbers as such: with gaps, a table has fractions."""
        return {
            name: int(trial[name]) if isinstance(of, IntDistribution) else trial[name]
            for name, of in self.ranges.items()
            if not pd.isna(trial[name])
        }

    def importances(self) -> dict[str, float]:
        """Return how important parameters are, the most important first."""
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(direction="maximize")
        for trial in self.trials.to_dict("records"):
            params = self.parameters(trial)
            ranges = {name: self.ranges[name] for name in params}
            study.add_trial(create_trial(value=trial["score"], params=params, distributions=ranges))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                # Captions say how few trials there are.
                warnings.filterwarnings("ignore", "Some regimes for parameter", UserWarning)
                evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
                names = list(self.ranges)
                found = get_param_importances(study, evaluator=evaluator, params=names)
        finally:
            optuna.logging.set_verbosity(verbosity)
        # Optuna's own order of equal ones changes from run to run.
        return {name: found[name] for name in sorted(names, key=lambda name: -found[name])}


@drawing()
def search_pictures(trials: pd.DataFrame, method: str, rungs: Sequence[int]) -> list[Picture]:
    """Draw a search: its history, what parameters did, and how trials learned.

    Args:
        trials: A study's ``trials.parquet``.
        method: Whose search it is.
        rungs: After how many episodes trials could be stopped early.

    Returns:
        History, importances, slices, parallel coordinates, curves: those that the trials can give.
        With fewer than four scored trials, nothing is said of parameters.
    """
    pictures = []
    scored = trials[trials["state"].isin([COMPLETE, STOPPED]) & np.isfinite(trials["score"])]
    if len(scored):
        # A trial that learned nothing would flatten all others.
        is_far = scored["score"] < _floor(scored["score"])
        far = [f"{each.trial} ({each.score:.1f} %)" for each in scored[is_far].itertuples()]
        left_out = f" Left out, far below the others: trial {', '.join(far)}." if far else ""
        search = _Search(method, scored[~is_far].sort_values("trial"), left_out)
        pictures.append(_history(search))
        if len(search.trials) >= _LEAST and search.trials["score"].nunique() > 1:
            if len(search.ranges) == 1:  # nothing to rank, and one panel shows it all
                pictures.append(_slices(search, list(search.ranges)))
            elif search.ranges:
                ranked = search.importances()
                pictures.append(_importances(search, ranked))
                pictures.append(_slices(search, list(ranked)))
                pictures.append(_coordinates(search, list(ranked)))
    if (trials["curve"].map(len) > 1).any():
        pictures.append(_curves(trials, method, rungs))
    return pictures


def _floor(scores: pd.Series) -> float:
    """Return the score below which a trial is far from the others.

    That is three times as far below the lower quartile as the best is above it.
    """
    quartile = scores.quantile(0.25)
    return float(quartile - 3 * (scores.max() - quartile))


def _panel(height: float, handles: Sequence[Line2D] = (), **labels: str) -> tuple[Figure, Axes]:
    """Return a new figure and its only panel, with a key below it."""
    figure = new_figure(height)
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    axes = figure.subplots()
    axes.set(**labels)
    return figure, axes


def _handle(label: str, **look: Any) -> Line2D:
    return Line2D([], [], label=label, **look)


def _history(search: _Search) -> Picture:
    trials, best = search.trials, search.best
    blue = COLOURS[0]
    handles = [
        _handle("complete", ls="", marker="o", color=blue),
        _handle(STOPPED, ls="", marker="o", color=blue, mfc="none"),
        _handle("best so far", color=COLOURS[1]),
    ]
    figure, axes = _panel(3.4, handles, xlabel="trial", ylabel=_SCORE)
    colours = [blue if state == COMPLETE else "none" for state in trials["state"]]
    axes.scatter(trials["trial"], trials["score"], s=28, c=colours, edgecolors=blue)
    axes.step(trials["trial"], trials["score"].cummax(), where="post", color=COLOURS[1])
    return search.picture(
        "history",
        "history of the search",
        "The validation score of each trial, in the order in which they began; of those that were "
        "stopped early, the last one that they had.",
        alt=f"The best of {len(trials)} scored trials is trial {best['trial']} with "
        f"{best['score']:.2f} %, {best['state']}; the median trial has "
        f"{trials['score'].median():.2f} %.",
        figure=figure,
    )


def _importances(search: _Search, importances: Mapping[str, float]) -> Picture:
    figure, axes = _panel(1.0 + 0.28 * len(importances), xlabel="importance")
    bars = axes.barh(list(importances), list(importances.values()), color=COLOURS[0])
    axes.bar_label(bars, fmt="%.2f", padding=3, size=SMALL)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    facts = ", ".join(f"{name} {importances[name]:.2f}" for name in list(importances)[:3])
    return search.picture(
        "importances",
        "importance of parameters",
        "How much the best quarter of the trials differs from all in each parameter (PED-ANOVA). "
        f"Of {len(search.trials)} trials, these are hints.",
        alt=f"The most important parameters are {facts}.",
        figure=figure,
    )


def _slices(search: _Search, names: Sequence[str]) -> Picture:
    num_columns = 3
    num_rows = -(-len(names) // num_columns)
    figure = new_figure(height=0.5 + 1.75 * num_rows)
    trials, best = search.trials, search.best
    first = None
    for number, name in enumerate(names):
        axes = figure.add_subplot(num_rows, num_columns, number + 1, sharey=first)
        first = first or axes
        has = trials[trials[name].notna()]
        chosen, ringed = has[name], best[name]
        if isinstance(search.ranges[name], CategoricalDistribution):
            chosen, ringed = chosen.astype(str), ringed if pd.isna(ringed) else str(ringed)
            axes.margins(x=0.25)
        axes.scatter(chosen, has["score"], s=22, c=has["trial"], cmap=_BETTER, lw=0)
        if not pd.isna(ringed):
            axes.plot([ringed], [best["score"]], "o", ms=9, mfc="none", color=COLOURS[1], mew=1.5)
        if getattr(search.ranges[name], "log", False):
            axes.set_xscale("log")
            number_ticks(axes.xaxis)
        axes.set_xlabel(name, size=SMALL)
        axes.tick_params(labelsize=8, labelleft=number % num_columns == 0)
        if number % num_columns == 0:
            axes.set_ylabel("score, %")
    facts = _listed(search.parameters(best))
    return search.picture(
        "slices",
        "score against each parameter",
        "The validation score of each trial against the parameters that it had, the most important "
        "ones first; later trials are bluer, the best one is ringed.",
        alt=f"Parameters of the best trial, {best['trial']}, with {best['score']:.2f} %: {facts}.",
        figure=figure,
    )


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


def _coordinates(search: _Search, ranked: Sequence[str]) -> Picture:
    names, trials = ranked[:_MOST_COORDINATES], search.trials
    figure, axes = _panel(4.0)
    axes.set(xlim=(-0.2, len(names) + 0.4), ylim=(-0.05, 1.05), yticks=[])
    columns = []
    for place, name in enumerate(["score", *names]):
        of, values = search.ranges.get(name), trials[name]
        if isinstance(of, CategoricalDistribution):
            present = values.dropna().astype(str)
            codes, labels = pd.factorize(present, sort=True)
            heights = pd.Series(codes, index=present.index).reindex(values.index)
            ticks = dict(enumerate(labels))
        else:
            heights = np.log(values) if getattr(of, "log", False) else values
            ends = values.min(), values.max()
            ticks = dict(
                zip((heights.min(), heights.max()), map("{:.3g}".format, ends), strict=True)
            )
        low, width = heights.min(), heights.max() - heights.min()
        columns.append((heights - low) / width)
        axes.axvline(place, color=INK, lw=0.8)
        for height, label in ticks.items():
            axes.text(place + 0.04, (height - low) / width, label, size=8, va="center", zorder=3)
    lines = [np.column_stack([range(len(columns)), line]) for line in np.column_stack(columns)]
    order = trials["score"].argsort()  # the best are drawn last, on top
    scores = trials["score"].iloc[order]
    paths = LineCollection([lines[n] for n in order], array=scores, cmap=_BETTER, lw=1.6)
    axes.add_collection(paths)
    titles = ["score, %", *names]
    axes.set_xticks(range(len(titles)), titles, rotation=25, ha="right", rotation_mode="anchor")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    top = trials.nlargest(3, "score")
    facts = "; ".join(
        f"trial {trial['trial']}, {trial['score']:.2f} %: "
        + _listed({name: search.parameters(trial).get(name, "none") for name in names})
        for _, trial in top.iterrows()
    )
    most = f" The {len(names)} most important of {len(ranked)}." if len(ranked) > len(names) else ""
    return search.picture(
        "coordinates",
        "parameters of every trial",
        "A line for each trial, from its validation score through its parameters; the bluer, the "
        f"better.{most}",
        alt=f"The best trials are {facts}.",
        figure=figure,
    )


def _curves(trials: pd.DataFrame, method: str, rungs: Sequence[int]) -> Picture:
    blue = COLOURS[0]
    rung_look: dict[str, Any] = {"color": COLOURS[1], "lw": 1, "ls": ":"}
    handles = [
        _handle("complete", color=blue, marker="."),
        _handle(STOPPED, color=PALE, marker=".", ls="--"),
    ]
    if rungs:
        handles.append(_handle("rungs of ASHA", **rung_look))
    figure, axes = _panel(3.6, handles, xlabel="episodes", ylabel=_SCORE)
    share = _share_of_novel(trials)
    points: list[float] = []
    for trial in trials.to_dict("records"):
        curve = {
            entry["episode"]: share * entry["novel_top5"] + (1 - share) * entry["all_top5"]
            for entry in trial["curve"]
        }
        complete = trial["state"] == COMPLETE
        look: dict[str, Any] = (
            {"color": blue, "lw": 1.5} if complete else {"color": PALE, "lw": 1, "ls": "--"}
        )
        axes.plot(list(curve), list(curve.values()), marker=".", alpha=0.9, **look)
        points += curve.values()
    found = pd.Series(points)
    kept = found[found >= _floor(found)]
    room = 0.06 * (kept.max() - kept.min()) or 1.0
    axes.set_ylim(kept.min() - room, kept.max() + room)
    for rung in rungs:
        axes.axvline(rung, **rung_look)
    below = " Points far below the others are cut off." if len(kept) < len(found) else ""
    counts = trials["state"].value_counts()
    stops = f" at the rungs after {', '.join(map(str, rungs))} episodes" if rungs else ""
    return _Search(method, trials, below).picture(
        "curves",
        "how trials learned",
        "The validation score against the number of episodes. At each rung, trials that are behind "
        "the others are stopped.",
        alt=f"{counts.get(COMPLETE, 0)} of {len(trials)} trials are complete, "
        f"{counts.get(STOPPED, 0)} were stopped early{stops}.",
        figure=figure,
    )


def _share_of_novel(trials: pd.DataFrame) -> float:
    """Return the weight of ``novel_top5`` in the score, of both together one; else a half."""
    gaps = (trials["novel_top5"] - trials["all_top5"]).abs()
    if not (gaps > 0).any():
        return 0.5
    row = trials.iloc[gaps.argmax()]
    share = (row["score"] - row["all_top5"]) / (row["novel_top5"] - row["all_top5"])
    return float(np.clip(share, 0, 1))


@drawing()
def cost_of_trials(trials_of: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw how long the trials of each row took: a mark for each trial, by how it ended."""
    if not any(map(len, trials_of.values())):
        raise ValueError("there are no trials to draw")
    everything = pd.concat(trials_of, names=["row"]).reset_index("row")
    looks: dict[str, dict[str, Any]] = {
        COMPLETE: {"marker": "o", "color": COLOURS[0]},
        STOPPED: {"marker": "v", "color": COLOURS[4]},
        FAILED: {"marker": "x", "color": COLOURS[1]},
        UNFINISHED: {"marker": "1", "color": INK},
    }
    there = set(everything["state"])
    handles = [_handle(state, ls="", **look) for state, look in looks.items() if state in there]
    figure, axes = _panel(1.4 + 0.27 * len(trials_of), handles, xlabel="seconds a trial")
    places = {row: place for place, row in enumerate(trials_of)}
    for state, look in looks.items():
        found = everything[(everything["state"] == state) & (everything["seconds"] > 0)]
        axes.plot(found["seconds"], found["row"].map(places), ls="", alpha=0.75, mew=1, **look)
    totals = everything.groupby("row", sort=False)["seconds"].sum()
    for row, place in places.items():
        where = axes.get_yaxis_transform()
        axes.text(1.02, place, _duration(totals[row]), transform=where, va="center", size=SMALL)
    axes.set_xscale("log")
    number_ticks(axes.xaxis)
    axes.set_yticks(range(len(places)), list(places))
    axes.set_ylim(len(places) - 0.5, -0.8)
    axes.set_title("all trials", loc="right", size=SMALL, weight="normal")
    dearest = max(trials_of, key=lambda row: totals[row])
    return Picture(
        name="cost",
        title="What the searches cost",
        caption="Seconds of training and evaluation of each trial, by how it ended; at the right, "
        "the sum of each search.",
        alt=f"{len(everything)} trials of {len(trials_of)} searches took "
        f"{_duration(totals.sum())}; the longest search is that of {dearest}, with "
        f"{_duration(totals[dearest])}.",
        figure=figure,
    )


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

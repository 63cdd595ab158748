"""A search as pictures: Optuna's own, in our style."""

from collections.abc import Mapping, Sequence

import numpy as np
import optuna
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState
from optuna.visualization import matplotlib as plots

from cpaan.report.figures.cost import cost_of_trials
from cpaan.report.figures.optuna_plots import (
    BETTER,
    name_choices,
    quiet_optuna,
    restyle,
    stack,
    taken,
    without_bar,
    without_legend,
)
from cpaan.report.figures.picture import Picture, slug
from cpaan.report.figures.selection import highest
from cpaan.report.figures.style import COLOURS, INK, PALE, SMALL, drawing
from cpaan.report.figures.trials import COMPLETE, FAILED, STOPPED, study_of

__all__ = ["cost_of_trials", "search_pictures", "study_of"]

_SCORE = "validation score"
_LEAST = 4  # trials, below which nothing is said of parameters
_MOST_COORDINATES = 5  # parallel axes that are legible on a phone
_BEST_SHARE = 0.25  # of the trials: importances hold these against all


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
    found = []
    scored = trials[trials["state"].isin([COMPLETE, STOPPED]) & np.isfinite(trials["score"])]
    if len(scored):
        # One trial that learned nothing would flatten all others.
        far = scored.loc[scored["score"] < _floor(scored["score"]), "trial"].tolist()
        shown = scored[~scored["trial"].isin(far)]
        study = study_of(
            trials.assign(state=trials["state"].mask(trials["trial"].isin(far), FAILED)),
            is_by_last_score=True,
        )
        left_out = _left_out(scored, far)
        found.append(_history(study, shown, method, left_out))
        names = _varied(study)
        if len(shown) >= _LEAST and names and shown["score"].nunique() > 1:
            found += _of_parameters(study, names, method, left_out)
    if (trials["curve"].map(len) > 1).any():
        found.append(_curves(study_of(trials), trials, method, rungs))
    return found


def _floor(scores: pd.Series) -> float:
    """Return the score below which a trial is far from the others.

    That is three times as far below the lower quartile as the best is above it.
    """
    quartile = scores.quantile(0.25)
    return float(quartile - 3 * (scores.max() - quartile))


def _left_out(scored: pd.DataFrame, far: Sequence[int]) -> str:
    names = [f"{row.trial} ({row.score:.1f} %)" for row in scored.itertuples() if row.trial in far]
    return f" Left out, far below the others: trial {', '.join(names)}." if names else ""


def _history(study: optuna.Study, scored: pd.DataFrame, method: str, left_out: str) -> Picture:
    (axes,) = taken(plots.plot_optimization_history, study, target_name=_SCORE)
    figure = restyle([axes], height=3.4)
    axes.set_xlabel("trial")
    axes.set_ylabel(f"{_SCORE}, %")
    points, (line,) = axes.collections[0], axes.lines
    is_complete = scored.sort_values("trial")["state"] == COMPLETE
    points.set_facecolor([COLOURS[0] if complete else "none" for complete in is_complete])
    points.set_edgecolor(COLOURS[0])
    line.set(color=COLOURS[1], alpha=0.9, lw=1.6, drawstyle="steps-post")
    _legend(
        axes,
        [
            Line2D([], [], ls="", marker="o", color=COLOURS[0], label="complete"),
            Line2D([], [], ls="", marker="o", color=COLOURS[0], mfc="none", label=STOPPED),
            Line2D([], [], color=COLOURS[1], label="best so far"),
        ],
    )
    best = highest(scored, "score")
    return Picture(
        name=f"{slug(method)}-history",
        title=f"{method}: history of the search",
        caption="The validation score of each trial, in the order in which they began; of those "
        f"that were stopped early, the last one that they had.{left_out}",
        alt=f"The best of {len(scored)} scored trials is trial {best['trial']} with "
        f"{best['score']:.2f} %, {best['state']}; the median trial has "
        f"{scored['score'].median():.2f} %.",
        figure=figure,
    )


def _legend(axes: Axes, handles: list[Line2D]) -> None:
    """Put a key of our own below a plot, in the place of Optuna's."""
    without_legend(axes)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        fontsize=9,
        labelcolor=INK,
        frameon=False,
    )


def _varied(study: optuna.Study) -> list[str]:
    """Return the parameters of which scored trials tried more than one value."""
    values: dict[str, set[object]] = {}
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        for name, value in trial.params.items():
            values.setdefault(name, set()).add(value)
    return [name for name, found in values.items() if len(found) > 1]


def _of_parameters(
    study: optuna.Study, names: list[str], method: str, left_out: str
) -> list[Picture]:
    if len(names) == 1:  # there is nothing to rank, and one plane has it all
        return [_slices(study, names, method, left_out)]
    evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
    with quiet_optuna():
        found = get_param_importances(study, evaluator=evaluator, params=names)
    ranked = sorted(names, key=lambda name: -found[name])
    importances = {name: found[name] for name in ranked}
    return [
        _importances(study, evaluator, importances, method, left_out),
        _slices(study, ranked, method, left_out),
        _coordinates(study, ranked, method, left_out),
    ]


def _importances(
    study: optuna.Study,
    evaluator: PedAnovaImportanceEvaluator,
    importances: Mapping[str, float],
    method: str,
    left_out: str,
) -> Picture:
    ranked = list(importances)
    num_trials = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))
    # In this order: Optuna's own order of equal ones changes from run to run.
    (axes,) = taken(plots.plot_param_importances, study, evaluator=evaluator, params=ranked)
    figure = restyle([axes], height=1.0 + 0.28 * len(ranked))
    without_legend(axes)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("importance")
    axes.set_ylabel("")
    for bar in axes.patches:
        bar.set_color(COLOURS[0])
    for text in axes.texts:
        text.set(text=f"\N{NO-BREAK SPACE}{text.get_text()}", color=INK, size=SMALL)
    facts = ", ".join(f"{name} {importances[name]:.2f}" for name in ranked[:3])
    return Picture(
        name=f"{slug(method)}-importances",
        title=f"{method}: importance of parameters",
        caption=f"How much the best quarter of the trials differs from all in each parameter "
        f"(PED-ANOVA). Of {num_trials} trials, these are hints.{left_out}",
        alt=f"The most important parameters are {facts}.",
        figure=figure,
    )


def _slices(study: optuna.Study, ranked: list[str], method: str, left_out: str) -> Picture:
    panels = taken(plots.plot_slice, study, params=ranked, target_name=_SCORE)
    # Optuna has them in the order of their names.
    panels.sort(key=lambda axes: ranked.index(axes.get_xlabel()))
    num_rows = stack(panels)
    figure = restyle(panels, height=0.5 + 1.75 * num_rows)
    without_bar(figure)
    best = study.best_trial
    for axes in panels:
        points = axes.collections[0]
        points.set(sizes=[22], cmap=BETTER)
        points.set_edgecolor("none")
        value = best.params.get(axes.get_xlabel())
        if value is not None:
            place = repr(value) if axes.xaxis.have_units() else value
            axes.plot(place, best.values[0], "o", ms=9, mfc="none", color=COLOURS[1], mew=1.5)
        name_choices(axes)
        axes.set_ylabel("score, %")
        axes.xaxis.label.set_fontsize(SMALL)
        axes.tick_params(labelsize=8)
    facts = ", ".join(f"{name} {_short(value)}" for name, value in best.params.items())
    return Picture(
        name=f"{slug(method)}-slices",
        title=f"{method}: score against each parameter",
        caption="The validation score of each trial against the parameters that it had, the most "
        f"important ones first; later trials are bluer, the best one is ringed.{left_out}",
        alt=f"Parameters of the best trial, {best.number}, with {best.value:.2f} %: {facts}.",
        figure=figure,
    )


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _coordinates(study: optuna.Study, ranked: list[str], method: str, left_out: str) -> Picture:
    names = ranked[:_MOST_COORDINATES]
    (axes,) = taken(plots.plot_parallel_coordinate, study, params=names, target_name="score, %")
    figure = restyle([axes], height=4.0)
    axes.collections[0].set(cmap=BETTER, lw=1.6)
    without_bar(figure)
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    axes.set_xticks(range(len(labels)), labels, rotation=25, ha="right", rotation_mode="anchor")
    for scale in figure.axes:
        scale.grid(visible=False)
        scale.spines["bottom"].set_visible(False)
        scale.tick_params(labelsize=8)
    most = f" The {len(names)} most important of {len(ranked)}." if len(ranked) > len(names) else ""
    top = sorted(
        study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)),
        key=lambda trial: -(trial.value or 0),
    )[:3]
    facts = "; ".join(
        f"trial {trial.number}, {trial.value:.2f} %: "
        + ", ".join(f"{name} {_short(trial.params.get(name, 'none'))}" for name in names)
        for trial in top
    )
    return Picture(
        name=f"{slug(method)}-coordinates",
        title=f"{method}: parameters of every trial",
        caption=f"A line for each trial, from its validation score through its parameters; the "
        f"bluer, the better.{most}{left_out}",
        alt=f"The best trials are {facts}.",
        figure=figure,
    )


def _curves(
    study: optuna.Study, trials: pd.DataFrame, method: str, rungs: Sequence[int]
) -> Picture:
    (axes,) = taken(plots.plot_intermediate_values, study)
    figure = restyle([axes], height=3.6)
    axes.set_xlabel("episodes")
    axes.set_ylabel(f"{_SCORE}, %")
    is_complete = dict(zip(trials["trial"], trials["state"] == COMPLETE, strict=True))
    for line in axes.lines:
        complete = is_complete[int(str(line.get_label()).removeprefix("Trial"))]
        line.set(
            color=COLOURS[0] if complete else PALE,
            ls="-" if complete else "--",
            lw=1.5 if complete else 1,
            alpha=0.9,
            zorder=3 if complete else 2,
        )
    values = pd.Series(np.concatenate([np.asarray(line.get_ydata()) for line in axes.lines]))
    kept = values[values >= _floor(values)]
    room = 0.06 * (kept.max() - kept.min()) or 1.0
    axes.set_ylim(kept.min() - room, kept.max() + room)
    below = " Points far below the others are cut off." if len(kept) < len(values) else ""
    for rung in rungs:
        axes.axvline(rung, color=COLOURS[1], lw=1, ls=":")
    handles = [
        Line2D([], [], color=COLOURS[0], marker=".", label="complete"),
        Line2D([], [], color=PALE, marker=".", ls="--", label=STOPPED),
    ]
    if rungs:
        handles.append(Line2D([], [], color=COLOURS[1], lw=1, ls=":", label="rungs of ASHA"))
    _legend(axes, handles)
    counts = trials["state"].value_counts()
    stops = ", ".join(str(rung) for rung in rungs)
    return Picture(
        name=f"{slug(method)}-curves",
        title=f"{method}: how trials learned",
        caption="The validation score against the number of episodes. At each rung, trials that "
        f"are behind the others are stopped.{below}",
        alt=f"{counts.get(COMPLETE, 0)} of {len(trials)} trials are complete, "
        f"{counts.get(STOPPED, 0)} were stopped early"
        + (f" at the rungs after {stops} episodes." if stops else "."),
        figure=figure,
    )

"""The picture of a search: scores of trials by parameter."""

import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
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
    PALE,
    SMALL,
    Picture,
    drawing,
    new_figure,
    number_ticks,
    slug,
)

COMPLETE, STOPPED = "complete", "stopped early"
_LEAST = 4  # trials, below which nothing is said of parameters
_BEST_SHARE = 0.25  # of the trials: importances compare these with all
_LATER = LinearSegmentedColormap.from_list("later", [PALE, COLOURS[0]])


@drawing()
def draw_search(trials: pd.DataFrame, method: str, winner: int) -> Picture | None:
    """Draw the scores of a search's trials against their parameters.

    Args:
        trials: A study's ``trials.parquet``.
        method: Whose search it is.
        winner: The number of the trial that won: the best of the finalists on fresh draws.

    Returns:
        The picture; None for fewer than four scored trials, or if no parameter was varied.
    """
    scored = trials[trials["state"].isin([COMPLETE, STOPPED]) & np.isfinite(trials["score"])]
    # A trial that learned nothing would flatten all others: it is more than three times as far
    # below the lower quartile as the best is above it.
    quartile = scored["score"].quantile(0.25)
    is_far = scored["score"] < quartile - 3 * (scored["score"].max() - quartile)
    near, far = scored[~is_far].sort_values("trial"), scored[is_far]
    if len(near) >= _LEAST and near["score"].nunique() > 1 and (ranges := _ranges(near)):
        return _slices(near, far, method, ranges, winner)
    return None


def _ranges(trials: pd.DataFrame) -> dict[str, BaseDistribution]:
    """Return the ranges of parameters of which trials tried more than one value."""
    ranges = {
        name: json_to_distribution(text)
        for texts in trials["distributions"]
        for name, text in json.loads(texts).items()
    }
    return {
        name: distribution for name, distribution in ranges.items() if trials[name].nunique() > 1
    }


def _parameters(trial: Any, ranges: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return a trial's parameters, whole numbers as such: with gaps, a table has fractions."""
    return {
        name: int(trial[name]) if isinstance(distribution, IntDistribution) else trial[name]
        for name, distribution in ranges.items()
        if not pd.isna(trial[name])
    }


def _importances(trials: pd.DataFrame, ranges: Mapping[str, BaseDistribution]) -> dict[str, float]:
    """Return how important parameters are, the most important first; they sum to one."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize")
        for trial in trials.to_dict("records"):
            params = _parameters(trial, ranges)
            known = {name: ranges[name] for name in params}
            study.add_trial(create_trial(value=trial["score"], params=params, distributions=known))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            # The caption says how few trials there are.
            warnings.filterwarnings("ignore", "Some regimes for parameter", UserWarning)
            evaluator = PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
            shares = get_param_importances(study, evaluator=evaluator, params=list(ranges))
    finally:
        optuna.logging.set_verbosity(verbosity)
    # Optuna's own order of equal ones changes from run to run.
    return {name: shares[name] for name in sorted(ranges, key=lambda name: -shares[name])}


def _slices(
    trials: pd.DataFrame,
    far: pd.DataFrame,
    method: str,
    ranges: Mapping[str, BaseDistribution],
    winner: int,
) -> Picture:
    importances, won = _importances(trials, ranges), trials[trials["trial"] == winner]
    best = (won if len(won) else trials.nlargest(1, "score")).iloc[0]
    num_columns = 3
    num_rows = -(-len(importances) // num_columns)
    figure = new_figure(height=0.5 + 1.95 * num_rows)
    first = None
    for number, (name, importance) in enumerate(importances.items()):
        axes = figure.add_subplot(num_rows, num_columns, number + 1, sharey=first)
        first = first or axes
        has = trials[trials[name].notna()]
        chosen, ringed = has[name], best[name]
        if isinstance(ranges[name], CategoricalDistribution):
            chosen, ringed = chosen.astype(str), ringed if pd.isna(ringed) else str(ringed)
            axes.margins(x=0.25)
        axes.scatter(chosen, has["score"], s=22, c=has["trial"], cmap=_LATER, lw=0)
        if not pd.isna(ringed):
            axes.plot([ringed], [best["score"]], "o", ms=9, mfc="none", color=COLOURS[1], mew=1.5)
        if getattr(ranges[name], "log", False):
            axes.set_xscale("log")
            number_ticks(axes.xaxis)
        axes.set_xlabel(name, size=SMALL)
        axes.set_title(f"importance {importance:.2f}", size=8, weight="normal")
        axes.tick_params(labelsize=8, labelleft=number % num_columns == 0)
        if number % num_columns == 0:
            axes.set_ylabel("score, %")
    values = [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in _parameters(best, ranges).items()
    ]
    ranked = ", ".join(f"{name} {importances[name]:.2f}" for name in list(importances)[:3])
    left_out = [f"{trial.trial} ({trial.score:.1f} %)" for trial in far.itertuples()]
    below = f" Left out, far below the others: trial {', '.join(left_out)}." if left_out else ""
    return Picture(
        name=f"{slug(method)}-slices",
        title=f"{method}: score against each parameter",
        caption="The validation score of each trial against the parameters that it had; later "
        "trials are bluer, the winner on fresh draws is ringed. Importance is how much the best "
        f"quarter of the trials differs from all (PED-ANOVA): of {len(trials)} trials, a hint."
        f"{below}",
        alt=f"Parameters of the winner, trial {best['trial']}, with {best['score']:.2f} %, "
        f"{best['state']}: {', '.join(values)}. The median trial has "
        f"{trials['score'].median():.2f} %. The most important parameters are {ranked}.",
        figure=figure,
    )

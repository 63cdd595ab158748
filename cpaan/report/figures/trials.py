"""A search, rebuilt from the table of its trials."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pandas as pd
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    json_to_distribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from cpaan.report.figures.optuna_plots import quiet_optuna
from cpaan.report.figures.selection import highest

COMPLETE, STOPPED, FAILED, UNFINISHED = "complete", "stopped early", "failed", "unfinished"
_STATES = {
    COMPLETE: TrialState.COMPLETE,
    STOPPED: TrialState.PRUNED,
    FAILED: TrialState.FAIL,
    UNFINISHED: TrialState.RUNNING,
}


def study_of(trials: pd.DataFrame, *, is_by_last_score: bool = False) -> optuna.Study:
    """Return a search as an Optuna study in memory.

    Args:
        trials: A study's ``trials.parquet``. Without the column ``distributions``, which files of
            older versions lack, ranges are those of the values that were tried.
        is_by_last_score: Take trials that were stopped early for complete ones, with the score
            that they had reached, and leave curves out. By default, states are as they were.
    """
    with quiet_optuna():
        study = optuna.create_study(direction="maximize")
        inferred = _inferred_distributions(trials)
        share = _share_of_novel(trials)
        for row in trials.sort_values("trial").to_dict("records"):
            while len(study.get_trials(deepcopy=False)) < row["trial"]:
                study.add_trial(create_trial(state=TrialState.WAITING))
            study.add_trial(_trial_of(row, inferred, share, is_by_last_score))
    return study


def _trial_of(
    row: Mapping[Any, Any],
    inferred: Mapping[str, BaseDistribution],
    share: float,
    is_by_last_score: bool,
) -> FrozenTrial:
    distributions = dict(inferred)
    if row.get("distributions"):
        written = json.loads(row["distributions"])
        distributions = {name: json_to_distribution(text) for name, text in written.items()}
    values = {name: _value_of(row[name], kind) for name, kind in distributions.items()}
    values = {name: value for name, value in values.items() if value is not None}
    state = _STATES[row["state"]]
    if is_by_last_score and state == TrialState.PRUNED:
        state = TrialState.COMPLETE
    has_value = state == TrialState.COMPLETE
    if has_value and not math.isfinite(row["score"]):
        state, has_value = TrialState.FAIL, False
    curve = {
        int(entry["episode"]): share * entry["novel_top5"] + (1 - share) * entry["all_top5"]
        for entry in row["curve"]
    }
    return create_trial(
        state=state,
        value=row["score"] if has_value else None,
        params=values,
        distributions={name: distributions[name] for name in values},
        intermediate_values={} if is_by_last_score else curve,
    )


def _value_of(value: Any, distribution: BaseDistribution) -> Any:
    """Return a parameter's value as its distribution knows it; None if the trial has none.

    In a table, whole numbers with gaps are fractions, and gaps are NaN.
    """
    if pd.isna(value):
        return None
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[distribution.choices.index(value)]
    return int(value) if isinstance(distribution, IntDistribution) else float(value)


def _inferred_distributions(trials: pd.DataFrame) -> dict[str, BaseDistribution]:
    """Return ranges of the values that were tried, where a table does not say what could be."""
    columns = list(trials.columns)
    if "distributions" in columns:
        return {}
    found: dict[str, BaseDistribution] = {}
    for name in columns[columns.index("gpu_seconds") + 1 : columns.index("curve")]:
        values = trials[name].dropna()
        if values.empty:
            continue
        if not pd.api.types.is_numeric_dtype(values) or pd.api.types.is_bool_dtype(values):
            found[name] = CategoricalDistribution(sorted(values.unique().tolist()))
            continue
        low, high = values.min(), values.max()
        # What was tried over more than a power of ten was most likely searched by powers.
        log = bool(low > 0 and high / low > 10)
        if (values % 1 == 0).all():
            found[name] = IntDistribution(int(low), int(high), log=log)
        else:
            found[name] = FloatDistribution(float(low), float(high), log=log)
    return found


def _share_of_novel(trials: pd.DataFrame) -> float:
    """Return the weight of ``novel_top5`` in the score, of both together one; else a half."""
    gaps = (trials["novel_top5"] - trials["all_top5"]).abs()
    if not (gaps > 0).any():
        return 0.5
    row = highest(trials.assign(gap=gaps), "gap")
    share = (row["score"] - row["all_top5"]) / (row["novel_top5"] - row["all_top5"])
    return float(np.clip(share, 0, 1))

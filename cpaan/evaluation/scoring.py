"""Fit and score one method on all problems of a phase."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.data.splits import ShotRows, Split, draw_shots
from cpaan.data.table import FeatureTable
from cpaan.methods.base import Fitted, LowShotMethod
from cpaan.protocol.accuracy import BIASES, score
from cpaan.protocol.augmentation import diversity_of, mean_pairwise_distance
from cpaan.protocol.calibration import calibrate, in_order
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.statistics import CELL
from cpaan.protocol.tasks import LowShotTask, Queries
from cpaan.training.drive import Progress

NOVEL_TOP5, _, CALIBRATED_TOP5 = TOP5 = ("novel_top5", "all_top5", "all_calibrated_top5")
"""Accuracies of a trial: LSL, GLSL and calibrated GLSL."""
DIVERSITY_COLUMNS = ["method", "shots", "draw", "seed", "distance", "ratio"]

_BY_CLASS = "by_class"
_DRAWS_AT_ONCE = 5  # bounds the memory of synthetic examples for any number of draws


def draw_phase(table: FeatureTable, split: Split, phase: str, config: EvaluationConfig) -> ShotRows:
    """Draw the shots of a phase with the configured seed."""
    return draw_shots(
        table,
        split.phase(phase),
        num_draws=config.num_draws,
        max_shots=max(config.shots),
        seed=config.draw_seed,
    )


def run_method(
    name: str,
    method: LowShotMethod,
    seed: int,
    task: LowShotTask,
    queries: Queries,
    config: EvaluationConfig,
    diversity_draws: range | None = None,
    progress: Progress = lambda message: None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fit one method with one seed, some draws at a time, and score it.

    Returns:
        Scores with every bias (see `cpaan.protocol.calibration`) or with the configured one, and
        diversities of the ``diversity_draws``, by default of all. Both contain the given name of
        the method.
    """
    real_diversity: Tensor | None = None
    diversities = []
    biases = BIASES if config.novel_bias is None else (config.novel_bias,)
    every_draw = sorted({problem.draw for problem in task.problems})
    wanted = every_draw if diversity_draws is None else diversity_draws
    rows = []
    for first in range(0, len(every_draw), _DRAWS_AT_ONCE):
        draws = every_draw[first : first + _DRAWS_AT_ONCE]
        last = first + len(draws)
        progress(f"{name}, seed {seed}: draws {first + 1} to {last} of {len(every_draw)}")
        part = replace(task, problems=tuple(p for p in task.problems if p.draw in draws))
        is_wanted = any(draw in wanted for draw in draws)
        # One stream for all methods: controls that draw alike get the same examples.
        fitted = method.fit(part, new_rng(seed), keep=0 if is_wanted else None)
        measured = None if fitted.synthetic is None else diversity_of(fitted.synthetic)
        fitted = replace(fitted, synthetic=None)  # they may fill a GPU
        if measured is not None:
            if real_diversity is None:  # the space of the method is known only after a fit
                real_diversity = _real_diversity(task, queries, fitted)
            diversities += [
                {
                    "method": name,
                    "shots": problem.num_shots,
                    "draw": problem.draw,
                    "seed": seed,
                    "distance": float(distances.mean()),
                    "ratio": float((distances / real_diversity).mean()),
                }
                for problem, distances in zip(part.problems, measured, strict=True)
                if problem.draw in wanted
            ]
        scores = score(fitted.predict, part, queries, biases)
        rows += [{"method": name, "seed": seed, **row} for row in scores]
    frame = pd.DataFrame(rows, columns=[*CELL, "draw", "seed", "bias", "top1", "top5", _BY_CLASS])
    return sort_scores(frame), pd.DataFrame(diversities, columns=DIVERSITY_COLUMNS)


def sort_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Sort the scores of one method and seed by head, column, bias, number of shots and draw."""
    return scores.sort_values(["head", "column", "bias", "shots", "draw"], key=in_order)


def mean_top5(scores: pd.DataFrame, head: str) -> dict[str, float]:
    """Return LSL, GLSL and calibrated GLSL top-5 of a head: means over numbers of shots and draws.

    The bias of each number of shots is chosen on these scores.
    """
    means = calibrate(scores[scores["head"] == head]).groupby("column")["top5"].mean()
    return {name: float(means[name.removesuffix("_top5")]) for name in TOP5}


def describe_top5(means: Mapping[str, Any]) -> str:
    """Return `mean_top5` as text."""
    novel, plain, calibrated = (means[name] for name in TOP5)
    return f"LSL {novel:.2f}, GLSL {plain:.2f}, calibrated {calibrated:.2f}"


def class_means(scores: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return LSL top-5 of every novel class at the fewest shots, mean over draws and seeds.

    ``names`` are the novel classes in the order of the split.

    Returns:
        Columns method, head, class and top5.
    """
    known = scores.dropna(subset=_BY_CLASS).groupby(["method", "head"], sort=False)[_BY_CLASS]
    frames = [
        pd.DataFrame({"method": row, "head": head, "class": [*names], "top5": values})
        for (row, head), of_row in known
        for values in [np.stack(of_row.tolist()).mean(axis=0)]
    ]
    return pd.concat(frames, ignore_index=True)


def _real_diversity(task: LowShotTask, queries: Queries, fitted: Fitted) -> Tensor:
    """Return the mean distance of two queries of each novel class, shape (N,)."""
    labels = range(task.num_base, task.num_base + task.num_novel)
    by_class = [queries.features[queries.labels == label] for label in labels]
    return torch.stack([mean_pairwise_distance(fitted.represent(rows)) for rows in by_class])

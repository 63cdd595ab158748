"""Fit and score one method on all problems of a phase."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.data.splits import ShotRows, Split, draw_shots
from cpaan.data.table import FeatureTable
from cpaan.methods.base import LowShotMethod
from cpaan.protocol.accuracy import BIASES, score
from cpaan.protocol.augmentation import mean_pairwise_distance
from cpaan.protocol.calibration import in_order
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.statistics import CELL
from cpaan.protocol.tasks import LowShotTask, Queries
from cpaan.training.drive import Progress

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
    progress: Progress = lambda message: None,
    diversity_draws: range | None = None,
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
        method.measures_diversity = any(draw in wanted for draw in draws)
        # One stream for all methods: controls that draw alike get the same examples.
        method.fit(part, new_rng(seed))
        if method.diversity is not None:
            if real_diversity is None:  # the space of the method is known only after a fit
                real_diversity = _real_diversity(task, queries, method)
            diversities += [
                {
                    "method": name,
                    "shots": problem.num_shots,
                    "draw": problem.draw,
                    "seed": seed,
                    "distance": float(distances.mean()),
                    "ratio": float((distances / real_diversity).mean()),
                }
                for problem, distances in zip(part.problems, method.diversity, strict=True)
                if problem.draw in wanted
            ]
        found = score(method.predict, part, queries, biases)
        rows += [{"method": name, "seed": seed, **row} for row in found]
    frame = pd.DataFrame(rows, columns=[*CELL, "draw", "seed", "bias", "top1", "top5", _BY_CLASS])
    return sort_scores(frame), pd.DataFrame(diversities, columns=DIVERSITY_COLUMNS)


def sort_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Sort the scores of one method and seed by head, column, bias, number of shots and draw."""
    return scores.sort_values(["head", "column", "bias", "shots", "draw"], key=in_order)


def class_means(scores: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return LSL top-5 of every novel class at the fewest shots, mean over draws and seeds.

    ``names`` are the novel classes in the order of the split.

    Returns:
        Columns method, head, class and top5.
    """
    known = scores.dropna(subset=_BY_CLASS).groupby(["method", "head"], sort=False)[_BY_CLASS]
    found = [
        pd.DataFrame({"method": row, "head": head, "class": [*names], "top5": values})
        for (row, head), of_row in known
        for values in [np.stack(of_row.tolist()).mean(axis=0)]
    ]
    return pd.concat(found, ignore_index=True)


def _real_diversity(task: LowShotTask, queries: Queries, method: LowShotMethod) -> Tensor:
    """Return the mean distance of two queries of each novel class, shape (N,)."""
    labels = range(task.num_base, task.num_base + task.num_novel)
    by_class = [queries.features[queries.labels == label] for label in labels]
    return torch.stack([mean_pairwise_distance(method.represent(rows)) for rows in by_class])

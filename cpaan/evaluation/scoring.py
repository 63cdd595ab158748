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
from cpaan.protocol.accuracy import PRIORS, score
from cpaan.protocol.augmentation import mean_pairwise_distance
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.priors import in_order
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
        Scores with every prior (see `cpaan.protocol.priors`) or with the configured one, and
        diversities of the ``diversity_draws``, by default of all. Both contain the given name of
        the method.
    """
    real_diversity: Tensor | None = None
    diversities = []
    priors = PRIORS if config.prior is None else (config.prior,)
    diversity_draws = range(config.num_draws) if diversity_draws is None else diversity_draws
    rows = []
    for first in range(0, config.num_draws, _DRAWS_AT_ONCE):
        draws = range(first, min(first + _DRAWS_AT_ONCE, config.num_draws))
        progress(f"{name}, seed {seed}: draws {first + 1} to {draws.stop} of {config.num_draws}")
        part = replace(task, problems=tuple(p for p in task.problems if p.draw in draws))
        method.measures_diversity = any(draw in diversity_draws for draw in draws)
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
                if problem.draw in diversity_draws
            ]
        found = score(method.predict, part, queries, priors)
        rows += [{"method": name, "seed": seed, **row} for row in found]
    frame = pd.DataFrame(rows, columns=[*CELL, "draw", "seed", "prior", "top1", "top5", _BY_CLASS])
    frame = frame.sort_values(["head", "column", "prior", "shots", "draw"], key=in_order)
    return frame, pd.DataFrame(diversities, columns=DIVERSITY_COLUMNS)


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

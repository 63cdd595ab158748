"""The end of a search: the best trials of each row scored again, and the best of these."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial

from cpaan.core.provenance import describe_run
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.evaluation.parts import Part, PartJob, PartKey, run_parts
from cpaan.evaluation.scoring import draw_phase
from cpaan.methods.registry import num_episodes_of, with_episodes
from cpaan.study.config import StudyConfig
from cpaan.study.records import best_trials
from cpaan.study.searcher import RowSearch, resolved_of
from cpaan.study.space import Resolved
from cpaan.study.study import Study, StudyRow
from cpaan.study.trial import Trial
from cpaan.study.worker_pool import PoolJob, WorkerPool, part_cache

_FRESH_DRAWS = 1  # is added to the seed of the draws


def choose_best(
    study: Study,
    searches: Sequence[RowSearch],
    say: Callable[[str], None],
    num_at_once: int,
    deadline: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Score the best trials of each row again, with fresh draws and more seeds; choose the best.

    The highest of many scores is partly luck. Draws and seeds that took no part in the choice of
    the finalists show how high the score is without it.

    Args:
        study: The study of the rows.
        searches: Rows whose trials have all ended.
        say: Called with a line for each score.
        num_at_once: Trainings at a time.
        deadline: Time of the monotonic clock after which the rest is left for later.

    Returns:
        The content of ``best.json`` by method; rows without a finalist or without time are missing.

    Raises:
        WorkLostError: If machines or processes failed too often.
    """
    found: dict[str, dict[str, Any]] = {}
    finalists: dict[str, list[FrozenTrial]] = {}
    jobs: dict[PartKey, PoolJob] = {}
    for search in searches:
        row = search.row
        if study.has_best(row) and study.read_best(row)["num_trials"] == search.num_ended:
            found[row.method] = study.read_best(row)
            continue
        finalists[row.method] = best_trials(search.trials, row.config.num_finalists)
        jobs |= _jobs_of(study, row, finalists[row.method])
    if not jobs:
        return found
    say(
        f"scoring {sum(map(len, finalists.values()))} finalists again: "
        f"{study.config.num_final_draws} fresh draws, {study.config.num_final_seeds} seeds"
    )
    pool = WorkerPool(jobs, num_at_once, deadline)
    parts = {key: job.part for key, job in jobs.items()}
    cache = part_cache(study.storage)

    def summarise(job: PartJob, part: Part) -> str:
        novel, everything = mean_top5(part.scores, job.evaluation.heads[0])
        return f"LSL {novel:.2f}, GLSL {everything:.2f}"

    outcomes = run_parts(parts, pool, cache, say, summarise)
    if pool.lost is not None:
        raise pool.lost
    for search in searches:
        trials = finalists.get(search.row.method, [])
        keys = [key for trial in trials for key in _keys(search.row, trial)]
        if not set(keys) <= set(outcomes):
            continue
        best = _best_of(search, trials, outcomes)
        if best is not None:
            found[search.row.method] = best
        for key in keys:
            cache.delete(parts[key])
    return found


def in_full(resolved: Resolved, config: StudyConfig) -> Resolved:
    """Return the settings of a trial with the length of training that finalists have."""
    num_episodes = num_episodes_of(resolved.training) * config.final_length
    return replace(resolved, training=with_episodes(resolved.training, num_episodes))


def _keys(row: StudyRow, trial: FrozenTrial) -> list[PartKey]:
    seeds = range(row.config.seed, row.config.seed + row.config.num_final_seeds)
    return [PartKey(f"{row.method}, trial {trial.number}", seed) for seed in seeds]


def _jobs_of(
    study: Study, row: StudyRow, finalists: Sequence[FrozenTrial]
) -> dict[PartKey, PoolJob]:
    config = row.config
    draws = {
        "num_draws": config.num_final_draws,
        "draw_seed": row.evaluation.draw_seed + _FRESH_DRAWS,
    }
    shot_rows = None
    jobs = {}
    for trial in finalists:
        resolved = in_full(resolved_of(trial, row.method), config)
        for key in _keys(row, trial):
            job = study.job(row, trial.number, resolved, key.seed)
            job = replace(job, evaluation=job.evaluation.with_overrides(draws))
            if config.final_length > 1:  # a training of its own, beside the trial's
                name = f"finals/{trial.number:04d}-seed{key.seed}.pt"
                job = replace(job, path=study.path_of(row, name))
            if shot_rows is None:
                table = row.data.open()
                shot_rows = draw_phase(table, row.data.split, VALIDATION_PHASE, job.evaluation)
            part = PartJob(
                row=key.row,
                method=row.method,
                training=job.training,
                embedding=job.embedding,
                evaluation=job.evaluation,
                seed=key.seed,
                data=row.data,
                phase=VALIDATION_PHASE,
                shot_rows=shot_rows,
                device="cuda" if config.gpus_per_worker else "cpu",
            )
            jobs[key] = PoolJob(part, Trial(trial.number, job, config))
    return jobs


def _best_of(
    search: RowSearch,
    finalists: Sequence[FrozenTrial],
    outcomes: Mapping[PartKey, Any],
) -> dict[str, Any] | None:
    row, config = search.row, search.row.config
    dropped = {
        trial.number: f"with seed {key.seed}, {outcomes[key]}"
        for trial in finalists
        for key in _keys(row, trial)
        if isinstance(outcomes[key], ValueError)
    }
    rows = [
        _describe(row, trial, {key.seed: outcomes[key] for key in _keys(row, trial)})
        for trial in finalists
        if trial.number not in dropped
    ]
    if not rows:
        return None
    best = max(rows, key=lambda each: (each["score"], -each["trial"]))
    return {
        "run": describe_run(),
        "method": row.method,
        **best,
        "head": config.head,
        "phase": VALIDATION_PHASE,
        "num_trials": search.num_ended,
        "num_draws": config.num_final_draws,
        "draw_seed": row.evaluation.draw_seed + _FRESH_DRAWS,
        "features": row.data.fingerprint,
        "dropped": {str(number): reason for number, reason in dropped.items()},
        "finalists": [
            {name: each[name] for name in each if name not in ("training", "evaluation")}
            for each in rows
        ],
    }


def _describe(row: StudyRow, trial: FrozenTrial, parts: Mapping[int, Part]) -> dict[str, Any]:
    config = row.config
    scores = {seed: mean_top5(part.scores, config.head) for seed, part in parts.items()}
    novel, everything = (sum(values) / len(scores) for values in zip(*scores.values(), strict=True))
    resolved = in_full(resolved_of(trial, row.method), config)
    return {
        "trial": trial.number,
        "score": config.score(novel, everything),
        "novel_top5": novel,
        "all_top5": everything,
        "score_in_search": trial.values[0],
        "score_by_seed": {str(seed): config.score(*each) for seed, each in sorted(scores.items())},
        "parameters": trial.params,
        "training": resolved.training.to_dict(),
        "evaluation": resolved.evaluation.to_dict(),
    }


def mean_top5(scores: pd.DataFrame, head: str) -> tuple[float, float]:
    """Return LSL and GLSL top-5 of a head: means over numbers of shots and draws."""
    means = scores[scores["head"] == head].groupby("column")["top5"].mean()
    return float(means["novel"]), float(means["all"])

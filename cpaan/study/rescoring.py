"""Score the best trials of each row again at the end of a search, and choose the best."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.trial import FrozenTrial

from cpaan.core.provenance import describe_run
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.evaluation.parts import Part, PartJob, PartKey
from cpaan.evaluation.scoring import draw_phase
from cpaan.study.job import mean_top5
from cpaan.study.records import best_trials
from cpaan.study.row import Resolved, StudyRow
from cpaan.study.searcher import RowSearch
from cpaan.study.study import Study
from cpaan.study.worker_pool import PoolJob, measure, part_cache

_FRESH_DRAWS = 1  # added to the seed of the draws


def choose_best(
    study: Study,
    searches: Sequence[RowSearch],
    say: Callable[[str], None],
    num_at_once: int,
    deadline: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Score the best trials of each row again with new draws and more seeds; choose the best.

    The highest of many scores is partly luck, so finalists are scored with draws and seeds that
    did not select them. All trials of the rows must have ended. Other arguments and errors are
    those of `measure`.

    Returns:
        The content of ``best.json`` by method; rows without a finalist or without time are missing.
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
        f"rescoring {sum(map(len, finalists.values()))} finalists: "
        f"{study.config.num_final_draws} new draws, {study.config.num_final_seeds} seeds"
    )

    def summarise(job: PartJob, part: Part) -> str:
        novel, everything = mean_top5(part.scores, job.evaluation.heads[0])
        return f"LSL {novel:.2f}, GLSL {everything:.2f}"

    outcomes = measure(jobs, study.storage, num_at_once, say, deadline, summarise=summarise)
    cache = part_cache(study.storage)
    for search in searches:
        trials = finalists.get(search.row.method, [])
        keys = [key for trial in trials for key in _keys(search.row, trial)]
        if not set(keys) <= set(outcomes):
            continue
        best = _best_of(search, trials, outcomes)
        if best is not None:
            found[search.row.method] = best
        for key in keys:
            cache.delete(jobs[key].part)
    return found


def _keys(row: StudyRow, trial: FrozenTrial) -> list[PartKey]:
    seeds = range(row.config.seed, row.config.seed + row.config.num_final_seeds)
    return [PartKey(f"{row.method}, trial {trial.number}", seed) for seed in seeds]


def _jobs_of(
    study: Study, row: StudyRow, finalists: Sequence[FrozenTrial]
) -> dict[PartKey, PoolJob]:
    config, draw_seed = row.config, row.evaluation.draw_seed + _FRESH_DRAWS
    draws = {"num_draws": config.num_final_draws, "draw_seed": draw_seed}
    wanted = row.evaluation.with_overrides(draws)
    shot_rows = draw_phase(row.data.open(), row.data.split, VALIDATION_PHASE, wanted)
    jobs = {}
    for trial in finalists:
        resolved = row.for_score(_settings_of(row, trial), **draws)
        file = f"finals/{trial.number:04d}" if config.final_length > 1 else ""
        for key in _keys(row, trial):
            job = study.job(row, trial.number, resolved, key.seed, file)
            jobs[key] = PoolJob.of(key.row, job, phase=VALIDATION_PHASE, shot_rows=shot_rows)
    return jobs


def _settings_of(row: StudyRow, trial: FrozenTrial) -> Resolved:
    """Return the settings of a trial with the training length of finalists."""
    return Resolved.of(row.method, trial.user_attrs).times_as_long(row.config.final_length)


def _best_of(
    search: RowSearch,
    finalists: Sequence[FrozenTrial],
    outcomes: Mapping[PartKey, Any],
) -> dict[str, Any] | None:
    row, config = search.row, search.row.config
    dropped = {
        trial.number: f"seed {key.seed}: {outcomes[key]}"
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
    resolved = _settings_of(row, trial)
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

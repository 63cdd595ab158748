"""Search hyperparameters: run the trials of all rows on Ray Tune, then rescore the best ones."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, Protocol

from optuna.trial import FrozenTrial
from ray import tune as ray_tune
from ray.tune import FailureConfig, RunConfig, TuneConfig

from cpaan.core.provenance import describe_run
from cpaan.core.remote_paths import join
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.data.table import counted
from cpaan.evaluation.job import Job, Part
from cpaan.evaluation.parts import PartKey
from cpaan.evaluation.scoring import TOP5, describe_top5, draw_phase, mean_top5
from cpaan.study.cluster import HEAD, Cluster, check_machines, worker_resources
from cpaan.study.config import StudyConfig
from cpaan.study.records import best_trials
from cpaan.study.row import Resolved, StudyRow
from cpaan.study.searcher import OptunaSearcher, RowScheduler, RowSearch
from cpaan.study.study import BEST, Study
from cpaan.study.trial import MOST_FAILURES, run_trial
from cpaan.study.worker_pool import cost_of, measure, part_cache

_SECONDS_BETWEEN_UPDATES = 1.0
_MOST_LETTERS = 500  # shown of an error message of Ray, which ends with the cause
_FRESH_DRAWS = 1  # added to the seed of the draws


class SearchProgress(Protocol):
    """Display of the progress of a search."""

    def say(self, message: str) -> None:
        """Show a line about the current work."""

    def show(self, searches: Sequence[RowSearch]) -> None:
        """Show the state of all trials; called after changes and every second."""


def search(
    study: Study,
    cluster: Cluster,
    progress: SearchProgress,
    *,
    num_concurrent: int | None = None,
    timeout_seconds: float | None = None,
) -> list[RowSearch]:
    """Run or resume a study, and return the search of each row.

    At most ``num_concurrent`` trials run at a time, by default as many as fit. After
    ``timeout_seconds``, unfinished work is left for a resumed search.

    Raises:
        ValueError: If the cluster is too small, or another process works on the study.
        OSError, optuna.exceptions.OptunaError: If the records cannot be written.
        WorkLostError: If machines failed too often while the best trials were scored again.
    """
    deadline = time.monotonic() + (math.inf if timeout_seconds is None else timeout_seconds)
    cluster.check(study.config)
    with study.locked():
        check_machines(study.storage, progress.say)
        study.write()
        searches = [RowSearch(study, row) for row in study.rows]
        with _publishing_at_sigterm(searches):
            progress.say(cluster.announcement)
            # More trials would wait for resources, and Ray would report that they cannot start.
            num_at_once = cluster.most_trials_at_once(study.config)
            num_at_once = min(num_at_once, num_concurrent or num_at_once)
            if any(row_search.num_left for row_search in searches):
                _run_trials(study, searches, progress, num_at_once, deadline)
            if time.monotonic() <= deadline:
                ended = [row_search for row_search in searches if not row_search.num_left]
                _choose_best(study, ended, progress.say, num_at_once, deadline)
            for row_search in searches:
                if row_search.best is not None:
                    study.write_json(study.path_of(row_search.row, BEST), row_search.best)
                row_search.records.update(is_last=True)
        return searches


@contextmanager
def _publishing_at_sigterm(searches: Sequence[RowSearch]) -> Iterator[None]:
    """Copy the Optuna studies to the storage at SIGTERM, and continue as after Ctrl-C.

    Ray stops a job with SIGTERM and kills it 3 s later. Ray Tune takes longer to end, so a thread
    makes the copy meanwhile. The signal may come during a write to the studies, for which the
    thread waits.
    """

    def publish() -> None:
        for search in searches:
            with suppress(OSError):  # there is nobody to tell
                search.records.publish()

    def stop(*_: Any) -> None:
        threading.Thread(target=publish, name="last copy").start()
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_trials(
    study: Study,
    searches: Sequence[RowSearch],
    progress: SearchProgress,
    num_concurrent: int,
    deadline: float,
) -> None:
    """Run the remaining trials until the deadline, in the order of the rows."""
    config = study.config
    searcher = OptunaSearcher(searches)
    needs = HEAD if config.uses_ray_train else worker_resources(config)
    progress.say(_describe_processes(config))
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(run_trial, needs),
        tune_config=TuneConfig(
            search_alg=searcher,
            scheduler=RowScheduler(searches),
            num_samples=sum(search.num_left for search in searches),
            max_concurrent_trials=num_concurrent,
            # A trial that is stopped while it waits in `report` ends there, and its process can
            # run the next trial. A trial with Ray Train waits for its workers instead.
            reuse_actors=not config.uses_ray_train,
            trial_dirname_creator=_name_of,
        ),
        run_config=RunConfig(
            name="tune",
            storage_path=join(study.storage, "ray"),
            stop=_Stop(deadline, searcher),
            failure_config=FailureConfig(max_failures=MOST_FAILURES),
            callbacks=[_Callback(progress, searches, searcher)],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    finally:  # also after Ctrl-C
        with searcher.recording():
            for search in searches:
                search.records.update()
            progress.show(searches)
    if searcher.failure is not None:
        raise searcher.failure


def _describe_processes(config: StudyConfig) -> str:
    """Return a line about the processes of a trial, and why they are so."""
    how = "with Ray Train" if config.uses_ray_train else "in one process each, without Ray Train"
    has_gpu = "with a GPU" if config.gpus_per_worker else "without a GPU"
    why = f"{counted(config.workers_per_trial, 'worker')} a trial, {has_gpu}"
    return f"trials run {how}: {why if config.ray_train is None else 'as set'}"


def _name_of(trial: Any) -> str:
    return f"{trial.config['job'].method}-{trial.config['number']:04d}"


class _Stop(ray_tune.Stopper):
    """Stop all trials at the deadline, or when the records cannot be written."""

    def __init__(self, deadline: float, searcher: OptunaSearcher) -> None:
        self._deadline, self._searcher = deadline, searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return time.monotonic() > self._deadline or self._searcher.failure is not None


class _Callback(ray_tune.Callback):
    """Update records and progress while Tune runs."""

    def __init__(
        self, progress: SearchProgress, searches: Sequence[RowSearch], searcher: OptunaSearcher
    ) -> None:
        self._progress, self._searches, self._searcher = progress, searches, searcher
        self._last = 0.0

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        with self._searcher.recording():
            for search in self._searches:
                search.records.update_if_due()
        if time.monotonic() - self._last > _SECONDS_BETWEEN_UPDATES:
            self._last = time.monotonic()
            self._progress.show(self._searches)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._progress.say(f"trial {_name_of(trial)} resumed: its process was lost")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        reason = " ".join(str(trial.get_error()).split())[-_MOST_LETTERS:]
        self._searcher.note_error(trial.trial_id, reason)
        self._progress.say(f"trial {_name_of(trial)} aborted: {reason}")


def _choose_best(
    study: Study,
    searches: Sequence[RowSearch],
    say: Callable[[str], None],
    num_at_once: int,
    deadline: float,
) -> None:
    """Score the best trials of rows whose trials have ended again, and set the best of each row.

    The highest of many scores is partly luck, so finalists are scored with draws and seeds that
    did not select them. Rows without a finalist or without time get no best.
    """
    finalists: list[tuple[RowSearch, list[FrozenTrial]]] = []
    jobs: dict[PartKey, Job] = {}
    for search in searches:
        row = search.row
        if study.has_best(row) and study.read_best(row)["num_trials"] == search.num_ended:
            search.best = study.read_best(row)
        else:
            trials = best_trials(search.trials, row.config.num_finalists)
            finalists.append((search, trials))
            jobs |= _jobs_of(study, search, trials)
    if not jobs:
        return
    num_finalists = sum(len(trials) for _, trials in finalists)
    draws, seeds = study.config.num_final_draws, study.config.num_final_seeds
    say(
        f"rescoring {counted(num_finalists, 'finalist')}: {counted(draws, 'new draw')}, "
        f"{counted(seeds, 'seed')}"
    )

    def summarise(job: Job, part: Part) -> str:
        head, by_variant = job.evaluation.heads[0], part.scores.groupby("method", sort=False)
        means = [mean_top5(scores, head) for _, scores in by_variant]
        return describe_top5(max(means, key=study.config.score))

    outcomes = measure(jobs, study, num_at_once, say, deadline, summarise=summarise)
    cache = part_cache(study.storage)
    for search, trials in finalists:
        keys = [key for trial in trials for key in _keys(search.row, trial)]
        if set(keys) <= set(outcomes):
            cost = cost_of(jobs, {key: outcomes[key] for key in keys}, study.config)
            search.best = _best_of(search, trials, outcomes, cost)
            for key in keys:
                cache.delete(jobs[key])


def _keys(row: StudyRow, trial: FrozenTrial) -> list[PartKey]:
    seeds = range(row.config.seed, row.config.seed + row.config.num_final_seeds)
    return [PartKey(f"{row.method}, trial {trial.number}", seed) for seed in seeds]


def _fresh_draws(row: StudyRow) -> dict[str, int]:
    draw_seed = row.evaluation.draw_seed + _FRESH_DRAWS
    return {"num_draws": row.config.num_final_draws, "draw_seed": draw_seed}


def _jobs_of(
    study: Study, search: RowSearch, finalists: Sequence[FrozenTrial]
) -> dict[PartKey, Job]:
    row, draws = search.row, _fresh_draws(search.row)
    wanted = row.evaluation.with_overrides(draws)
    shot_rows = draw_phase(row.data.open(), row.data.split, VALIDATION_PHASE, wanted)
    jobs = {}
    for trial in finalists:
        resolved = row.for_score(Resolved.of(row.method, trial.user_attrs), **draws)
        variants = [resolved.with_overrides(settings) for settings in row.sweep(resolved)]
        for key in _keys(row, trial):
            jobs[key] = replace(
                study.job(row, trial.number, resolved, key.seed),
                row=key.row,
                phase=VALIDATION_PHASE,
                draws=shot_rows,
                diversity_draws=range(0),
                variants=tuple((variant.training, variant.evaluation) for variant in variants),
            )
    return jobs


def _best_of(
    search: RowSearch,
    finalists: Sequence[FrozenTrial],
    outcomes: Mapping[PartKey, Any],
    cost: Mapping[str, float],
) -> dict[str, Any] | None:
    """Return the content of ``best.json``; None if every finalist failed with some seed."""
    row, scored, dropped = search.row, list[dict[str, Any]](), {}
    for trial in finalists:
        parts = {key.seed: outcomes[key] for key in _keys(row, trial)}
        failed = [seed for seed, part in parts.items() if isinstance(part, ValueError)]
        if failed:
            dropped[str(trial.number)] = f"seed {failed[-1]}: {parts[failed[-1]]}"
        else:
            scored.append(_describe(row, trial, parts))
    if not scored:
        return None
    best = max(scored, key=lambda finalist: (finalist["score"], -finalist["trial"]))
    return {
        "run": {**describe_run(), **cost},
        "method": row.method,
        **best,
        "head": row.config.head,
        "phase": VALIDATION_PHASE,
        "num_trials": search.num_ended,
        **_fresh_draws(row),
        "features": row.data.fingerprint,
        "dropped": dropped,
        "finalists": [
            {name: finalist[name] for name in finalist if name not in ("training", "evaluation")}
            for finalist in scored
        ],
    }


def _describe(row: StudyRow, trial: FrozenTrial, parts: Mapping[int, Part]) -> dict[str, Any]:
    """Describe a finalist with the best of the settings that need no training."""
    # With the training length of the report.
    resolved = Resolved.of(row.method, trial.user_attrs).times_as_long(row.config.report_length)
    sweep = row.sweep(resolved)
    scores = [_score(row.config, str(variant), parts) for variant in range(len(sweep))]
    best = max(range(len(sweep)), key=lambda number: scores[number]["score"])  # the first of equals
    resolved = resolved.with_overrides(sweep[best])
    return {
        "trial": trial.number,
        **scores[best],
        "score_in_search": trial.values[0],
        "parameters": trial.params,
        "swept": sweep[best],
        "sweep": [
            {**settings, "score": of_variant["score"]}
            for settings, of_variant in zip(sweep, scores, strict=True)
        ],
        **asdict(resolved),
    }


def _score(config: StudyConfig, variant: str, parts: Mapping[int, Part]) -> dict[str, Any]:
    """Return the score of a variant of a finalist, its accuracies, and the score of each seed."""
    by_seed = {
        seed: mean_top5(part.scores[part.scores["method"] == variant], config.head)
        for seed, part in sorted(parts.items())
    }
    means = {name: sum(top5[name] for top5 in by_seed.values()) / len(by_seed) for name in TOP5}
    scores = {str(seed): config.score(top5) for seed, top5 in by_seed.items()}
    return {"score": config.score(means), **means, "score_by_seed": scores}

"""Search hyperparameters: run the trials of all rows on Ray Tune, then rescore the best ones."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from ray import tune as ray_tune
from ray.tune import FailureConfig, RunConfig, TuneConfig

from cpaan.core.remote_paths import join
from cpaan.study.cluster import HEAD, Cluster, worker_resources
from cpaan.study.machines import check_machines
from cpaan.study.rescoring import choose_best
from cpaan.study.searcher import OptunaSearcher, RowScheduler, RowSearch
from cpaan.study.study import BEST, Study
from cpaan.study.trial import MOST_FAILURES, run_trial

_SECONDS_BETWEEN_UPDATES = 1.0
_MOST_LETTERS = 500  # shown of an error message of Ray, which ends with the cause


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
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    cluster.check(study.config)
    with study.locked():
        check_machines(study.storage, progress.say)
        study.write()
        searches = [RowSearch(study, row) for row in study.rows]
        progress.say(cluster.announcement)
        # More trials would wait for resources, and Ray would report that they cannot start.
        at_once = cluster.most_trials_at_once(study.config)
        at_once = min(at_once, num_concurrent or at_once)
        if any(each.num_left for each in searches):
            _run_trials(study, searches, progress, at_once, deadline)
        is_late = deadline is not None and time.monotonic() > deadline
        ended = [each for each in searches if not (is_late or each.num_left)]
        best = choose_best(study, ended, progress.say, at_once, deadline)
        for each in searches:
            each.best = best.get(each.row.method)
            if each.best is not None:
                study.write_json(study.path_of(each.row, BEST), each.best)
            each.records.update(is_last=True)
        return searches


def _run_trials(
    study: Study,
    searches: Sequence[RowSearch],
    progress: SearchProgress,
    num_concurrent: int,
    deadline: float | None,
) -> None:
    """Run the remaining trials until the deadline, in the order of the rows."""
    config = study.config
    searcher = OptunaSearcher(searches)
    needs = HEAD if config.ray_train else worker_resources(config)
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(run_trial, needs),
        tune_config=TuneConfig(
            search_alg=searcher,
            scheduler=RowScheduler(searches),
            num_samples=sum(each.num_left for each in searches),
            max_concurrent_trials=num_concurrent,
            # In a reused process, the function of a stopped trial would continue to run.
            reuse_actors=False,
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
            for each in searches:
                each.records.update()
            progress.show(searches)
    if searcher.failure is not None:
        raise searcher.failure


def _name_of(trial: Any) -> str:
    job = trial.config["trial"]
    return f"{job.method}-{job.number:04d}"


class _Stop(ray_tune.Stopper):
    """Stop all trials at the deadline, or when the records cannot be written."""

    def __init__(self, deadline: float | None, searcher: OptunaSearcher) -> None:
        self._deadline, self._searcher = deadline, searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        return is_late or self._searcher.failure is not None


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

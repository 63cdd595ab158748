"""The search: trials on Ray Tune, proposed by Optuna; then the best of them, scored again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import optuna
from optuna.trial import FrozenTrial
from ray import tune as ray_tune
from ray.tune import FailureConfig, RunConfig, TuneConfig
from ray.tune.schedulers import FIFOScheduler

from cpaan.core.remote_paths import join
from cpaan.study.cluster import HEAD, Cluster, worker_resources
from cpaan.study.finals import choose_best, known_best
from cpaan.study.folder import Study
from cpaan.study.machines import check_machines
from cpaan.study.records import BEST, OPTUNA
from cpaan.study.searcher import (
    ENDED,
    OptunaSearcher,
    ResumableASHA,
    enqueue_points,
    open_study,
)
from cpaan.study.space import Settled
from cpaan.study.trial import MOST_FAILURES, PROBLEM, Trial, run_trial
from cpaan.study.upkeep import Upkeep

_SECONDS_BETWEEN_TICKS = 1.0
_MOST_LETTERS = 500  # of an error that Ray tells with all of its circumstances: the cause is last


class Watch(Protocol):
    """Who looks on."""

    def say(self, message: str) -> None:
        """Take a line about what is being done."""

    def show(self, study: optuna.Study) -> None:
        """Take the state of all trials; called soon after every change, and every second."""


@dataclass(frozen=True)
class Outcome:
    """How a search ended."""

    num_ended: int
    failed: list[tuple[int, dict[str, Any], str]]
    """Number, parameters and problem of each trial that has no score."""
    best: dict[str, Any] | None
    """What ``best.json`` says, if there is one."""


def search(
    study: Study,
    cluster: Cluster,
    watch: Watch,
    *,
    points: Sequence[dict[str, Any]] = (),
    num_concurrent: int | None = None,
    timeout_seconds: float | None = None,
) -> Outcome:
    """Run a study to its end, or on from where it is.

    Args:
        study: What to search, and where it is kept.
        cluster: Where.
        watch: Who looks on.
        points: Parameters to try after the paper's two points.
        num_concurrent: Trials at a time; by default as many as there is room for.
        timeout_seconds: After which nothing new is begun, and what runs is left for later.

    Raises:
        ValueError: If the resources cannot be had, or another process works on the study.
        OSError, optuna.exceptions.OptunaError: If the records cannot be written.
        WorkLostError: If machines failed at the end more often than is forgiven.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    cluster.check(study.config)
    with study.locked():
        return _search(study, cluster, watch, points, num_concurrent, deadline)


def _search(
    study: Study,
    cluster: Cluster,
    watch: Watch,
    points: Sequence[dict[str, Any]],
    num_concurrent: int | None,
    deadline: float | None,
) -> Outcome:
    check_machines(study.storage, watch.say)
    study.write()
    optuna_study = open_study(study.folder / OPTUNA, study.config)
    enqueue_points(optuna_study, study.space, points)
    records = study.records

    upkeep = Upkeep(study, optuna_study, records, watch.show)
    best = None
    watch.say(cluster.announcement)
    # More would only wait for room, and be taken for trials that cannot start.
    at_once = cluster.most_trials_at_once(study.config)
    at_once = min(at_once, num_concurrent or at_once)
    num_left = study.config.num_trials - len(_ended(optuna_study))
    if num_left > 0:
        run_trials(study, optuna_study, upkeep, watch, num_left, at_once, deadline)
    is_late = deadline is not None and time.monotonic() > deadline
    num_ended = len(_ended(optuna_study))
    if num_ended >= study.config.num_trials and not is_late:
        best = known_best(study, num_ended) or choose_best(
            study, optuna_study, watch.say, at_once, deadline
        )
        if best is not None:
            records.write_json(BEST, best)
    records.update(optuna_study, study.config, is_last=True)
    return Outcome(len(_ended(optuna_study)), _failed(optuna_study), best)


def run_trials(
    study: Study,
    optuna_study: optuna.Study,
    upkeep: Upkeep,
    watch: Watch,
    num_left: int,
    num_concurrent: int,
    deadline: float | None = None,
    function: Callable[[dict[str, Any]], None] = run_trial,
) -> None:
    """Run as many trials as are left, some at a time.

    Args:
        study: All settings.
        optuna_study: Its trials, with its points queued.
        upkeep: Told of every change.
        watch: Who looks on.
        num_left: Trials to be run.
        num_concurrent: At a time.
        deadline: Of the monotonic clock, when nothing new is begun; None: never.
        function: What Tune calls with a trial; a benchmark has one that trains nothing.

    Raises:
        OSError, optuna.exceptions.OptunaError: If the records cannot be written.
    """
    config = study.config
    eval_steps = config.eval_steps(study.num_episodes)

    def make_trial(number: int, settled: Settled) -> Trial:
        job = study.job(number, settled, config.seed)
        return Trial(number, replace(job, eval_steps=eval_steps), config)

    stops_early = config.early_stopping and not config.pareto and len(eval_steps) > 1
    searcher = OptunaSearcher(
        optuna_study, study.space, config, make_trial, upkeep.changed, upkeep.begin_anew
    )
    tuner = ray_tune.Tuner(
        ray_tune.with_resources(function, HEAD if config.ray_train else worker_resources(config)),
        tune_config=TuneConfig(
            search_alg=searcher,
            scheduler=ResumableASHA(config, eval_steps, optuna_study)
            if stops_early
            else FIFOScheduler(),
            num_samples=num_left,
            max_concurrent_trials=num_concurrent,
            # The function of a stopped trial would go on in a process that is used again.
            reuse_actors=False,
            trial_dirname_creator=lambda trial: f"{trial.config['trial'].number:04d}",
        ),
        run_config=RunConfig(
            name="tune",
            storage_path=join(study.storage, "ray"),
            stop=_Stop(deadline, searcher),
            failure_config=FailureConfig(max_failures=MOST_FAILURES),
            callbacks=[_Lookout(watch, optuna_study, upkeep, searcher)],
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    finally:  # after Ctrl-C too
        with searcher.noting_failure():
            upkeep.finish()
    if searcher.failure is not None:
        raise searcher.failure


class _Stop(ray_tune.Stopper):
    """Stops everything in time, or when nothing can be written; what runs stays unfinished."""

    def __init__(self, deadline: float | None, searcher: OptunaSearcher) -> None:
        self._deadline, self._searcher = deadline, searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        return is_late or self._searcher.failure is not None

    def __reduce__(self) -> Any:
        return (object, ())  # Tune pickles it, for a way to go on that is not ours


class _Lookout(ray_tune.Callback):
    """Shows every second how trials stand while Tune runs, and says when one had to start anew."""

    def __init__(
        self, watch: Watch, study: optuna.Study, upkeep: Upkeep, searcher: OptunaSearcher
    ) -> None:
        self._watch, self._study = watch, study
        self._upkeep, self._searcher = upkeep, searcher
        self._last = 0.0

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        with self._searcher.noting_failure():
            self._upkeep.catch_up()
        if time.monotonic() - self._last > _SECONDS_BETWEEN_TICKS:
            self._last = time.monotonic()
            self._watch.show(self._study)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._watch.say(f"trial {trial.config['trial'].number} lost its process, and goes on")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        number = trial.config["trial"].number
        reason = " ".join(str(trial.get_error()).split())[-_MOST_LETTERS:]
        known = self._study.get_trials(deepcopy=False)[number]
        optuna.Trial(self._study, known._trial_id).set_user_attr(PROBLEM, reason)
        self._watch.say(f"trial {number} could not be run: {reason}")

    def __reduce__(self) -> Any:
        return (object, ())  # as above


def _ended(study: optuna.Study) -> list[FrozenTrial]:
    return study.get_trials(deepcopy=False, states=ENDED)


def _failed(study: optuna.Study) -> list[tuple[int, dict[str, Any], str]]:
    return [
        (trial.number, trial.params, str(trial.user_attrs[PROBLEM]))
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get(PROBLEM) is not None
    ]

"""Run parts of evaluations as Ray tasks: train unless the training is complete, then score."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import ray

from cpaan.core.remote_paths import RemotePath
from cpaan.evaluation.job import Job, Part, outcome_of
from cpaan.evaluation.parts import Outcome, PartCache, PartKey, run_parts
from cpaan.methods.registry import num_episodes_of
from cpaan.protocol.calibration import best_biases, calibrate
from cpaan.study.cluster import HEAD, check_this_machine
from cpaan.study.config import StudyConfig
from cpaan.study.job import is_trained, run_study_job, training_seconds
from cpaan.study.ray_internals import remove_orphans
from cpaan.study.study import Study
from cpaan.study.trial import MOST_FAILURES, train_with_workers

_SECONDS_TO_CANCEL, _SECONDS_BETWEEN_LOOKS = 60.0, 0.2

# A lost process, a storage that does not answer, a machine without it, or a lack of memory.
_RETRIES: dict[str, Any] = {
    "max_retries": MOST_FAILURES,
    "retry_exceptions": [OSError, RuntimeError],
}


class WorkLostError(RuntimeError):
    """Machines or processes failed too often; the same work may succeed later."""


def part_cache(storage: str) -> PartCache:
    """Return the cache of finished parts in the storage of a study."""
    return PartCache(RemotePath.at(storage) / "parts")


def measure(
    jobs: Mapping[PartKey, Job],
    study: Study,
    num_at_once: int,
    say: Callable[[str], None],
    deadline: float = math.inf,
    **options: Any,
) -> dict[PartKey, Outcome]:
    """Run the parts that are not in the cache of a study on Ray; return their outcomes.

    At most ``num_at_once`` parts are started, because Ray drops work that waits too long. At the
    deadline, a time of the monotonic clock, the others are cancelled, and have no outcome.

    Raises:
        WorkLostError: After all other parts, if a part was lost with its machine or process.
    """

    def execute(missing: Mapping[PartKey, Job]) -> Iterator[tuple[PartKey, Outcome]]:
        start = partial(_start, config=study.config, storage=study.storage)
        return run_on_ray(missing, start, num_at_once, deadline)

    return run_parts(jobs, execute, part_cache(study.storage), say, **options)


def cost_of(
    jobs: Mapping[PartKey, Job], outcomes: Mapping[PartKey, Outcome], config: StudyConfig
) -> dict[str, float]:
    """Return the cost of parts, cached ones included, in seconds of workers and of GPUs.

    A GPU that is shared counts by shares. A training counts once, however many parts score it; that
    of a trial counts with the trials. ``num_uncounted`` parts failed or have no record of time.
    """
    cost, trained = {"worker_seconds": 0.0, "gpu_seconds": 0.0, "num_uncounted": 0.0}, set()
    for key, part in outcomes.items():
        if not isinstance(part, Part) or "seconds" not in part.run:
            cost["num_uncounted"] += 1
            continue
        job, seconds = jobs[key], part.run["seconds"]
        training = job.checkpoint, job.training_digest
        if training not in trained and job.seed != config.seed:  # the seed of all trials
            trained.add(training)
            seconds += part.run["training_seconds"] * config.workers_per_trial
        cost["worker_seconds"] += seconds
        cost["gpu_seconds"] += seconds * config.gpus_per_worker
    return cost


def run_on_ray(
    jobs: Mapping[PartKey, Job],
    start: Callable[[Job], tuple[Any, Any]],
    num_at_once: int,
    deadline: float = math.inf,
) -> Iterator[tuple[PartKey, Outcome]]:
    """Start parts, and yield each with its outcome as it ends; see `measure` and `_start`."""
    waiting, running = list(jobs), dict[Any, tuple[PartKey, Any]]()
    lost: WorkLostError | None = None
    try:
        while waiting or running:
            for key in list(waiting):
                if len(running) == num_at_once:
                    break
                # A part waits for another one with the same training, and finds its checkpoint.
                busy = {_checkpoint_of(jobs[other]) for other, _ in running.values()} - {None}
                if _checkpoint_of(jobs[key]) not in busy:
                    waiting.remove(key)
                    reference, training = start(jobs[key])
                    running[reference] = key, training
            # Ray handles Ctrl-C during a wait, but no other signal, such as that of a test limit.
            done, _ = ray.wait(list(running), num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS)
            if not done and time.monotonic() > deadline:
                break
            if not done:
                continue
            key, _ = running.pop(done[0])
            try:
                yield key, ray.get(done[0])
            except ray.exceptions.RayError as error:
                cause = getattr(error, "cause", None) or error
                reason = " ".join(str(cause).split())
                if isinstance(cause, ValueError):
                    yield key, ValueError(reason)
                elif lost is None:
                    lost = WorkLostError(f"{key.row}, seed {key.seed} was lost: {reason}")
                    lost.__cause__ = error
    finally:
        _cancel([*running, *(training for _, training in running.values() if training)])
    if lost is not None:
        raise lost


def _checkpoint_of(job: Job) -> str | None:
    """Return the location of a part's checkpoint; None if nothing is trained."""
    return job.checkpoint if num_episodes_of(job.training) else None


def _cancel(references: Sequence[Any]) -> None:
    """Cancel tasks, and wait until the workers of their trainings have released their resources.

    The workers belong to an actor that Ray ends later, and nothing else frees their reservation.
    """
    for reference in references:
        ray.cancel(reference, force=True)
    deadline = time.monotonic() + _SECONDS_TO_CANCEL
    while references and remove_orphans() and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _start(job: Job, config: StudyConfig, storage: str) -> tuple[Any, Any]:
    """Start the task of a part; return its reference and that of its training, if separate.

    One worker trains without Ray Train, whose start takes longer than a small training; the result
    is the same. Several workers train as in a trial.
    """
    training: Any = None
    if num_episodes_of(job.training) and config.workers_per_trial > 1:
        on_head = ray.remote(_train_together).options(num_cpus=0, resources=HEAD, **_RETRIES)
        training = on_head.remote(job, config, storage)
    task = ray.remote(_run).options(num_cpus=1, num_gpus=config.gpus_per_worker, **_RETRIES)
    return task.remote(job, storage, training), training


def _train_together(job: Job, config: StudyConfig, storage: str) -> None:
    """Train with Ray Train, which takes half a minute to start, unless the training is complete."""
    if not is_trained(job):
        train_with_workers(job, config, storage)


def _run(job: Job, storage: str, after: None = None) -> Part:
    """Train a part or resume it, and score it, ``after`` the task that trains it if it has one."""
    started, trained_before = time.monotonic(), training_seconds(job)
    check_this_machine(storage)
    part = outcome_of(run_study_job(job, is_scored=True))
    if isinstance(part, ValueError):
        raise part
    trained = training_seconds(job)
    if job.scores_validation:  # each seed has its own biases
        part = part._replace(scores=calibrate(part.scores, best_biases(part.validation)))
    # The checkpoint has counted the seconds of the training.
    seconds = time.monotonic() - started - (trained - trained_before)
    return part._replace(run={"seconds": seconds, "training_seconds": trained})

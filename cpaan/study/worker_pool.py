"""Run parts of evaluations as Ray tasks: train unless the training is complete, then score."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ray
import torch

from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE
from cpaan.evaluation.executors import LocalExecutor, score_part, score_variants
from cpaan.evaluation.parts import Outcome, Part, PartCache, PartJob, PartKey, run_parts
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import num_episodes_of
from cpaan.protocol.calibration import best_biases, calibrate
from cpaan.protocol.config import EvaluationConfig
from cpaan.report.illustration import illustrate
from cpaan.study.cluster import HEAD, check_this_machine
from cpaan.study.job import (
    NUM_THREADS,
    TrialJob,
    is_trained,
    load_method,
    new_method,
    run_job,
    training_seconds,
)
from cpaan.study.placement_groups import remove_orphans
from cpaan.study.trial import MOST_FAILURES, train_with_workers

_SECONDS_TO_CANCEL, _SECONDS_BETWEEN_LOOKS = 60.0, 0.2

# A lost process, a storage that does not answer, a machine without it, or a lack of memory.
_RETRIES: dict[str, Any] = {
    "max_retries": MOST_FAILURES,
    "retry_exceptions": [OSError, RuntimeError],
}


class WorkLostError(RuntimeError):
    """Machines or processes failed too often; the same work may succeed later."""


class PoolJob(NamedTuple):
    """A part of an evaluation, and the training that it scores."""

    part: PartJob
    training: TrialJob

    @classmethod
    def of(cls, row: str, training: TrialJob, **options: Any) -> "PoolJob":
        """Return the job that scores a training for a row; options are fields of `PartJob`."""
        names = ("method", "training", "embedding", "evaluation", "seed", "data")
        shared = {name: getattr(training, name) for name in names}
        device = "cuda" if training.config.gpus_per_worker else "cpu"
        return cls(PartJob(row=row, device=device, **shared, **options), training)


def part_cache(storage: str) -> PartCache:
    """Return the cache of finished parts in the storage of a study."""
    return PartCache(RemotePath.at(storage) / "parts")


def measure(
    jobs: Mapping[PartKey, PoolJob],
    storage: str,
    num_at_once: int,
    say: Callable[[str], None],
    deadline: float | None = None,
    **options: Any,
) -> dict[PartKey, Outcome]:
    """Run the parts that are not in the cache of a storage on Ray; return their outcomes.

    At most ``num_at_once`` parts are started, because Ray drops work that waits too long. At the
    deadline, a time of the monotonic clock, the others are cancelled, and have no outcome.

    Raises:
        WorkLostError: After all other parts, if a part was lost with its machine or process.
    """

    def execute(missing: Mapping[PartKey, PartJob]) -> Iterator[tuple[PartKey, Outcome]]:
        return run_on_ray({key: jobs[key] for key in missing}, num_at_once, deadline)

    parts = {key: job.part for key, job in jobs.items()}
    return run_parts(parts, execute, part_cache(storage), say, **options)


def cost_of(
    jobs: Mapping[PartKey, PoolJob], outcomes: Mapping[PartKey, Outcome]
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
        job, seconds = jobs[key].training, part.run["seconds"]
        training = job.path, job.training_digest
        if training not in trained and job.seed != job.config.seed:  # the seed of all trials
            trained.add(training)
            seconds += part.run["training_seconds"] * job.config.workers_per_trial
        cost["worker_seconds"] += seconds
        cost["gpu_seconds"] += seconds * job.config.gpus_per_worker
    return cost


def run_on_ray(
    jobs: Mapping[PartKey, PoolJob], num_at_once: int, deadline: float | None = None
) -> Iterator[tuple[PartKey, Outcome]]:
    """Yield each part with its outcome as it ends; see `measure`."""
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
                    reference, training = _start(jobs[key])
                    running[reference] = key, training
            # Ray handles Ctrl-C during a wait, but no other signal, such as that of a test limit.
            done, _ = ray.wait(list(running), num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS)
            if not done and deadline is not None and time.monotonic() > deadline:
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


def _checkpoint_of(job: PoolJob) -> str | None:
    """Return the path of a part's checkpoint; None if nothing is trained."""
    return job.training.path if num_episodes_of(job.part.training) else None


def _cancel(references: Sequence[Any]) -> None:
    """Cancel tasks, and wait until the workers of their trainings have released their resources.

    The workers belong to an actor that Ray ends later, and nothing else frees their reservation.
    """
    for reference in references:
        ray.cancel(reference, force=True)
    deadline = time.monotonic() + _SECONDS_TO_CANCEL
    while references and remove_orphans() and time.monotonic() < deadline:
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _start(job: PoolJob) -> tuple[Any, Any]:
    """Start the task of a part; return its reference and that of its training, if separate.

    One worker trains without Ray Train, whose start takes longer than a small training; the result
    is the same. Several workers train as in a trial.
    """
    config = job.training.config
    training: Any = None
    if num_episodes_of(job.part.training) and config.workers_per_trial > 1:
        on_head = ray.remote(_train_together).options(num_cpus=0, resources=HEAD, **_RETRIES)
        training = on_head.remote(job.training)
    task = ray.remote(_run).options(num_cpus=1, num_gpus=config.gpus_per_worker, **_RETRIES)
    return task.remote(job, False if training is None else training), training


def _train_together(job: TrialJob) -> bool:
    """Train with Ray Train, which takes half a minute to start, unless the training is complete."""
    if not is_trained(job):
        train_with_workers(job)
    return True


def _run(job: PoolJob, was_trained: bool) -> Part:
    part, training = job
    started, trained = time.monotonic(), 0.0
    check_this_machine(training.storage)
    torch.set_num_threads(NUM_THREADS)
    device, read = torch.device(part.device), LocalExecutor().read
    if num_episodes_of(part.training):
        trained_before = training_seconds(training)
        for report in () if was_trained else run_job(training, device):
            if report.problem:
                raise ValueError(report.problem)
        first = VALIDATION_PHASE if part.scores_validation else part.phase
        method = load_method(training, read(part, first)[0])
        trained = training_seconds(training)
        started += trained - trained_before  # the checkpoint has counted them
    else:
        method = new_method(training, device)

    def make(settings: Settings, evaluation: EvaluationConfig) -> LowShotMethod:
        return new_method(replace(training, training=settings, evaluation=evaluation), device)

    if part.variants:
        found = score_variants(part, method, make, read)
    else:
        found = score_part(part, method, read)
    if part.scores_validation:  # each seed has its own biases
        found = found._replace(scores=calibrate(found.scores, best_biases(found.validation)))
    if part.is_illustrated:
        task, queries = read(part, TEST_PHASE)
        novel = part.data.split.phase(TEST_PHASE).novel
        pictures = illustrate(part.row, method, part.seed, task, queries, novel)
        found = found._replace(spectra=pictures.spectra, projections=pictures.projections)
    run = {"seconds": time.monotonic() - started, "training_seconds": trained}
    return found._replace(run=run)

"""Parts of evaluations as Ray tasks: train what the storage lacks, then score."""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
import torch

from cpaan.core.remote_paths import RemotePath
from cpaan.data.splits import TEST_PHASE
from cpaan.evaluation.executors import read_phase_of, score_part
from cpaan.evaluation.parts import Outcome, Part, PartCache, PartJob, PartKey
from cpaan.methods.registry import num_episodes_of
from cpaan.protocol.priors import best_priors, with_priors
from cpaan.protocol.tasks import LowShotTask, Queries
from cpaan.report.illustration import illustrate
from cpaan.study.cluster import HEAD, worker_resources
from cpaan.study.job import NUM_THREADS, is_trained, load_method, new_method, run_job
from cpaan.study.machines import check_this_machine
from cpaan.study.trial import MOST_FAILURES, Trial, train_with_workers

_CACHE = "parts"


class WorkLostError(RuntimeError):
    """Machines or processes failed too often; the same work may succeed later."""


class PoolJob(NamedTuple):
    """A part, and the training that it is about."""

    part: PartJob
    trial: Trial


@dataclass(eq=False)
class WorkerPool:
    """Executor of parts on Ray: some at a time, until a deadline."""

    jobs: Mapping[PartKey, PoolJob]
    num_at_once: int
    """Parts at a time: Ray gives up work that waits too long for resources."""
    deadline: float | None = None
    """Time of the monotonic clock after which no part is started; None: never."""
    lost: WorkLostError | None = None
    """The first part that was lost for a reason that is not its own."""

    def __call__(self, parts: Mapping[PartKey, PartJob]) -> Iterator[tuple[PartKey, Outcome]]:
        """Yield every part with its outcome when it ends."""
        waiting, running = deque(parts), dict[Any, PartKey]()
        try:
            while waiting or running:
                while waiting and len(running) < self.num_at_once:
                    key = waiting.popleft()
                    running[_start(self.jobs[key])] = key
                left = None if self.deadline is None else self.deadline - time.monotonic()
                done, _ = ray.wait(
                    list(running), num_returns=1, timeout=None if left is None else max(0.0, left)
                )
                if not done:
                    return
                key = running.pop(done[0])
                outcome = self._result_of(done[0], key)
                if outcome is not None:
                    yield key, outcome
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _result_of(self, reference: Any, key: PartKey) -> Outcome | None:
        try:
            part: Part = ray.get(reference)
            return part
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            reason = " ".join(str(cause).split())
            if isinstance(cause, ValueError):
                return ValueError(reason)
            if self.lost is None:
                self.lost = WorkLostError(f"{key.row}, seed {key.seed} was lost: {reason}")
                self.lost.__cause__ = error
            return None


def part_cache(storage: str) -> PartCache:
    """Return the cache of finished parts in the storage of a study."""
    return PartCache(RemotePath.at(storage) / _CACHE)


def _start(job: PoolJob) -> "ray.ObjectRef[Any]":
    """Start the task of a part.

    One worker trains without Ray Train, which takes longer to start than a small training lasts;
    the result is the same. Several workers train as they do in a trial.
    """
    study = job.trial.study
    needs = worker_resources(study)
    trained = None
    is_trained_together = num_episodes_of(job.part.training) > 0 and study.workers_per_trial > 1
    if is_trained_together:
        together = ray.remote(_train_together)
        on_head = together.options(num_cpus=0, resources=HEAD, max_retries=MOST_FAILURES)
        trained = on_head.remote(job.trial)
    task = ray.remote(_run).options(
        num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), max_retries=MOST_FAILURES
    )
    return task.remote(job, not is_trained_together, trained)


def _train_together(trial: Trial) -> None:
    """Train with Ray Train unless the training is complete: Ray Train takes half a minute."""
    if not is_trained(trial.job):
        train_with_workers(trial, [])


def _run(job: PoolJob, trains: bool, trained: None) -> Part:
    part, trial_job, study = job.part, job.trial.job, job.trial.study
    check_this_machine(trial_job.storage)
    torch.set_num_threads(NUM_THREADS)
    device = torch.device("cuda" if study.gpus_per_worker else "cpu")
    needs_training = num_episodes_of(part.training) > 0
    if trains and needs_training:
        for report in run_job(trial_job, device):
            if report.problem:
                raise ValueError(report.problem)
    table = part.data.open()
    phases: dict[str, tuple[LowShotTask, Queries]] = {}

    def read(part: PartJob, phase: str) -> tuple[LowShotTask, Queries]:
        if phase not in phases:
            phases[phase] = read_phase_of(part, phase, table)
        return phases[phase]

    if needs_training:
        first = "validation" if part.scores_validation else part.phase
        method = load_method(trial_job, read(part, first)[0])
    else:
        method = new_method(trial_job, device)
    found = score_part(part, method, read)
    if part.scores_validation:  # a prior for each seed
        found = found._replace(scores=with_priors(found.scores, best_priors(found.validation)))
    if part.is_illustrated:
        task, queries = read(part, TEST_PHASE)
        novel = part.data.split.phase(TEST_PHASE).novel
        pictures = illustrate(part.row, method, part.seed, task, queries, novel)
        found = found._replace(spectra=pictures.spectra, projections=pictures.projections)
    return found

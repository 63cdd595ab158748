"""Run one training of a study, with evaluation steps and a checkpoint to resume from.

This module does not use Ray: a single process gives the same numbers. The checkpoint is one file
with a fixed name, which is overwritten. Ray Train (2.60) names a checkpoint by the time, and saves
one only with a report of all workers, so work between two evaluation steps would be lost.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd
import torch

from cpaan.core.devices import is_out_of_memory
from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.cache import default_cache_folder
from cpaan.data.reference import DataReference
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.evaluation.scoring import draw_phase, run_method, sort_scores
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import make_method, num_episodes_of
from cpaan.protocol.calibration import calibrate
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import TOP5, StudyConfig
from cpaan.training.drive import Checkpoint, Stretch, drive
from cpaan.training.learning import Run, TrainingDivergedError
from cpaan.training.workers import ALONE, Workers

EPISODE = "episode"
_TWICE = b"out of memory twice"
NUM_THREADS = 1
"""Threads of torch in each process, which has one core; the number affects the last digits."""


@dataclass(frozen=True)
class TrialJob:
    """A training, its data and the place of its checkpoint. Equal jobs have equal outcomes."""

    method: str
    training: Settings
    evaluation: EvaluationConfig
    """Settings for the validation phase: one head, draws, and the use of synthetic examples."""
    seed: int
    eval_steps: tuple[int, ...]
    """Numbers of episodes after which the method is evaluated."""
    data: DataReference
    storage: str
    """Path or URL of the study's storage."""
    path: str
    """Name of the checkpoint in the storage."""
    embedding: EmbeddingConfig | None = None
    """Settings of the method's embedding; None if it uses none."""
    config: StudyConfig = field(default_factory=StudyConfig)
    """Settings of the study: number of workers, their resources, and weights of the score."""
    number: int = 0
    """Number of the trial in its study."""

    @property
    def checkpoint(self) -> RemotePath:
        """File from which the training resumes."""
        return RemotePath.at(self.storage) / self.path

    @property
    def training_digest(self) -> str:
        """Digest of everything that determines the training, except the number of workers."""
        known = asdict(self)
        data = {**known["data"], "features": None, "in_order_of": None}
        return _digest(self.method, known["training"], known["embedding"], self.seed, data)

    def new_checkpoint(self) -> Checkpoint:
        """Return the checkpoint, which ignores a file of other settings.

        A machine that was lost before its records were copied may have left one under this number.
        """
        evaluation = _digest(self.evaluation.to_dict())
        return Checkpoint(self.checkpoint, self.training_digest, evaluation)


@dataclass(frozen=True)
class Report:
    """The state of a job at an evaluation step."""

    curve: tuple[dict[str, Any], ...]
    """All evaluations so far, because earlier reports may be lost: episode, `mean_top5` on the
    validation phase, and seconds of training and evaluation. Work that a restart repeats is counted
    once."""
    losses: dict[str, float] = field(default_factory=dict)
    """Means since the previous report; empty after a restart."""
    episodes_per_second: float | None = None
    problem: str | None = None
    """Why the job failed, if it did. Another attempt would fail the same way."""


class _JobError(Exception):
    """A job failed on one of its workers, so all of them stop."""


@contextmanager
def _together(workers: Workers) -> Iterator[None]:
    """Raise an error on all workers if the block fails on one; the others would wait forever."""
    problem = None
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        problem = " ".join(str(error).split()) or repr(error)
    problems = [each for each in workers.gather(problem) if each]
    if problems:
        raise _JobError(problems[0])


def run_job(job: TrialJob, device: torch.device, workers: Workers = ALONE) -> Iterator[Report]:
    """Train a job to its end, and yield a report at each evaluation step.

    Resume from the checkpoint in the storage. Workers share the draws of an evaluation. Every
    worker yields the same reports, apart from seconds.

    If the device runs out of memory, raise the error the first time, because another process may
    have used the memory. After the second time, a restarted job reports it as its problem.
    """
    torch.set_num_threads(NUM_THREADS)
    checkpoint = job.new_checkpoint()
    # In the storage, because the restarted workers may run elsewhere.
    memory = RemotePath.at(job.storage) / f"{job.path}-{job.training_digest}.memory"
    earlier = memory.read_if_exists()

    def evaluate(stretch: Stretch) -> None:
        with _together(workers):
            share = _evaluate(method, task, queries, job, workers)
        scores = sort_scores(pd.concat([each for each in workers.gather(share) if len(each)]))
        entry = {EPISODE: run.episode, **mean_top5(scores, job.evaluation.heads[0])}
        checkpoint.curve.append({**entry, "seconds": checkpoint.seconds})

    try:
        with _together(workers):
            if earlier is not None and earlier.startswith(_TWICE):
                raise ValueError(earlier.decode())
            task, queries = read_validation(job, device)
            method, run = _begin(job, task, workers)
            checkpoint.restore(run)
        run.check_equal_weights()
        if checkpoint.curve:
            yield Report(tuple(checkpoint.curve))
        evaluated = {entry[EPISODE] for entry in checkpoint.curve}
        steps = [step for step in job.eval_steps if step not in evaluated]
        stretches = drive(run, checkpoint, eval_steps=steps, on_eval=evaluate, workers=workers)
        for stretch in stretches:
            pace = stretch.num_episodes / stretch.seconds if stretch.seconds else None
            yield Report(tuple(checkpoint.curve), stretch.losses, pace)
    except (TrainingDivergedError, _JobError) as error:  # raised by all workers
        yield Report(tuple(checkpoint.curve), problem=str(error))
    except Exception as error:
        if is_out_of_memory(error):
            reason = f": {' '.join(str(error).split())}".encode()
            memory.write((b"out of memory" if earlier is None else _TWICE) + reason)
        raise


def is_trained(job: TrialJob) -> bool:
    """Return whether the checkpoint of a job is at the last episode."""
    try:
        state = job.new_checkpoint().read()
        return state is not None and state["run"]["episode"] == num_episodes_of(job.training)
    except (ValueError, KeyError, TypeError):  # a damaged file, which `run_job` reports
        return False


def training_seconds(job: TrialJob) -> float:
    """Return the seconds of training in the checkpoint of a job; 0 if there is none."""
    state = job.new_checkpoint().read()
    return 0.0 if state is None else float(state["seconds"])


def load_method(job: TrialJob, task: LowShotTask) -> LowShotMethod:
    """Return the fully trained method of a job, for a task with the same base examples.

    Raises:
        ValueError: If the training is not complete.
    """
    method, run = _begin(job, task, ALONE)
    job.new_checkpoint().restore(run)
    if run.episode < run.num_episodes:
        episodes = f"{run.episode} of {run.num_episodes} episodes"
        raise ValueError(f"checkpoint {job.path} is incomplete: {episodes}")
    return method


def _begin(job: TrialJob, task: LowShotTask, workers: Workers) -> tuple[LowShotMethod, Run]:
    method = new_method(job, task.device)
    return method, method.begin(task.base, new_rng(job.seed), workers)


def new_method(job: TrialJob, device: torch.device) -> LowShotMethod:
    """Return the untrained method of a job, in the job's embedding if it has one.

    Jobs on this machine share embeddings of the same data, settings, seed and device type.
    """
    known = asdict(job)
    digest = _digest({**known["data"], "features": None}, known["embedding"], device.type)
    return make_method(
        job.method,
        job.evaluation,
        job.training,
        embedding=job.embedding,
        embeddings=default_cache_folder() / "embeddings" / digest,
        seed=job.seed,
    )


def _digest(*content: object) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_validation(job: TrialJob, device: torch.device) -> tuple[LowShotTask, Queries]:
    """Return the task and the queries of the validation phase for the job's evaluation."""
    table, split, config = job.data.open(), job.data.split, job.evaluation
    shot_rows = draw_phase(table, split, VALIDATION_PHASE, config)
    return read_phase(table, split, VALIDATION_PHASE, shot_rows, sorted(config.shots), device)


def _evaluate(
    method: LowShotMethod, task: LowShotTask, queries: Queries, job: TrialJob, workers: Workers
) -> pd.DataFrame:
    """Score the method in its current state on this worker's share of the draws.

    Each draw has its own random numbers, so its scores do not depend on the other draws. Only the
    rounding of a GPU may differ with their number.
    """
    draws = workers.share(range(job.evaluation.num_draws))
    part = replace(task, problems=tuple(p for p in task.problems if p.draw in draws))
    scores, _ = run_method(
        job.method, method, job.seed, part, queries, job.evaluation, diversity_draws=range(0)
    )
    return scores


def mean_top5(scores: pd.DataFrame, head: str) -> dict[str, float]:
    """Return LSL, GLSL and calibrated GLSL top-5 of a head: means over numbers of shots and draws.

    The bias of each number of shots is chosen on these scores.
    """
    means = calibrate(scores[scores["head"] == head]).groupby("column")["top5"].mean()
    return {name: float(means[name.removesuffix("_top5")]) for name in TOP5}


def describe_top5(means: Mapping[str, Any]) -> str:
    """Return `mean_top5` as text."""
    novel, plain, calibrated = (means[name] for name in TOP5)
    return f"LSL {novel:.2f}, GLSL {plain:.2f}, calibrated {calibrated:.2f}"

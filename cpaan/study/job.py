"""Run one training of a study, with evaluation steps and a checkpoint to resume from.

This module does not use Ray: a single process gives the same numbers.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cpaan.core.files import unpack_state
from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.cache import default_cache_folder
from cpaan.data.reference import DataReference
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.evaluation.scoring import draw_phase, run_method
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import make_method, num_episodes_of
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import StudyConfig
from cpaan.training.drive import Checkpoint, Stretch, drive
from cpaan.training.learning import Run, TrainingDivergedError
from cpaan.training.workers import ALONE, Workers

EPISODE, NOVEL_TOP5, ALL_TOP5 = "episode", "novel_top5", "all_top5"
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


@dataclass(frozen=True)
class Report:
    """The state of a job at an evaluation step."""

    curve: tuple[dict[str, Any], ...]
    """All evaluations so far, because earlier reports may be lost: episode, LSL and GLSL top-5, and
    seconds of training and evaluation. Top-5 is the mean over shots and draws of the validation
    phase, in percent. Work that a restart repeats is counted once."""
    losses: dict[str, float] = field(default_factory=dict)
    """Means since the previous report; empty after a restart."""
    episodes_per_second: float | None = None
    problem: str | None = None
    """Why the job failed, if it did. Another attempt would fail the same way."""


class _JobError(Exception):
    """A job failed on one of its workers, so all of them stop."""


@contextmanager
def _together(workers: Workers, device: torch.device) -> Iterator[None]:
    """Raise an error on all workers if the block fails on one; the others would wait forever."""
    problem = None
    try:
        yield
    except (ValueError, ArithmeticError) as error:
        problem = " ".join(str(error).split())
    if workers.mean(float(problem is not None), device):
        raise _JobError(problem or "another worker failed")


def run_job(job: TrialJob, device: torch.device, workers: Workers = ALONE) -> Iterator[Report]:
    """Train a job to its end, and yield a report at each evaluation step.

    Resume from the checkpoint in the storage. Every worker yields the same number of reports;
    only those of rank 0 have evaluations.
    """
    torch.set_num_threads(NUM_THREADS)
    checkpoint = Checkpoint(job.checkpoint)

    def evaluate(stretch: Stretch) -> None:
        with _together(workers, device):
            if workers.rank == 0:
                novel, everything = _evaluate(method, task, queries, job)
                entry = {EPISODE: run.episode, NOVEL_TOP5: novel, ALL_TOP5: everything}
                checkpoint.curve.append({**entry, "seconds": checkpoint.seconds})

    try:
        with _together(workers, device):
            task, queries = read_validation(job, device)
            method, run = _begin(job, task, workers)
            checkpoint.restore(run)
        run.check_equal_weights()
        if checkpoint.curve:
            yield Report(tuple(checkpoint.curve))
        evaluated = {entry[EPISODE] for entry in checkpoint.curve}
        eval_steps = [step for step in job.eval_steps if step not in evaluated]
        for stretch in drive(
            run,
            checkpoint,
            eval_steps=eval_steps,
            on_eval=evaluate,
            workers=workers,
        ):
            pace = stretch.num_episodes / stretch.seconds if stretch.seconds else None
            yield Report(tuple(checkpoint.curve), stretch.losses, pace)
    except (TrainingDivergedError, _JobError) as error:  # raised by all workers
        yield Report(tuple(checkpoint.curve), problem=str(error))


def is_trained(job: TrialJob) -> bool:
    """Return whether the checkpoint of a job is at the last episode."""
    content = job.checkpoint.read_if_exists()
    try:
        episode = None if content is None else unpack_state(content)["run"]["episode"]
    except Exception:  # a damaged file can raise any error, which `run_job` reports
        return False
    return bool(episode == num_episodes_of(job.training))


def load_method(job: TrialJob, task: LowShotTask) -> LowShotMethod:
    """Return the fully trained method of a job, for a task with the same base examples.

    Raises:
        ValueError: If the training is not complete.
    """
    method, run = _begin(job, task, ALONE)
    Checkpoint(job.checkpoint).restore(run)
    if run.episode < run.num_episodes:
        episodes = f"{run.episode} of {run.num_episodes} episodes"
        raise ValueError(f"checkpoint {job.path} is incomplete: {episodes}")
    return method


def _begin(job: TrialJob, task: LowShotTask, workers: Workers) -> tuple[LowShotMethod, Run]:
    method = new_method(job, task.device)
    return method, method.begin(task.base, new_rng(job.seed), workers)


def new_method(job: TrialJob, device: torch.device) -> LowShotMethod:
    """Return the untrained method of a job, in the job's embedding if it has one."""
    return make_method(
        job.method,
        job.evaluation,
        job.training,
        embedding=job.embedding,
        embeddings=_embeddings_of(job, device),
        seed=job.seed,
    )


def _embeddings_of(job: TrialJob, device: torch.device) -> Path:
    """Return the local cache folder for embeddings of the job's data, settings and device type."""
    data = {**job.data.to_dict(), "features": None}
    content = [data, None if job.embedding is None else job.embedding.to_dict(), device.type]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return default_cache_folder() / "embeddings" / digest


def read_validation(job: TrialJob, device: torch.device) -> tuple[LowShotTask, Queries]:
    """Return the task and the queries of the validation phase for the job's evaluation."""
    table, split, config = job.data.open(), job.data.split, job.evaluation
    shot_rows = draw_phase(table, split, VALIDATION_PHASE, config)
    return read_phase(table, split, VALIDATION_PHASE, shot_rows, sorted(config.shots), device)


def _evaluate(
    method: LowShotMethod, task: LowShotTask, queries: Queries, job: TrialJob
) -> tuple[float, float]:
    """Return LSL and GLSL top-5 of the method in its current state: means over shots and draws."""
    scores, _ = run_method(job.method, method, job.seed, task, queries, job.evaluation)
    return mean_top5(scores, job.evaluation.heads[0])


def mean_top5(scores: pd.DataFrame, head: str) -> tuple[float, float]:
    """Return LSL and GLSL top-5 of a head: means over numbers of shots and draws."""
    means = scores[scores["head"] == head].groupby("column")["top5"].mean()
    return float(means["novel"]), float(means["all"])

"""One training of a study: to its marks, evaluated at each, kept so that it can stop anywhere.

Nothing here knows Ray: a single process gives the same numbers.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from cpaan.core.files import pack_state, unpack_state
from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.cache import default_cache_folder
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.evaluation.scoring import draw_phase, run_method
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import ROWS, make_method, num_episodes_of
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import DataReference
from cpaan.training.learning import Run, TrainingDivergedError
from cpaan.training.workers import ALONE, Workers

NUM_THREADS = 1
"""Of torch in every process of a study, which has one core; the number decides the last digits."""
_STEPS_AT_ONCE = 50  # between looks at the losses, and at the clock
_TIMES_ON_GPU = 8  # as many: a look makes it wait
_SECONDS_BETWEEN_CHECKPOINTS = 30.0
_OF_ANOTHER = "another worker could not go on"


@dataclass(frozen=True)
class Job:
    """What to train, on what, and where it is kept. Equal jobs have equal outcomes."""

    method: str
    training: Settings
    evaluation: EvaluationConfig
    """Of the validation phase: one head, draws, and how synthetic examples are used."""
    seed: int
    marks: tuple[int, ...]
    """Numbers of episodes after which it is evaluated."""
    data: DataReference
    storage: str
    """Path or address of the study's storage."""
    path: str
    """Name of the file in it that holds the state."""
    embedding: EmbeddingConfig | None = None
    """Of the embedding that the method works in, if it does."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        settings = {"training": self.training.to_dict(), "evaluation": self.evaluation.to_dict()}
        embedding = None if self.embedding is None else self.embedding.to_dict()
        return {**vars(self), **settings, "data": self.data.to_dict(), "embedding": embedding}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return what `to_dict` was of."""
        embedding = content["embedding"]
        return cls(
            **{
                **content,
                "training": ROWS[content["method"]].config.from_dict(content["training"]),
                "embedding": None if embedding is None else EmbeddingConfig(**embedding),
                "evaluation": EvaluationConfig(**content["evaluation"]),
                "data": DataReference.from_dict(content["data"]),
            }
        )


@dataclass(frozen=True)
class Evaluation:
    """How a generator did on the validation phase: means over shots and draws, in percent."""

    episode: int
    novel_top5: float
    all_top5: float
    seconds: float
    """Of training and evaluation so far, without what a restart had to repeat."""


@dataclass(frozen=True)
class Report:
    """What a job says at a mark."""

    curve: tuple[Evaluation, ...]
    """All evaluations so far: a report does not rely on earlier ones having been received."""
    losses: dict[str, float] = field(default_factory=dict)
    """Means since the report before; none after a restart."""
    episodes_per_second: float | None = None
    problem: str | None = None
    """Why the job ended, where it could not go on. To try again would end the same way."""


def run_job(job: Job, device: torch.device, workers: Workers = ALONE) -> Iterator[Report]:
    """Train to the end, evaluate at the marks, and report there; go on from what the storage has.

    Every worker gets as many reports; only those of rank 0 have evaluations.

    Args:
        job: What to do.
        device: Where to compute.
        workers: Who trains together.
    """
    torch.set_num_threads(NUM_THREADS)
    problem = None
    try:
        task, queries = read_validation(job, device)
        method, run = _begin(job, task, workers)
        keeper = _Keeper(job, run)
    except ValueError as error:
        problem = " ".join(str(error).split())
    if workers.mean(float(problem is not None), device):
        yield Report((), problem=problem or _OF_ANOTHER)
        return
    if workers.mean(float(run.episode), device) != run.episode:
        # A process that should be dead may have written in between: all of them read again.
        raise RuntimeError("workers have read different states")
    steps_at_once = _STEPS_AT_ONCE * (_TIMES_ON_GPU if device.type == "cuda" else 1)
    keeper.start_clock()
    if keeper.curve:
        yield Report(tuple(keeper.curve))
    for mark in sorted({*job.marks, run.num_episodes}):
        if mark < run.episode or (mark == run.episode and keeper.has(mark)):
            continue
        first, started = run.episode, time.monotonic()
        losses = dict.fromkeys(run.losses, 0.0)
        try:
            while run.episode < mark:
                count = min(steps_at_once * workers.count, mark - run.episode)
                means = run.advance(count)
                for name in run.losses:
                    losses[name] += means[name] * count / (mark - first)
                if workers.rank == 0 and run.episode < mark:
                    keeper.save_now_and_then()
        except TrainingDivergedError as error:  # which comes to all workers alike
            problem = str(error)
        seconds = time.monotonic() - started
        if workers.rank == 0 and problem is None:
            try:
                if mark in job.marks:
                    keeper.add(*_evaluate(method, task, queries, job))
                keeper.save()
            except (ValueError, ArithmeticError) as error:
                problem = " ".join(str(error).split())
        # All of them end together, or those that go on would wait for the others for ever.
        if workers.mean(float(problem is not None), device):
            yield Report(tuple(keeper.curve), problem=problem or _OF_ANOTHER)
            return
        yield Report(tuple(keeper.curve), losses, (mark - first) / seconds if seconds else None)


def score_job(job: Job, device: torch.device) -> tuple[float, float]:
    """Return LSL and GLSL top-5 of a job that was trained to its end, by its evaluation.

    Raises:
        ValueError: If the storage has no such training.
    """
    torch.set_num_threads(NUM_THREADS)
    task, queries = read_validation(job, device)
    return _evaluate(load_method(job, task), task, queries, job)


def is_trained(job: Job) -> bool:
    """Return whether the storage has the training of a job up to its last episode."""
    content = (RemotePath.at(job.storage) / job.path).read_if_exists()
    if content is None:
        return False
    try:
        episode: int = unpack_state(content)["run"]["episode"]
    except Exception:  # a damaged file raises anything; `run_job` reports what is wrong with it
        return False
    return episode == num_episodes_of(job.training)


def load_method(job: Job, task: LowShotTask) -> LowShotMethod:
    """Return the method of a job that was trained to its end, for a task on the same base examples.

    Raises:
        ValueError: If the storage has no such training.
    """
    method, run = _begin(job, task, ALONE)
    _Keeper(job, run)
    if run.episode < run.num_episodes:
        raise ValueError(f"{job.path} has {run.episode} of {run.num_episodes} episodes")
    return method


def _begin(job: Job, task: LowShotTask, workers: Workers) -> tuple[LowShotMethod, Run]:
    method = new_method(job, task.device)
    return method, method.begin(task.base, new_rng(job.seed), workers)


def new_method(job: Job, device: torch.device) -> LowShotMethod:
    """Return the method of a job, in the job's embedding where it works in one; untrained."""
    return make_method(
        job.method,
        job.evaluation,
        job.training,
        embedding=job.embedding,
        embeddings=_embeddings_of(job, device),
        seed=job.seed,
    )


def _embeddings_of(job: Job, device: torch.device) -> Path:
    """Return a folder of this machine for embeddings that only equal ones are kept in."""
    data = {**job.data.to_dict(), "features": None}
    content = [data, None if job.embedding is None else job.embedding.to_dict(), device.type]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    return default_cache_folder() / "embeddings" / digest


def read_validation(job: Job, device: torch.device) -> tuple[LowShotTask, Queries]:
    """Return the validation phase as the job's evaluation wants it."""
    table, split, config = job.data.open(), job.data.split, job.evaluation
    shot_rows = draw_phase(table, split, VALIDATION_PHASE, config)
    return read_phase(table, split, VALIDATION_PHASE, shot_rows, sorted(config.shots), device)


def _evaluate(
    method: LowShotMethod, task: LowShotTask, queries: Queries, job: Job
) -> tuple[float, float]:
    """Return LSL and GLSL top-5, means over shots and draws, of the method as it is trained now."""
    scores, _ = run_method(job.method, method, job.seed, task, queries, job.evaluation)
    wanted = scores[scores["head"].isin(job.evaluation.heads)]
    means = wanted.groupby("column")["top5"].mean()
    return float(means["novel"]), float(means["all"])


class _Keeper:
    """Keeps a run and its evaluations in the storage."""

    def __init__(self, job: Job, run: Run) -> None:
        """Let the run go on from what is there.

        Raises:
            ValueError: If that is of another run.
        """
        self._path, self._marks = RemotePath.at(job.storage) / job.path, job.marks
        self._run = run
        self.curve: list[Evaluation] = []
        self._seconds = 0.0
        content = self._path.read_if_exists()
        if content is not None:
            try:
                state = unpack_state(content)
                run.load_state_dict(state["run"])
                self.curve = [Evaluation(**entry) for entry in state["curve"]]
                self._seconds = state["seconds"]
            except Exception as error:  # a file of something else fails anywhere
                reason = " ".join(str(error).split())
                raise ValueError(f"cannot go on from {job.path}: {reason}") from error
        self.start_clock()

    def start_clock(self) -> None:
        """Count seconds from now on: what others take to get ready is no cost of training."""
        self._started = self._saved = time.monotonic()

    def has(self, mark: int) -> bool:
        """Return whether nothing is left to do at a mark."""
        return mark not in self._marks or any(entry.episode == mark for entry in self.curve)

    def save_now_and_then(self) -> None:
        """Save the state, if that is a while ago."""
        if time.monotonic() - self._saved > _SECONDS_BETWEEN_CHECKPOINTS:
            self.save()

    def add(self, novel_top5: float, all_top5: float) -> None:
        """Note an evaluation of the run as it is."""
        seconds = self._total_seconds()
        self.curve.append(Evaluation(self._run.episode, novel_top5, all_top5, seconds))

    def _total_seconds(self) -> float:
        return self._seconds + time.monotonic() - self._started

    def save(self) -> None:
        """Put the state in the place of the one before."""
        state: dict[str, Any] = {
            "run": self._run.state_dict(),
            "curve": [vars(entry) for entry in self.curve],
            "seconds": self._total_seconds(),
        }
        self._path.write(pack_state(state))
        self._saved = time.monotonic()

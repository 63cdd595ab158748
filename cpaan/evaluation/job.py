"""A row of a table with one training seed: train or resume it, then score it.

`run_job` is the only function that does so. `evaluate`, N-way tasks, the trials of a search and the
parts of a report call it, each in processes of its own.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.reference import DataReference
from cpaan.data.splits import VALIDATION_PHASE, ShotRows
from cpaan.data.table import FeatureTable
from cpaan.evaluation.few_shot_tasks import FewShotTasks, read_tasks, score_tasks
from cpaan.evaluation.illustration import illustrate
from cpaan.evaluation.scoring import draw_phase, mean_top5, run_method, sort_scores
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import make_method
from cpaan.protocol.calibration import means_over_draws
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.drive import Checkpoint, Progress, Stretch, drive, restore, saying_what_is_saved
from cpaan.training.learning import TrainingDivergedError
from cpaan.training.workers import ALONE, Workers

EPISODE = "episode"


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """A row of a table with one training seed: everything that determines its result."""

    row: str
    """Name of the row in the table."""
    method: str
    training: Settings
    embedding: EmbeddingConfig | None = None
    """Settings of the embedding, if the method works in one."""
    evaluation: EvaluationConfig
    seed: int
    data: DataReference
    phase: str = VALIDATION_PHASE
    draws: ShotRows | FewShotTasks | None = None
    """Draws of the phase, shape (draws, novel classes, shots), or N-way tasks. None: seeded draws,
    by the settings of the evaluation."""
    device: str = "cpu"

    checkpoint: str | None = None
    """Path or URL of the checkpoint of the training, to resume from and to write to."""
    replaces_checkpoint: bool = False
    """Whether to start again if the checkpoint is of another training, instead of refusing it."""
    eval_steps: tuple[int, ...] = ()
    """Numbers of episodes after which the method is also evaluated, on the validation phase."""

    scores_validation: bool = False
    """Whether the validation phase is also scored, to choose biases and heads."""
    is_illustrated: bool = False
    """Whether spectra and projections of synthetic examples are also computed."""
    diversity_draws: range | None = None
    """Draws whose diversity is computed; None for all."""
    variants: tuple[tuple[Settings, EvaluationConfig], ...] = ()
    """Settings of the method and of the evaluation to score one training with, its own first. Other
    settings than its own need no training. Empty for the job's settings alone."""

    @property
    def training_digest(self) -> str:
        """Digest of everything that determines the training, except the number of workers."""
        data = {**asdict(self.data), "features": None, "in_order_of": None}
        embedding = None if self.embedding is None else asdict(self.embedding)
        return digest_of(self.method, asdict(self.training), embedding, self.seed, data)

    def new_checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the training, with the evaluations of these settings."""
        file = None if self.checkpoint is None else RemotePath.at(self.checkpoint)
        training = self.training_digest if self.replaces_checkpoint else ""
        return Checkpoint(file, training, digest_of(self.evaluation.to_dict()))

    def describe(self) -> dict[str, Any]:
        """Return all inputs that determine the result, except the code, for JSON."""
        split, draws = self.data.split, self.draws
        arrays = draws if isinstance(draws, FewShotTasks) else () if draws is None else (draws,)
        return {
            "row": self.row,
            "method": self.method,
            "training": self.training.to_dict(),
            "embedding": None if self.embedding is None else self.embedding.to_dict(),
            # Other seeds of the same evaluation have no effect.
            "evaluation": {**self.evaluation.to_dict(), "seed": None, "num_seeds": None},
            "seed": self.seed,
            "features": self.data.fingerprint,
            "classes": [phase and asdict(phase) for phase in (split.validation, split.test)],
            "phase": self.phase,
            "draws": [hashlib.sha256(rows.tobytes()).hexdigest()[:16] for rows in arrays],
            "scores_validation": self.scores_validation,
            "is_illustrated": self.is_illustrated,
            "diversity_draws": str(self.diversity_draws),
            "variants": [[settings.to_dict() for settings in variant] for variant in self.variants],
            "device": torch.device(self.device).type,
        }


def digest_of(*content: object) -> str:
    """Return a digest of JSON-compatible values."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Part(NamedTuple):
    """The scores of a job."""

    scores: pd.DataFrame
    """One line for each head, column, number of shots, draw and bias; of N-way tasks, one for each
    head, number of shots and task."""
    diversity: pd.DataFrame
    validation: pd.DataFrame
    """Scores on the validation phase, means over draws; empty unless the job requires them."""
    spectra: pd.DataFrame
    projections: pd.DataFrame
    origin: dict[str, Any] | None
    """Checkpoint from which the training resumed, if any."""
    run: dict[str, Any]
    """Command, commit and time, from `describe_run`, which `run_parts` adds. On Ray also
    ``seconds`` of the process without the training, and ``training_seconds`` over all sessions."""


@dataclass(frozen=True)
class Report:
    """The state of a job at an evaluation step, or at its end."""

    curve: tuple[dict[str, Any], ...] = ()
    """All evaluations so far, because earlier reports may be lost: episode, `mean_top5` on the
    validation phase, and seconds of training and evaluation. Work that a restart repeats is counted
    once."""
    losses: dict[str, float] = field(default_factory=dict)
    """Means since the previous report; empty after a restart."""
    episodes_per_second: float | None = None
    problem: str | None = None
    """Why the job failed, if it did. Another attempt would fail the same way."""
    part: Part | None = None
    """The scores, in the last report."""


@dataclass(eq=False)
class Reader:
    """Reader of the data of jobs, which reads shared data once."""

    tables: dict[str, FeatureTable] = field(default_factory=dict)
    """Open tables, by fingerprint."""
    _phases: dict[tuple[Any, ...], tuple[LowShotTask, Queries]] = field(default_factory=dict)

    def read(self, job: Job, phase: str, device: torch.device) -> tuple[LowShotTask, Queries]:
        """Read a phase, with the job's draws if it is the job's phase, or else with seeded draws.

        The caller must have recorded the read of the test phase.
        """
        fingerprint, split, config = job.data.fingerprint, job.data.split, job.evaluation
        draws = job.draws if phase == job.phase else None
        key = fingerprint, phase, draws is None, device
        if key not in self._phases:
            if fingerprint not in self.tables:
                self.tables[fingerprint] = job.data.open()
            table, shots = self.tables[fingerprint], sorted(config.shots)
            if isinstance(draws, FewShotTasks):
                self._phases[key] = read_tasks(table, split, draws, shots, device)
            else:
                rows = draw_phase(table, split, phase, config) if draws is None else draws
                read = read_phase(table, split, phase, rows, shots, device, is_noted=True)
                self._phases[key] = read
        return self._phases[key]


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
    problems = [message for message in workers.gather(problem) if message]
    if problems:
        raise _JobError(problems[0])


def run_job(
    job: Job,
    device: torch.device | None = None,
    workers: Workers = ALONE,
    *,
    reader: Reader | None = None,
    embeddings: Path | None = None,
    progress: Progress = lambda line: None,
    is_scored: bool = True,
) -> Iterator[Report]:
    """Train a job or resume it, then score it; yield a report at each evaluation step and the end.

    Workers share the training, and the draws of an evaluation. Every worker yields the same
    reports, apart from seconds.

    Args:
        job: The job.
        device: Device to compute on; by default that of the job.
        workers: Processes that train together. All of them must make the same call.
        reader: Reader that shares data with other jobs.
        embeddings: Folder of checkpoints of embeddings, which jobs share.
        progress: Called with a line about the current work.
        is_scored: Whether to score the job at the end, rather than at its evaluation steps only.
    """
    device, reader = device or torch.device(job.device), reader or Reader()
    checkpoint = job.new_checkpoint()

    def make(training: Settings, evaluation: EvaluationConfig) -> LowShotMethod:
        path = None if embeddings is None else embeddings / f"PN-seed{job.seed}.pt"
        return make_method(
            job.method,
            evaluation,
            training,
            embedding=job.embedding,
            embedding_path=path,
            progress=progress,
        )

    def evaluate(stretch: Stretch) -> None:
        with _together(workers):
            share = _score_share(job, method, *reader.read(job, VALIDATION_PHASE, device), workers)
        scores = sort_scores(pd.concat([part for part in workers.gather(share) if len(part)]))
        entry = {EPISODE: run.episode, **mean_top5(scores, job.evaluation.heads[0])}
        checkpoint.curve.append({**entry, "seconds": checkpoint.seconds})

    try:
        with _together(workers):
            first = VALIDATION_PHASE if job.scores_validation else job.phase
            task, _ = reader.read(job, first, device)
            method = make(job.training, job.evaluation)
            run = method.begin(task.base, new_rng(job.seed), workers)
            origin = restore(run, checkpoint, progress)
        run.check_equal_weights()
        if checkpoint.curve:
            yield Report(tuple(checkpoint.curve))
        evaluated = {entry[EPISODE] for entry in checkpoint.curve}
        steps = [step for step in job.eval_steps if step not in evaluated]
        stretches = drive(
            run, checkpoint, eval_steps=steps, on_eval=evaluate, progress=progress, workers=workers
        )
        with saying_what_is_saved(run, checkpoint, progress):
            for stretch in stretches:
                pace = stretch.num_episodes / stretch.seconds if stretch.seconds else None
                yield Report(tuple(checkpoint.curve), stretch.losses, pace)
        if is_scored:
            with _together(workers):
                part = _score(job, method, make, reader, device, progress)._replace(origin=origin)
            yield Report(tuple(checkpoint.curve), part=part)
    except (TrainingDivergedError, _JobError) as error:  # raised by all workers
        yield Report(tuple(checkpoint.curve), problem=str(error))


def _score_share(
    job: Job, method: LowShotMethod, task: LowShotTask, queries: Queries, workers: Workers
) -> pd.DataFrame:
    """Score the method in its current state on this worker's share of the draws.

    Each draw has its own random numbers, so its scores do not depend on the other draws. Only the
    rounding of a GPU may differ with their number.
    """
    draws = workers.share(range(job.evaluation.num_draws))
    part = replace(task, problems=tuple(p for p in task.problems if p.draw in draws))
    config, nothing = job.evaluation, range(0)
    return run_method(job.method, method, job.seed, part, queries, config, nothing)[0]


def _score(
    job: Job,
    method: LowShotMethod,
    make: Callable[[Settings, EvaluationConfig], LowShotMethod],
    reader: Reader,
    device: torch.device,
    progress: Progress,
) -> Part:
    """Score a trained method; ``make`` returns a new one with other settings.

    The scores of variants have the number of a variant in place of the name of the row.
    """
    nothing, row, seed = pd.DataFrame(), job.row, job.seed
    validation = spectra = projections = diversity = nothing
    if job.scores_validation:
        progress(f"{row}: choosing biases on the validation phase")
        task, queries = reader.read(job, VALIDATION_PHASE, device)
        scores, _ = run_method(row, method, seed, task, queries, job.evaluation, range(0), progress)
        validation = means_over_draws(scores)  # a twentieth of the size with 20 draws
    task, queries = reader.read(job, job.phase, device)
    if isinstance(job.draws, FewShotTasks):
        scores = score_tasks(row, method, seed, task, queries, progress)
    elif job.variants:
        frames = []
        for number, variant in enumerate(job.variants):
            if number:
                other = make(*variant)
                other.take_over(method)
                method = other
            scored = run_method(str(number), method, seed, task, queries, variant[1], range(0))
            frames.append(scored[0])
        scores = pd.concat(frames, ignore_index=True)
    else:
        scores, diversity = run_method(
            row, method, seed, task, queries, job.evaluation, job.diversity_draws, progress
        )
    if job.is_illustrated:
        novel = job.data.split.phase(job.phase).novel
        spectra, projections = illustrate(row, method, seed, task, queries, novel)
    return Part(scores, diversity, validation, spectra, projections, None, {})


def outcome_of(reports: Iterator[Report]) -> Part | ValueError:
    """Return the scores of a job from its reports, or the reason why it has none."""
    *_, last = reports
    return ValueError(last.problem) if last.part is None else last.part

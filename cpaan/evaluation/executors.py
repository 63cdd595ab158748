"""Executors of parts: in this process or in a pool of processes. The Ray executor is in `study`."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cpaan.core.settings import Settings
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.data.table import FeatureTable
from cpaan.evaluation.parts import Outcome, Part, PartJob, PartKey
from cpaan.evaluation.scoring import draw_phase, run_method
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import make_method
from cpaan.protocol.calibration import means_over_draws
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from cpaan.training.drive import Progress


@dataclass(eq=False)
class LocalExecutor:
    """Executor that runs parts one by one in this process; shared data is read once."""

    checkpoints: Path | None = None
    """Folder of training checkpoints to resume from; None for no checkpoints."""
    progress: Progress = lambda message: None
    tables: dict[str, FeatureTable] = field(default_factory=dict)
    """Open tables, by fingerprint."""
    _phases: dict[tuple[str, str], tuple[LowShotTask, Queries]] = field(default_factory=dict)

    def __call__(self, jobs: Mapping[PartKey, PartJob]) -> Iterator[tuple[PartKey, Outcome]]:
        """Yield every part with its outcome."""
        for key, job in jobs.items():
            yield key, _outcome_of(self.run, job)

    def run(self, job: PartJob) -> Part:
        """Train and score one part."""
        method = make_method(
            job.method,
            job.evaluation,
            job.training,
            embedding=job.embedding,
            folder=self.checkpoints,
            seed=job.seed,
            progress=self.progress,
        )
        return score_part(job, method, self.read, self.progress)

    def read(self, job: PartJob, phase: str) -> tuple[LowShotTask, Queries]:
        """Read a phase for a part, with the draws of the job, or with seeded draws on validation.

        The caller must have recorded the read of the test phase.
        """
        fingerprint, split = job.data.fingerprint, job.data.split
        if (fingerprint, phase) not in self._phases:
            if fingerprint not in self.tables:
                self.tables[fingerprint] = job.data.open()
            table, shot_rows = self.tables[fingerprint], job.shot_rows
            if phase != job.phase:
                shot_rows = draw_phase(table, split, phase, job.evaluation)
            shots, device = sorted(job.evaluation.shots), torch.device(job.device)
            read = read_phase(table, split, phase, shot_rows, shots, device, is_noted=True)
            self._phases[fingerprint, phase] = read
        return self._phases[fingerprint, phase]


def score_part(
    job: PartJob,
    method: LowShotMethod,
    read: Callable[[PartJob, str], tuple[LowShotTask, Queries]],
    progress: Progress = lambda message: None,
) -> Part:
    """Fit a method and score it; first on the validation phase, if the job requires it."""
    name, seed, config = job.row, job.seed, job.evaluation
    validation = None
    if job.scores_validation:
        progress(f"{name}: choosing biases on the validation phase")
        task, queries = read(job, VALIDATION_PHASE)
        validation, _ = run_method(name, method, seed, task, queries, config, progress, range(0))
        validation = means_over_draws(validation)  # a twentieth of the size with 20 draws
    task, queries = read(job, job.phase)
    scores, diversity = run_method(
        name, method, seed, task, queries, config, progress, job.diversity_draws
    )
    validation = scores[:0] if validation is None else validation
    nothing = pd.DataFrame()  # no illustrations
    return Part(scores, diversity, validation, nothing, nothing, method.origin, {})


def score_variants(
    job: PartJob,
    method: LowShotMethod,
    make: Callable[[Settings, EvaluationConfig], LowShotMethod],
    read: Callable[[PartJob, str], tuple[LowShotTask, Queries]],
) -> Part:
    """Score a method with all variants of its settings, without training it again.

    ``make`` returns a new method with the given settings. The scores have the number of a variant
    in place of the name of the method.
    """
    task, queries = read(job, job.phase)
    frames = []
    for number, (training, evaluation) in enumerate(job.variants):
        if number:
            variant = make(training, evaluation)
            variant.take_over(method)
            method = variant
        scores, _ = run_method(
            str(number), method, job.seed, task, queries, evaluation, diversity_draws=range(0)
        )
        frames.append(scores)
    together, nothing = pd.concat(frames, ignore_index=True), pd.DataFrame()
    return Part(together, nothing, nothing, nothing, nothing, method.origin, {})


@dataclass(frozen=True)
class ProcessExecutor:
    """Executor that runs parts in a pool of processes, which share CPU cores and the GPU."""

    num_processes: int
    local: LocalExecutor
    """Executor for a single process."""

    def __call__(self, jobs: Mapping[PartKey, PartJob]) -> Iterator[tuple[PartKey, Outcome]]:
        """Yield every part with its outcome when it ends.

        Raises:
            ValueError: If a process died.
        """
        if self.num_processes == 1 or len(jobs) < 2:
            yield from self.local(jobs)
            return
        # A process that has used a GPU cannot be forked.
        context = multiprocessing.get_context("spawn")
        messages = context.Queue()
        listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        listener.start()
        num_threads = max(1, torch.get_num_threads() // self.num_processes)
        executor = ProcessPoolExecutor(
            min(self.num_processes, len(jobs)),
            mp_context=context,
            initializer=_initialise,
            initargs=(self.local.checkpoints, messages, num_threads),
        )
        try:
            key_of = {executor.submit(_run, job): key for key, job in jobs.items()}
            for future in as_completed(key_of):
                yield key_of[future], _outcome_of(future.result)
        except BrokenProcessPool as error:
            raise ValueError(
                "a process died, possibly because memory ran out; finished parts are saved; run "
                "the same command to resume"
            ) from error
        except BaseException:  # after an error or Ctrl-C, do not wait for the other processes
            for process in list(executor._processes.values()):
                process.terminate()
            raise
        finally:
            executor.shutdown(cancel_futures=True)
            messages.put(None)
            # A process that died while writing a message would block the thread forever.
            listener.join(timeout=2)

    def _listen(self, messages: Any) -> None:
        while (message := messages.get()) is not None:
            self.local.progress(message)


def _outcome_of(run: Callable[..., Part], *arguments: Any) -> Outcome:
    try:
        return run(*arguments)
    except ValueError as error:  # such as diverged training: other parts continue
        return error


_local: LocalExecutor | None = None  # in a process of the pool


def _initialise(checkpoints: Path | None, messages: Any, num_threads: int) -> None:
    global _local
    torch.set_num_threads(num_threads)
    _local = LocalExecutor(checkpoints, messages.put)


def _run(job: PartJob) -> Part:
    assert _local is not None, "the pool has initialised this process"
    return _local.run(job)

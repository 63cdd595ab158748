"""Executors of jobs: in this process, or in several. The executor on Ray is in `study`."""

from collections.abc import Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import joblib
import torch

from cpaan.evaluation.job import Job, Reader, outcome_of, run_job
from cpaan.evaluation.parts import Outcome, PartKey
from cpaan.training.drive import Progress


@dataclass(frozen=True, eq=False)
class LocalExecutor:
    """Executor that runs jobs on this machine; a single process reads shared data once."""

    embeddings: Path | None = None
    """Folder of checkpoints of embeddings; None for no checkpoints."""
    progress: Progress = lambda message: None
    reader: Reader = field(default_factory=Reader)
    num_processes: int = 1
    """Number of processes, which share CPU cores and the GPU."""

    def __call__(self, jobs: Mapping[PartKey, Job]) -> Iterator[tuple[PartKey, Outcome]]:
        """Yield every job's outcome when it ends.

        Raises:
            ValueError: If a process died.
        """
        num_processes = min(self.num_processes, len(jobs))
        if num_processes < 2:
            for key, job in jobs.items():
                yield key, self.run(job)
            return
        num_threads = max(1, torch.get_num_threads() // self.num_processes)
        alone = LocalExecutor(self.embeddings, self.progress)
        work = (joblib.delayed(_run_alone)(alone, *item, num_threads) for item in jobs.items())
        parallel = joblib.Parallel(num_processes, return_as="generator_unordered", batch_size=1)
        try:
            yield from parallel(work)
        except BrokenProcessPool as error:
            raise ValueError(
                "a process died, possibly because memory ran out; finished parts are saved; run "
                "the same command to resume"
            ) from error

    def run(self, job: Job) -> Outcome:
        """Run one job in this process."""
        reports = run_job(
            job, reader=self.reader, embeddings=self.embeddings, progress=self.progress
        )
        return outcome_of(reports)


def _run_alone(
    executor: LocalExecutor, key: PartKey, job: Job, num_threads: int
) -> tuple[PartKey, Outcome]:
    torch.set_num_threads(num_threads)
    return key, executor.run(job)

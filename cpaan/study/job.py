"""Jobs of a study: the checkpoint in the study's storage, and what a shared machine needs.

This module does not use Ray: a single process gives the same numbers. The checkpoint is one file
with a fixed name, which is overwritten. Ray Train (2.60) names a checkpoint by the time, and saves
one only with a report of all workers, so work between two evaluation steps would be lost.
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from cpaan.core.devices import is_out_of_memory
from cpaan.core.remote_paths import RemotePath
from cpaan.data.cache import default_cache_folder
from cpaan.evaluation.job import Job, Reader, Report, digest_of, run_job
from cpaan.methods.registry import num_episodes_of
from cpaan.training.workers import ALONE, Workers

_TWICE = b"out of memory twice"
NUM_THREADS = 1
"""Threads of torch in each process, which has one core; the number affects the last digits."""


def run_study_job(
    job: Job,
    device: torch.device | None = None,
    workers: Workers = ALONE,
    *,
    reader: Reader | None = None,
    is_scored: bool = False,
) -> Iterator[Report]:
    """Run a job of a study, as `run_job` does.

    If the device runs out of memory, raise the error the first time, because another process may
    have used the memory. After the second time, a restarted job reports it as its problem.
    """
    torch.set_num_threads(NUM_THREADS)
    device = device or torch.device(job.device)
    # In the storage, because the restarted workers may run elsewhere.
    assert job.checkpoint is not None, "jobs of a study have a checkpoint"
    checkpoint = RemotePath.at(job.checkpoint)
    memory = checkpoint.parent / f"{checkpoint.name}-{job.training_digest}.memory"
    earlier = memory.read_if_exists()
    was_twice = earlier is not None and earlier.startswith(_TWICE)
    if any(workers.gather(was_twice)):
        yield Report(problem=(earlier or _TWICE).decode())
        return
    try:
        yield from run_job(
            job,
            device,
            workers,
            reader=reader,
            embeddings=embeddings_of(job, device),
            is_scored=is_scored,
        )
    except Exception as error:
        if is_out_of_memory(error):
            reason = f": {' '.join(str(error).split())}".encode()
            memory.write((b"out of memory" if earlier is None else _TWICE) + reason)
        raise


def embeddings_of(job: Job, device: torch.device) -> Path:
    """Return the folder of embeddings that jobs on this machine share.

    They have the same data, settings and device type; the name of a file has the seed.
    """
    data = {**asdict(job.data), "features": None}
    embedding = None if job.embedding is None else asdict(job.embedding)
    return default_cache_folder() / "embeddings" / digest_of(data, embedding, device.type)


def is_trained(job: Job) -> bool:
    """Return whether the checkpoint of a job is at the last episode."""
    try:
        state = job.new_checkpoint().read()
        return state is not None and state["run"]["episode"] == num_episodes_of(job.training)
    except (ValueError, KeyError, TypeError):  # a damaged file, which `run_job` reports
        return False


def training_seconds(job: Job) -> float:
    """Return the seconds of training in the checkpoint of a job; 0 if there is none."""
    state = job.new_checkpoint().read()
    return 0.0 if state is None else float(state["seconds"])

"""What Ray costs before a trial does anything."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from cpaan.bench.scaling import make_job
from cpaan.study.cluster import ray_cluster
from cpaan.study.config import StudyConfig
from cpaan.study.job import run_job
from cpaan.study.trial import Trial, train_with_workers

HELP = "seconds of Ray's start, and of a trial's, beside the same training in one process"
REPEATS = 3

_SMALL = {"num_episodes": 2, "num_ways": 3, "batch_size": 20, "hidden_dim": 16}


def measure(say: Callable[[str], None]) -> dict[str, Any]:
    """Return the seconds of each, every one of them."""
    found: dict[str, list[float]] = {"plain": [], "ray_train_1": [], "ray_train_2": []}
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        with ray_cluster(None, say):
            ray_seconds = time.monotonic() - started
            for repeat in range(REPEATS):
                for name, seconds in found.items():
                    job = make_job(folder, f"{name}-{repeat}.pt", **_SMALL)
                    started = time.monotonic()
                    if name == "plain":
                        list(run_job(job, torch.device("cpu")))
                    else:
                        study = StudyConfig(workers_per_trial=int(name[-1]))
                        train_with_workers(Trial(0, job, study), [])
                    seconds.append(time.monotonic() - started)
                    say(f"{name}: {seconds[-1]:.1f} s")
    return {"ray_init_seconds": ray_seconds, "seconds": found}

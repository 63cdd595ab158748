"""What Ray costs before a trial does anything."""

import tempfile
import time

import torch

from cpaan.bench.data_parallel import SIZES, make_job
from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.study.config import StudyConfig
from cpaan.study.job import run_job

HELP = "Ray's start, and a trial's with one and two workers, against the same without Ray; cpu"
REPEATS = 3

_SMALL = {**SIZES["slice"], "num_episodes": 2, "num_ways": 3, "batch_size": 20, "hidden_dim": 16}


def measure(bench: Bench) -> list[Row]:
    """Return rows of Ray's start, and of trials that train next to nothing.

    Raises:
        ValueError: If the device is a GPU.
    """
    # Here, because Ray takes seconds to import, and the other benchmarks do without it.
    from cpaan.study.cluster import ray_cluster
    from cpaan.study.machines import check_machines
    from cpaan.study.trial import Trial, train_with_workers

    if bench.device.type != "cpu":
        raise ValueError(f"starting is measured on the cpu, got {bench.device.type}")
    found: dict[str, list[float]] = {"plain": [], "ray_train_1": [], "ray_train_2": []}
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        with ray_cluster(None, bench.say):
            check_machines(folder, bench.say)
            ray_ms = 1e3 * (time.monotonic() - started)
            for repeat in range(REPEATS):
                for name, times in found.items():
                    job = make_job(folder, f"{name}-{repeat}.pt", seed=bench.seed, **_SMALL)
                    started = time.monotonic()
                    if name == "plain":
                        list(run_job(job, torch.device("cpu")))
                    else:
                        study = StudyConfig(workers_per_trial=int(name[-1]))
                        train_with_workers(Trial(0, job, study), [])
                    times.append(1e3 * (time.monotonic() - started))
                    bench.say(f"{name}: {times[-1] / 1e3:.1f} s")
    plain = summarise(found["plain"])
    return [
        bench.row("starting Ray", summarise([ray_ms]), None),
        bench.row("starting a trial of one worker", summarise(found["ray_train_1"]), plain),
        bench.row("starting a trial of two workers", summarise(found["ray_train_2"]), plain),
    ]

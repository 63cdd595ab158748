"""The file that a trial keeps its state in: how large, and how long it takes to be written."""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from cpaan.bench.data_parallel import SIZES, make_job
from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.core.files import load_state, pack_state
from cpaan.core.remote_paths import RemotePath
from cpaan.study.config import PRESETS
from cpaan.study.job import run_job

HELP = "a trial's state: bytes of the file, and the time to pack and write it to a folder; cpu"

_NUM_EPISODES = 2  # after which every moment of Adam is there
_REPEATS = 7


def measure(bench: Bench) -> list[Row]:
    """Return one row, of a state that a job has kept; its networks are those of the scale.

    Raises:
        ValueError: If the device is a GPU.
    """
    if bench.device.type != "cpu":
        raise ValueError(f"a state is measured on the cpu, got {bench.device.type}")
    with tempfile.TemporaryDirectory() as folder:
        of_scale = (
            PRESETS["paper"].sizes if bench.scale.name == "paper" else SIZES[bench.scale.name]
        )
        sizes = {**of_scale, "num_episodes": _NUM_EPISODES}
        job = make_job(folder, "state.pt", seed=bench.seed, **sizes)
        *_, last = run_job(job, torch.device("cpu"))
        if last.problem:
            raise ValueError(last.problem)
        path = Path(folder) / job.path
        num_bytes = path.stat().st_size
        state, storage = load_state(path), RemotePath.at(folder)
        times = []
        for _ in range(_REPEATS):
            started = time.perf_counter()
            (storage / job.path).write(pack_state(state))
            times.append(1e3 * (time.perf_counter() - started))
    bench.say(f"{num_bytes / 2**20:.1f} MiB, written in {statistics.median(times):.0f} ms")
    return [
        bench.row(
            "state of a trial",
            summarise(times),
            None,
            num_bytes=num_bytes,
            num_parameters=sum(weight.numel() for weight in state["run"]["networks"].values()),
            method=job.method,
            sizes=sizes,
        )
    ]

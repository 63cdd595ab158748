"""How much is gained by several trainings on one device at the same time."""

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import torch

from cpaan.bench.measuring import Bench, Row, Timing, summarise
from cpaan.bench.scales import SCALES, Scale, training_data
from cpaan.core.randomness import new_rng
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.gans import GANS
from cpaan.gan.loop import TrainingRun

HELP = "1, 2, 4 and 8 trainings at once as processes on one device, against one alone"

COUNTS = (1, 2, 4, 8)
METHOD = "cCov-GAN"
REPEATS = 3
_EPISODES = {"cpu": 3, "cuda": 100}
_MOST_SECONDS = 300.0  # that processes wait for each other: one that died is not waited for


@dataclass(frozen=True)
class Share:
    """What one of the processes found."""

    starts: list[float]
    """When each repetition began and ended, on the clock that all processes of a system share."""
    ends: list[float]
    peak_memory_mb: float | None
    """The most that torch had allocated in this process, MiB."""
    device_memory_mb: float | None
    """In use on the whole device at the end, by all processes, MiB."""


def measure(bench: Bench) -> list[Row]:
    """Return a row for each number of trainings; the first is one alone."""
    rows: list[Row] = []
    alone: Timing | None = None
    num_episodes = _EPISODES[bench.device.type]
    for count in COUNTS:
        name = f"sharing {count}"
        if count > 1 and not bench.wants(name):
            continue
        bench.say(f"{name} ...")
        shares = _run(bench, count, num_episodes)
        times = [
            1e3
            * (max(share.ends[repeat] for share in shares) - min(s.starts[repeat] for s in shares))
            / (count * num_episodes)
            for repeat in range(REPEATS)
        ]
        peaks = [share.peak_memory_mb for share in shares if share.peak_memory_mb is not None]
        together = summarise(times, max(peaks, default=None))
        alone = alone or together
        rows.append(
            bench.row(
                name,
                together,
                alone,
                num_trainings=count,
                num_episodes=num_episodes,
                method=METHOD,
                # Every process's own, and all of them with what the driver needs for each.
                peak_memory_mb_of_each=peaks,
                device_memory_mb=shares[0].device_memory_mb,
                family="sharing",
                varied=["num_trainings"],
            )
        )
    return rows


def _run(bench: Bench, count: int, num_episodes: int) -> list[Share]:
    """Start processes, let them train at the same time, and return what each found.

    Raises:
        RuntimeError: If one of them failed; its own message is on the error stream.
    """
    # A process with a GPU in use cannot be copied: they start anew.
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    receivers, processes = [], []
    for number in range(count):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (
            bench.scale.name,
            str(bench.device),
            bench.seed + number,
            num_episodes,
            barrier,
            sender,
        )
        process = context.Process(target=_train, args=arguments, daemon=True)
        process.start()
        sender.close()  # so that the end of a process that fails is seen here
        receivers.append(receiver)
        processes.append(process)
    try:
        return [receiver.recv() for receiver in receivers]
    except EOFError:
        raise RuntimeError(f"one of {count} trainings failed; it says above why") from None
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.terminate()


def _train(
    scale_name: str, device: str, seed: int, num_episodes: int, barrier: Barrier, sender: Any
) -> None:
    """Do one process's part, and send it."""
    try:
        sender.send(_take_part(SCALES[scale_name], device, seed, num_episodes, barrier))
    except BaseException:
        barrier.abort()  # the others would wait for this one
        raise


def _take_part(scale: Scale, device: str, seed: int, num_episodes: int, barrier: Barrier) -> Share:
    """Train in step with the other processes."""
    torch.set_num_threads(1)
    config = scale.training()
    data = training_data(scale, scale.num_dims, config.ky_fan_order, device)
    run = TrainingRun(GANS[METHOD], MetaEpisodes(data, config), config, new_rng(seed))
    is_cuda = torch.device(device).type == "cuda"
    run.advance(num_episodes)
    starts, ends = [], []
    for _ in range(REPEATS):
        if is_cuda:
            torch.cuda.synchronize(device)
        barrier.wait(timeout=_MOST_SECONDS)
        starts.append(time.monotonic())
        run.advance(num_episodes)
        if is_cuda:
            torch.cuda.synchronize(device)
        ends.append(time.monotonic())
    barrier.wait(timeout=_MOST_SECONDS)  # all of them are still there when memory is looked at
    peak = in_use = None
    if is_cuda:
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        free, total = torch.cuda.mem_get_info(device)
        in_use = (total - free) / 2**20
    barrier.wait(timeout=_MOST_SECONDS)
    return Share(starts, ends, peak, in_use)

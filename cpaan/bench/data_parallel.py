"""Benchmark of data-parallel training: an episode of two workers, and the parts of their steps."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from cpaan.bench.measuring import Bench, Timing
from cpaan.bench.scales import training_data
from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes
from cpaan.gan.gans import GANS
from cpaan.gan.loop import TrainingRun
from cpaan.study.job import NUM_THREADS
from cpaan.training.workers import Workers

HELP = "an episode of two workers of one thread each, against one, and the parts of their steps"

_SIZES: dict[str, dict[str, Any]] = {
    "paper": {"num_ways": 20, "batch_size": 1_000, "episode_shots": (10,)},
    # Large enough that a step's arithmetic outweighs the exchange of its gradients.
    "slice": {"num_ways": 16, "batch_size": 500, "hidden_dim": 128, "num_covariance_classes": 4},
    "small": {"num_ways": 4, "batch_size": 60, "hidden_dim": 32, "num_covariance_classes": 2},
}
_NUM_FIRST_EPISODES, _NUM_EPISODES = 8, 30
_REPEATS = 2  # alternately, so that other load affects both equally
_PARTS = ("compute", "all-reduce", "wait")


def measure(bench: Bench) -> None:
    """Measure an episode with two workers (ours) and one (plain), and the parts of a step.

    A step of two workers is two episodes. Its parts are means over both workers.
    """
    sizes = _SIZES[bench.scale.name]
    config = TrainConfig(**{"episode_shots": (1, 2, 5), **sizes})
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for _, (count, steps) in product(range(_REPEATS), found.items()):
        with TemporaryDirectory() as folder:
            arguments = (count, Path(folder), bench.scale, config, bench.seed, bench.device.type)
            spawn(_work, arguments, nprocs=count)
            steps.append(torch.load(Path(folder) / "step.pt", weights_only=True))
        bench.say(f"{count} workers: {sum(steps[-1].values()) / count:.4g} ms an episode")
    one, two = (
        Timing([sum(each.values()) / count for each in steps]) for count, steps in found.items()
    )
    bench.row("data-parallel", two, one, num_episodes=_NUM_EPISODES, sizes=sizes)
    for part in _PARTS:
        bench.row(f"data-parallel step: {part}", Timing([each[part] for each in found[2]]))


@dataclass(frozen=True)
class _TimedWorkers(Workers):
    """Workers that measure how long they wait for each other, and how long they reduce."""

    seconds: dict[str, float] = field(default_factory=lambda: {"all-reduce": 0.0, "wait": 0.0})

    def is_capturable(self, device: torch.device) -> bool:
        return self.count == 1  # the parts of a CUDA graph cannot be timed

    def average(self, tensors: Sequence[Tensor]) -> None:
        if self.count == 1 or not tensors:
            return
        times = [_now(tensors[0].device)]
        torch.distributed.barrier()
        times.append(_now(tensors[0].device))
        super().average(tensors)
        times.append(_now(tensors[0].device))
        self.seconds["wait"] += times[1] - times[0]
        self.seconds["all-reduce"] += times[2] - times[1]


def _now(device: torch.device) -> float:
    """Return the time at which the work of a device so far has ended."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _work(
    rank: int, count: int, folder: Path, scale: Any, config: TrainConfig, seed: int, kind: str
) -> None:
    """Train as one of the workers; rank 0 writes the milliseconds of the parts of a step."""
    torch.set_num_threads(NUM_THREADS)
    num_cards = torch.cuda.device_count() if kind == "cuda" else 0
    device = torch.device(kind, rank % num_cards) if num_cards else torch.device(kind)
    if count > 1:
        backend = "nccl" if num_cards >= count else "gloo"  # NCCL needs a card for each rank
        torch.distributed.init_process_group(
            backend, f"file://{folder}/store", rank=rank, world_size=count
        )
    workers = _TimedWorkers(rank, count)
    data = training_data(scale.num_classes, scale.num_dims, config.ky_fan_order, str(device))
    episodes = MetaEpisodes(data, config)
    run = TrainingRun(GANS["cCov-GAN"], episodes, config, new_rng(seed), workers=workers)
    run.advance(_NUM_FIRST_EPISODES)  # compile kernels and capture CUDA graphs
    started, before = _now(device), dict(workers.seconds)
    run.advance(_NUM_EPISODES)
    ended = _now(device)
    seconds = {part: workers.seconds[part] - before[part] for part in before}
    seconds["compute"] = ended - started - sum(seconds.values())
    step_ms = 1e3 * count / _NUM_EPISODES
    means = {part: workers.mean(step_ms * seconds[part]) for part in _PARTS}
    if rank == 0:
        torch.save(means, folder / "step.pt")
    if count > 1:
        torch.distributed.destroy_process_group()

"""Training runs that stop and resume, workers that are threads, and tiny settings."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import torch

from cpaan.core.files import pack_state, unpack_state
from cpaan.core.settings import Settings
from cpaan.protocol.config import EvaluationConfig
from cpaan.training.learning import EpisodeRun
from cpaan.training.workers import Workers


def flat(run: EpisodeRun) -> torch.Tensor:
    """Return all parameters and buffers of a run as one vector."""
    return torch.cat([value.double().flatten() for value in run._module.state_dict().values()])


def assert_goes_on(begin: Callable[[], EpisodeRun]) -> None:
    """Assert that a run which resumes, new or going back, equals an uninterrupted one."""
    unbroken, stopped, resumed = (begin() for _ in range(3))
    unbroken.advance(5)
    stopped.advance(2)
    content = pack_state(stopped.state_dict())
    stopped.advance(1)

    for run in (resumed, stopped):
        assert not torch.equal(flat(run), flat(unbroken))
        run.load_state_dict(unpack_state(content))
        run.advance(3)
        assert torch.equal(flat(run), flat(unbroken))


@dataclass(frozen=True)
class Threads(Workers):
    """Workers that are threads of this process and synchronise at a barrier."""

    barrier: threading.Barrier | None = None
    shared: tuple[list, ...] = ()

    def average(self, tensors):
        of_workers = self.gather([tensor.clone() for tensor in tensors])
        for tensor, *parts in zip(tensors, *of_workers, strict=True):
            tensor.copy_(torch.stack(parts).mean(dim=0))

    def gather(self, value):
        self.shared[self.rank][:] = [value]
        self.barrier.wait()
        values = [of_worker[0] for of_worker in self.shared]
        self.barrier.wait()
        return values


def threads(count: int) -> list[Threads]:
    """Return workers that share a barrier, which raises an error after a timeout."""
    barrier = threading.Barrier(count, timeout=60)
    shared = tuple([] for _ in range(count))
    return [Threads(rank, count, barrier, shared) for rank in range(count)]


def advance_together(runs: Sequence[EpisodeRun], num_episodes: int) -> list[dict[str, float]]:
    """Advance the runs of workers at the same time, in threads."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return list(pool.map(lambda run: run.advance(num_episodes), runs))


QUICK = EvaluationConfig(
    shots=(1, 5), num_draws=2, perplexity=4, num_synthetic=6, linear_num_steps=5
)
TINY = {
    "num_episodes": 4,
    "num_ways": 4,
    "episode_shots": (1, 2),
    "num_queries": 2,
    "hidden_dim": 8,
    "num_pairs": 8,
    "num_tasks": 2,
    "batch_size": 20,
    "num_clusters": 3,
    "num_classifier_steps": 5,
    "num_augmented": 3,
    "num_examples": 5,
    "num_exemplars": 5,
    "num_samples": 6,
    "noise_dim": 2,
    "ky_fan_order": 2,
    "max_per_class": 5,
}


def tiny(config: Settings) -> Settings:
    """Return settings of any method with tiny sizes."""
    known = {field.name for field in fields(config)}
    return config.with_overrides({name: TINY[name] for name in TINY if name in known})

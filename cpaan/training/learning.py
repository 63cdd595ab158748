"""Episodic training on base classes, for embeddings and all meta-learned baselines.

A `Learner` defines the loss of an episode. This module has the parts that all learners share: the
optimiser, the learning rate schedule, workers, and the state of checkpoints. The four GANs have
their own training step, in `cpaan.gan.loop`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn

from cpaan.core.devices import CudaGraph, new_rate, quick_products, set_rate
from cpaan.core.randomness import new_rng, reseed
from cpaan.core.settings import Settings
from cpaan.protocol.tasks import BaseSet
from cpaan.training.workers import ALONE, Workers


class TrainingDivergedError(ValueError):
    """A loss or a weight is no longer finite."""


class Run:
    """A training run that can stop and resume; `cpaan.training.drive` has its loop.

    This base class has no episodes, for methods without training. Subclasses add episodes.
    """

    losses: tuple[str, ...] = ()
    """Terms of `advance` that progress messages show."""
    episode = 0

    def __init__(self, name: str, data: str) -> None:
        """Store the name of the method and the fingerprint of its examples."""
        self.name, self.data = name, data

    @property
    def num_episodes(self) -> int:
        """Total number of episodes of all workers."""
        return 0

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for more episodes, counted over all workers; return the means of the terms."""
        raise AssertionError(f"{self.name} has no episodes")

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the rest of the training."""
        return {"name": self.name, "data": self.data, "episode": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state; raise ValueError if it belongs to another run."""
        check_same_run(state, {"name": self.name, "data": self.data})


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings(Settings):
    """Size of an episode."""

    num_ways: int = 200
    """Number of classes per episode; all base classes if there are fewer."""
    episode_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Numbers of support examples per class; each episode draws one of them."""
    num_queries: int = 5
    """Number of queries per class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_queries")
        self._refuse(["num_ways"], lambda count: count >= 2, "2 or more")
        are_positive = "positive whole numbers"
        self._refuse(["episode_shots"], lambda shots: min(shots, default=0) > 0, are_positive)


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Settings):
    """Settings of the optimiser."""

    num_episodes: int = 2_000
    """Number of training episodes."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """Adam with decoupled weight decay, or SGD with momentum and dampening of 0.9."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    schedule: Literal["cosine", "thirds"] = "cosine"
    """Decay of the learning rate: along a half-cosine to zero, or to a tenth after each third."""
    weight_decay: float = 0.0
    """Weight decay of matrices; with Adam, a step removes this share times the learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_episodes", "learning_rate")
        self._refuse_negative("weight_decay")

    def rate_after(self, episode: int) -> float:
        """Return the learning rate after a number of episodes."""
        done = min(1.0, episode / self.num_episodes)
        if self.schedule == "thirds":
            return self.learning_rate * 0.1 ** min(2, int(3 * done))
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


class Learner(nn.Module, ABC):
    """A network to train, with initial parameters drawn on the CPU from the caller's ``rng``."""

    TERMS: ClassVar[tuple[str, ...]] = ("query_loss",)
    """Names of the terms of an episode; the first is the loss."""

    def draw_shape(self, rng: torch.Generator) -> int:
        """Draw a number that determines the shapes of an episode, such as the number of shots.

        ``rng`` is on the CPU. On a GPU, each shape has its own CUDA graph.
        """
        return 0

    @abstractmethod
    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Draw an episode of a shape and return its terms as scalars; the first is the loss.

        ``rng`` is on the device. The step is captured as a CUDA graph, so it must not wait for
        results of the GPU.
        """

    def set_scale(self, rng: torch.Generator) -> None:
        """Set the scale of scores, if any, before the first episode; ``rng`` is on the device."""


class EpisodeRun(Run, ABC):
    """A run whose episodes are shared by workers; subclasses define the training step."""

    FREE: ClassVar[Collection[str]] = ()
    """Settings that may differ between a run and the checkpoint from which it resumes."""
    _identity: dict[str, Any]
    """Other values that must be equal in a checkpoint."""
    _parts: dict[str, Any]
    """The network and the optimisers, by name in a checkpoint."""

    def __init__(
        self,
        name: str,
        data: str,
        terms: tuple[str, ...],
        config: Any,
        module: nn.Module,
        device: torch.device,
        workers: Workers,
    ) -> None:
        """Store the arguments; raise ValueError unless workers can share the episodes evenly."""
        super().__init__(name, data)
        workers.check_shares(config.num_episodes)
        self.losses, self.config, self.device = terms, config, device
        self._terms, self._module, self._workers = terms, module, workers
        self._has_diverged = False

    @property
    def num_episodes(self) -> int:
        """Configured number of episodes."""
        return int(self.config.num_episodes)

    @abstractmethod
    def _train_one_episode(self) -> Tensor:
        """Train on this worker's next episode; return its terms, shape (terms,)."""

    def _reset(self) -> None:
        """Discard objects that hold tensors which a loaded state replaces, such as CUDA graphs."""

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for more episodes, counted over all workers: a multiple of their number.

        Returns:
            Means of all terms over these episodes, equal on every worker.

        Raises:
            TrainingDivergedError: If a term or, at the end, a weight is not finite; it names the
                first one. Both are checked once per call, because a check makes a GPU wait.
        """
        count = self._workers.count
        assert num_episodes % count == 0, "every worker has its share"
        rows: list[Tensor] = []
        with quick_products(self.device):
            for _ in range(num_episodes // count):
                rows.append(self._train_one_episode())
                self.episode += count
        chunk = torch.stack(rows)
        self._workers.average([chunk])  # so that all workers raise if one diverges
        chunk = chunk.cpu()
        if not chunk.isfinite().all():
            row, term = (~chunk.isfinite()).nonzero()[0].tolist()
            what = f"{self._terms[term]} became {float(chunk[row, term])}"
            self._raise_divergence(self.episode - (len(chunk) - row) * count, what)
        if not torch.stack([each.isfinite().all() for each in self._module.parameters()]).all():
            what = "weights became infinite or NaN in the update"
            self._raise_divergence(self.episode - count, what)
        return dict(zip(self._terms, chunk.mean(dim=0).tolist(), strict=True))

    def _raise_divergence(self, episode: int, what: str) -> NoReturn:
        self._has_diverged = True
        raise TrainingDivergedError(f"{self.name} diverged: at episode {episode}, {what}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the rest of the training; raise if it has diverged."""
        if self._has_diverged:
            raise TrainingDivergedError(f"{self.name} has diverged: there is nothing to keep")
        return {
            **self._identity,
            "config": self.config.to_dict(),
            "episode": self.episode,
            "device": self.device.type,
            "workers": self._workers.count,
            **{name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state of the same run.

        Raises:
            ValueError: If the state has another method, data, seed or settings, or too many
                episodes. An unfinished run also needs the same number of workers and the same
                type of device, because the random numbers depend on them.
        """
        check_same_run(state, self._identity, self.config, free=self.FREE)
        episode = state["episode"]
        if episode > self.num_episodes:
            raise ValueError(f"it has {episode} episodes, and {self.num_episodes} are wanted")
        here = {"device": self.device.type, "workers": self._workers.count}
        for name, value in here.items() if episode < self.num_episodes else ():
            if state[name] != value:
                raise ValueError(
                    f"it was trained with {name} = {state[name]} and can resume only so, "
                    f"not with {value}"
                )
        for name, part in self._parts.items():
            # Keep the options of this run and device, because a CUDA graph would not read a
            # restored learning rate.
            groups = getattr(part, "param_groups", [])
            own = [{key: group[key] for key in group if key != "params"} for group in groups]
            part.load_state_dict(state[name])
            for number, options in enumerate(own):
                part.param_groups[number].update(options)
        self._reset()
        self.episode = episode


def check_same_run(
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
    config: Settings | None = None,
    free: Collection[str] = (),
) -> None:
    """Raise ValueError if a state has another method, data, seed or config.

    The ``free`` settings may differ.
    """
    for name, value in identity.items():
        if state[name] != value:
            raise ValueError(f"it has another {name}: {state[name]} and not {value}")
    wanted = config.to_dict() if config else {}
    stored = config.from_dict({**wanted, **state["config"]}).to_dict() if config else {}
    for name, value in wanted.items():
        if name not in free and stored[name] != value:
            raise ValueError(f"it was trained with {name} = {stored[name]} and not {value}")


class LearningRun(EpisodeRun):
    """Training of one learner on base examples, on their device.

    The seed and the number of an episode determine all its random numbers.
    """

    def __init__(
        self,
        name: str,
        learner: Learner,
        base: BaseSet,
        config: LearningSettings,
        seed: int,
        workers: Workers = ALONE,
    ) -> None:
        """Create the optimiser of a new learner; each worker trains on its own episodes."""
        self.base, self.seed = base, seed
        device = base.features.device
        self.learner = learner.to(device)
        super().__init__(
            name, base.fingerprint, learner.TERMS, config, self.learner, device, workers
        )
        self._trained = [each for each in self.learner.parameters() if each.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [each for each in self._trained if each.ndim >= 2]},
            {"params": [each for each in self._trained if each.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        # The learning rate is set before every step.
        rate, decay, is_cuda = new_rate(device), config.weight_decay, device.type == "cuda"
        self._optimiser: torch.optim.Optimizer = (
            torch.optim.AdamW(
                groups, lr=rate, weight_decay=decay, capturable=is_cuda, fused=is_cuda
            )
            if config.optimiser == "adam"
            else torch.optim.SGD(
                groups, lr=rate, momentum=0.9, dampening=0.9, weight_decay=decay, fused=is_cuda
            )
        )
        self._for_shape, self._rng = new_rng(0), new_rng(0, device=device)
        self._row = torch.zeros(len(self._terms), device=device)
        self._reset()
        self._identity = {"name": name, "data": self.data, "seed": seed}
        self._parts = {"network": self.learner, "optimiser": self._optimiser}
        self.learner.set_scale(new_rng(seed, 1, device=self.device))

    def _reset(self) -> None:
        self._graphs: dict[int, CudaGraph] = {}

    def _train_one_episode(self) -> Tensor:
        number = self.episode + self._workers.rank
        shape = self.learner.draw_shape(reseed(self._for_shape, self.seed, 2, number))
        reseed(self._rng, self.seed, 3, number)
        set_rate(self._optimiser, self.config.rate_after(self.episode))
        if shape not in self._graphs:
            # Workers exchange gradients within a step, so their steps are not captured.
            is_alone = self._workers.count == 1
            step = partial(self._step, shape)
            self._graphs[shape] = CudaGraph(step, self.device, [self._rng], is_capturable=is_alone)
        self._graphs[shape]()
        return self._row.clone()

    def _step(self, shape: int) -> None:
        """Train on an episode of a shape; write its terms to ``_row``."""
        self._optimiser.zero_grad()
        terms = self.learner.episode_terms(shape, self._rng)
        terms[0].backward()
        if self._workers.count > 1:
            for each in self._trained:  # all ranks must reduce tensors of the same shapes
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            self._workers.average([each.grad for each in self._trained if each.grad is not None])
        self._optimiser.step()
        self._row.copy_(torch.stack([term.detach() for term in terms]))

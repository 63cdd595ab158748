"""Training by episodes on base classes: the loop of embeddings and of every meta-learned baseline.

A `Learner` defines the loss of an episode. This module has what all of them share: the optimiser,
the schedule of the learning rate, workers, and the state from which a run resumes. The four GANs
have a loop of their own, in `cpaan.gan.loop`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from cpaan.core.randomness import new_rng
from cpaan.core.settings import Settings
from cpaan.protocol.tasks import BaseSet
from cpaan.training.workers import ALONE, Workers


class TrainingDivergedError(ValueError):
    """A loss or a weight is no longer finite."""


class Run(Protocol):
    """A training that can stop and resume; `cpaan.training.drive` drives it."""

    name: str
    losses: tuple[str, ...]
    """Terms of `advance` that progress lines show."""
    episode: int

    @property
    def num_episodes(self) -> int:
        """Number of episodes of the whole training."""

    @property
    def data(self) -> str:
        """Fingerprint of the examples."""

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for some more episodes, of all workers together; return means of terms."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the rest of the training."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of another run; raise a ValueError unless it is of the same."""


@dataclass(frozen=True, kw_only=True)
class EpisodeSettings(Settings):
    """Size of an episode."""

    num_ways: int = 200
    """Classes of an episode; all base classes where there are fewer."""
    episode_shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Supports of a class; an episode draws one of these numbers."""
    num_queries: int = 5
    """Queries of a class."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_queries")
        if self.num_ways < 2:
            raise ValueError(f"num_ways must be 2 or more, got {self.num_ways}")
        if not self.episode_shots or min(self.episode_shots) < 1:
            raise ValueError(
                f"episode_shots must be positive whole numbers, got {list(self.episode_shots)}"
            )


@dataclass(frozen=True, kw_only=True)
class LearningSettings(Settings):
    """Optimisation of a learner."""

    num_episodes: int = 2_000
    """Episodes of training."""
    optimiser: Literal["adam", "sgd"] = "adam"
    """Adam with decoupled weight decay, or SGD with momentum and dampening of 0.9."""
    learning_rate: float = 1e-3
    """At the start."""
    schedule: Literal["cosine", "thirds"] = "cosine"
    """How the learning rate falls: along a half-cosine to zero, or to a tenth after each third."""
    weight_decay: float = 0.0
    """Of matrices. With Adam, the share that a step takes away, in units of the learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_episodes", "learning_rate")
        self._refuse_negative("weight_decay")

    def rate_after(self, episode: int) -> float:
        """Return the learning rate of an episode."""
        done = min(1.0, episode / self.num_episodes)
        if self.schedule == "thirds":
            return self.learning_rate * 0.1 ** min(2, int(3 * done))
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


class EpisodeRngs(NamedTuple):
    """Random streams of one episode: equal seeds and episode numbers give equal streams."""

    cpu: torch.Generator
    """For what the program must know, such as a shape, without waiting for a GPU."""
    device: torch.Generator
    """For everything else; on the CPU it is another stream."""


class Learner(nn.Module, ABC):
    """A network to train. Its parameters are drawn on the CPU by an ``rng`` of the caller."""

    TERMS: ClassVar[tuple[str, ...]] = ("query_loss",)
    """Names of the terms; the first is minimised."""

    @abstractmethod
    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        """Draw an episode and return its terms, scalars; gradients flow from the first."""

    def set_scale(self, rng: torch.Generator) -> None:
        """Choose the scale of scores, if any, before the first episode; ``rng`` on the device."""


class LearningRun:
    """Training of one learner on base examples, on their device.

    The seed and the number of an episode decide all random numbers of that episode.
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
        """Prepare the optimiser of a new learner; every worker trains on episodes of its own."""
        workers.check_shares(config.num_episodes)
        self.name = name
        self.losses = learner.TERMS
        self.config = config
        self.seed = seed
        self.episode = 0
        self.base = base
        self.device = base.features.device
        self.learner = learner.to(self.device)
        self._workers = workers
        self._optimiser = self._new_optimiser()
        self.learner.set_scale(new_rng(seed, 1, device=self.device))

    def _new_optimiser(self) -> torch.optim.Optimizer:
        parameters = [each for each in self.learner.parameters() if each.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [each for each in parameters if each.ndim >= 2]},
            {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        decay = self.config.weight_decay
        # The learning rate is set before every step.
        if self.config.optimiser == "adam":
            return torch.optim.AdamW(groups, weight_decay=decay)
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9, dampening=0.9, weight_decay=decay)

    @property
    def num_episodes(self) -> int:
        """Number of episodes of the whole training."""
        return self.config.num_episodes

    @property
    def data(self) -> str:
        """Fingerprint of the base examples."""
        return self.base.fingerprint

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for some more episodes, of all workers together; return means of terms.

        Raises:
            TrainingDivergedError: If a loss or, at the end, a weight is not finite. Both are
                checked once, not in every episode, because a check makes a GPU wait.
        """
        assert num_episodes % self._workers.count == 0, "every worker has its share"
        terms = []
        for _ in range(num_episodes // self._workers.count):
            terms.append(self._train_one_episode())
            self.episode += self._workers.count
        chunk = torch.stack(terms)
        self._workers.average([chunk])  # so that divergence of one worker is an error of all
        chunk = chunk.cpu()
        is_finite = chunk.isfinite().all(dim=1)
        if not is_finite.all():
            first = int((~is_finite).nonzero()[0])
            episode = self.episode - (len(chunk) - first) * self._workers.count
            raise TrainingDivergedError(
                f"{self.name} diverged: at episode {episode}, "
                f"{self.losses[0]} became {float(chunk[first, 0])}"
            )
        self._refuse_weights_unless_finite()
        return dict(zip(self.losses, chunk.mean(dim=0).tolist(), strict=True))

    def _train_one_episode(self) -> Tensor:
        """Return the episode's terms, shape (terms,)."""
        number = self.episode + self._workers.rank
        rngs = EpisodeRngs(
            new_rng(self.seed, 2, number), new_rng(self.seed, 3, number, device=self.device)
        )
        self._optimiser.zero_grad()
        terms = self.learner.episode_terms(rngs)
        terms[0].backward()
        if self._workers.count > 1:
            parameters = [each for each in self.learner.parameters() if each.requires_grad]
            for each in parameters:  # all ranks must reduce tensors of the same shapes
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            self._workers.average([each.grad for each in parameters if each.grad is not None])
        for group in self._optimiser.param_groups:
            group["lr"] = self.config.rate_after(self.episode)
        self._optimiser.step()
        return torch.stack([term.detach() for term in terms])

    def _refuse_weights_unless_finite(self) -> None:
        if not torch.stack([each.isfinite().all() for each in self.learner.parameters()]).all():
            raise TrainingDivergedError(
                f"{self.name} diverged: after episode {self.episode - 1}, weights are infinite "
                "or NaN"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the rest of the training."""
        self._refuse_weights_unless_finite()
        return {
            "name": self.name,
            "data": self.data,
            "seed": self.seed,
            "config": self.config.to_dict(),
            "episode": self.episode,
            "device": self.device.type,
            "workers": self._workers.count,
            "network": self.learner.state_dict(),
            "optimiser": self._optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the state of another run of the same learner, data, seed and settings."""
        identity = {"name": self.name, "data": self.data, "seed": self.seed}
        check_same_run(state, identity, self.config)
        if state["episode"] < self.num_episodes:
            check_resumable(state, self.device, self._workers)
        self.learner.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.episode = state["episode"]


def check_same_run(
    state: Mapping[str, Any], identity: Mapping[str, Any], config: Settings | None = None
) -> None:
    """Raise a ValueError if a state is of another method, data, seed or config."""
    for name, value in identity.items():
        if state[name] != value:
            raise ValueError(f"it has another {name}: {state[name]} and not {value}")
    stored = config.with_overrides(state["config"]).to_dict() if config else {}
    for name, value in (config.to_dict() if config else {}).items():
        if stored[name] != value:
            raise ValueError(f"it was trained with {name} = {stored[name]} and not {value}")


def check_resumable(state: Mapping[str, Any], device: torch.device, workers: Workers) -> None:
    """Raise a ValueError if training cannot continue here: random numbers would differ."""
    if state["device"] != device.type:
        raise ValueError(
            f"it was trained on {state['device']} and can resume only there, not on {device.type}"
        )
    if state["workers"] != workers.count:
        raise ValueError(
            f"it was trained by {state['workers']} workers and can resume only with as many, not "
            f"with {workers.count}"
        )


class NothingToLearn:
    """The run of a method without training."""

    losses: tuple[str, ...] = ()
    episode = 0
    num_episodes = 0

    def __init__(self, name: str, base: BaseSet) -> None:
        self.name = name
        self.data = base.fingerprint

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Refuse: there are no episodes."""
        raise AssertionError(f"{self.name} has no episodes")

    def state_dict(self) -> dict[str, Any]:
        """Return what identifies the run."""
        return {"name": self.name, "data": self.data, "episode": 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise a ValueError if the state is of another method or other data."""
        check_same_run(state, {"name": self.name, "data": self.data})

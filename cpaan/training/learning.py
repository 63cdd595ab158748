"""Episodic training on base classes, for embeddings and all meta-learned baselines.

A `Learner` defines the loss of an episode. This module has the parts that all learners share: the
optimiser, the learning rate schedule, workers, and the state of checkpoints. The four GANs have
their own training step, in `cpaan.gan.loop`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
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
    unit = "episode"
    """Name of an episode in messages."""
    episode = 0
    num_episodes = 0
    """Total number of episodes of all workers."""
    device = torch.device("cpu")
    note = ""
    """How the run computes, for the log; empty if there is nothing to say."""

    def __init__(self, name: str, data: str) -> None:
        """Store the name of the method and the fingerprint of its examples."""
        self.name, self.data = name, data
        self._identity: dict[str, Any] = {"name": name, "data": data}
        """Values that must be equal in a checkpoint."""

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for more episodes, counted over all workers; return the means of the terms."""
        raise AssertionError(f"{self.name} has no episodes")

    def check_equal_weights(self) -> None:
        """Raise RuntimeError on all workers unless they have the same weights and episode."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the rest of the training."""
        return {**self._identity, "episode": self.episode}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state; raise ValueError if it belongs to another run."""
        for name, value in self._identity.items():
            if state[name] != value:
                raise ValueError(f"its {name} is {state[name]}, not {value}")


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
    optimiser: Literal["adam", "sgd", "nesterov"] = "adam"
    """Adam with decoupled weight decay, SGD with momentum and dampening of 0.9, or SGD with
    Nesterov's momentum of 0.9."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    schedule: Literal["cosine", "thirds", "last-third"] = "cosine"
    """Decay of the learning rate: along a half-cosine to zero, to a tenth after each third, or to a
    tenth in the last third only."""
    weight_decay: float = 0.0
    """Weight decay; with Adam, a step removes this share times the learning rate, of matrices only.
    SGD also decays biases, as in the sources that use it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_episodes", "learning_rate")
        self._refuse_negative("weight_decay")

    def rate_after(self, episode: int) -> float:
        """Return the learning rate after a number of episodes."""
        done = min(1.0, episode / self.num_episodes)
        if self.schedule == "last-third":
            return self.learning_rate * (0.1 if 3 * done >= 2 else 1.0)
        return self.learning_rate * decay(done, is_cosine=self.schedule == "cosine")


def decay(done: float, *, is_cosine: bool) -> float:
    """Return the factor of the learning rate after a share ``done`` of the training.

    It falls along a half-cosine to zero, or to a tenth after every third.
    """
    return (1 + math.cos(math.pi * done)) / 2 if is_cosine else 0.1 ** min(2, int(3 * done))


def with_decay(module: nn.Module, weight_decay: float, least_dims: int = 2) -> list[dict[str, Any]]:
    """Return the groups of trained parameters for an optimiser; by default, matrices decay."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    decayed = [parameter for parameter in trained if parameter.ndim >= least_dims]
    others = [parameter for parameter in trained if parameter.ndim < least_dims]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Learner(nn.Module, ABC):
    """A network to train, with initial parameters drawn on the CPU from the caller's ``rng``."""

    TERMS: ClassVar[tuple[str, ...]] = ("query_loss",)
    """Names of the terms of an episode; the first is the loss."""

    def draw_shape(self, rng: torch.Generator) -> int:
        """Draw a number that determines the shapes of an episode, such as the number of shots.

        ``rng`` is on the CPU. On a GPU, every shape has a CUDA graph.
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
    """Settings, or "device" and "workers", that may differ in the checkpoint of a run."""
    _parts: dict[str, Any]
    """The network and the optimisers, by name in a checkpoint."""
    _statistics: Sequence[Tensor] = ()
    """Tensors that a worker computes from its own examples; `advance` averages them."""

    def __init__(
        self,
        name: str,
        data: str,
        terms: tuple[str, ...],
        config: Any,
        module: nn.Module,
        device: torch.device,
        workers: Workers,
        num_steps: int | None = None,
    ) -> None:
        """Store the arguments.

        Workers train on different episodes, which they must be able to share evenly. With
        ``num_steps``, an episode is instead a step that all workers share.
        """
        super().__init__(name, data)
        self.num_episodes = config.num_episodes if num_steps is None else num_steps
        self._stride = workers.count if num_steps is None else 1
        if num_steps is None:
            workers.check_shares(self.num_episodes)
        self.losses, self.config, self.device = terms, config, device
        self._terms, self._module, self._workers = terms, module, workers
        self._has_diverged = False

    @abstractmethod
    def _train_one_episode(self) -> Tensor:
        """Train on this worker's next episode; return its terms, shape (terms,)."""

    def _computing(self) -> AbstractContextManager[None]:
        """Return the context of all training steps."""
        return quick_products(self.device)

    def _reset(self) -> None:
        """Discard objects that hold tensors which a loaded state replaces, such as CUDA graphs."""

    def check_equal_weights(self) -> None:
        """Raise RuntimeError on all workers unless they have the same weights and episode.

        Workers average gradients only, so weights that differ once differ to the end.
        """
        weights = (weight.detach().cpu() for weight in self._module.state_dict().values())
        content = [weight.reshape(-1).view(torch.uint8).numpy().tobytes() for weight in weights]
        if not self._workers.agree(b"".join([*content, str(self.episode).encode()])):
            # A process that should be dead may have written in between. A retry reads again.
            raise RuntimeError(
                f"workers of {self.name} start with different weights; they may have read "
                "different checkpoints"
            )

    def advance(self, num_episodes: int) -> dict[str, float]:
        """Train for more episodes, counted over all workers: a multiple of their number.

        Returns:
            Means of all terms over these episodes, equal on every worker.

        Raises:
            TrainingDivergedError: If a term or, at the end, a weight is not finite; it names the
                first one. Both are checked once per call, because a check makes a GPU wait.
        """
        assert num_episodes % self._stride == 0, "every worker has its share"
        rows: list[Tensor] = []
        with self._computing():
            for _ in range(num_episodes // self._stride):
                rows.append(self._train_one_episode())
                self.episode += self._stride
        chunk = torch.stack(rows)
        # Average the terms too, so that all workers raise if one diverges.
        self._workers.average([chunk, *self._statistics])
        chunk = chunk.cpu()
        if not chunk.isfinite().all():
            row, term = (~chunk.isfinite()).nonzero()[0].tolist()
            what = f"{self._terms[term]} became {float(chunk[row, term])}"
            self._raise_divergence(len(chunk) - row, what)
        weights = [*self._module.parameters(), *self._statistics]
        if not torch.stack([weight.isfinite().all() for weight in weights]).all():
            self._raise_divergence(1, "the update made weights infinite or NaN")
        return dict(zip(self._terms, chunk.mean(dim=0).tolist(), strict=True))

    def _raise_divergence(self, num_steps_ago: int, what: str) -> NoReturn:
        self._has_diverged = True
        number = self.episode - num_steps_ago * self._stride
        raise TrainingDivergedError(f"{self.name} diverged at {self.unit} {number}: {what}")

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines the rest of the training; raise if it has diverged."""
        if self._has_diverged:
            raise TrainingDivergedError(f"{self.name} has diverged; its state cannot be saved")
        return {
            **super().state_dict(),
            "config": self.config.to_dict(),
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
        super().load_state_dict(state)
        wanted, episode = self.config.to_dict(), state["episode"]
        stored = self.config.from_dict({**wanted, **state["config"]}).to_dict()
        for name, value in wanted.items():
            if name not in self.FREE and stored[name] != value:
                raise ValueError(f"it was trained with {name} = {stored[name]}, not {value}")
        if episode > self.num_episodes:
            most = self.num_episodes
            raise ValueError(f"it has {episode} episodes, but only {most} are requested")
        here = {"device": self.device.type, "workers": self._workers.count}
        for name, value in here.items() if episode < self.num_episodes else ():
            if name not in self.FREE and state[name] != value:
                raise ValueError(
                    f"it was trained with {name} = {state[name]} and cannot resume with {value}"
                )
        for name, part in self._parts.items():
            # Keep the options of this run and device, because a CUDA graph would not read a
            # restored learning rate.
            groups = getattr(part, "param_groups", [])
            kept = [{key: group[key] for key in group if key != "params"} for group in groups]
            part.load_state_dict(state[name])
            for number, options in enumerate(kept):
                part.param_groups[number].update(options)
        self._reset()
        self.episode = episode


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
        """Create the optimiser of a new learner; workers train on different episodes."""
        self.base, self.seed = base, seed
        device = base.features.device
        self.learner = learner.to(device)
        super().__init__(
            name, base.fingerprint, learner.TERMS, config, self.learner, device, workers
        )
        is_adam, is_nesterov = config.optimiser == "adam", config.optimiser == "nesterov"
        groups = with_decay(self.learner, config.weight_decay, least_dims=2 if is_adam else 0)
        # The learning rate is set before every step.
        rate, is_cuda = new_rate(device), device.type == "cuda"
        self._optimiser: torch.optim.Optimizer = (
            torch.optim.AdamW(groups, lr=rate, capturable=is_cuda, fused=True)
            if is_adam
            else torch.optim.SGD(
                groups,
                lr=rate,
                momentum=0.9,
                dampening=0.0 if is_nesterov else 0.9,
                nesterov=is_nesterov,
                fused=True,
            )
        )
        self._for_shape, self._rng = new_rng(0), new_rng(0, device=device)
        self._row = torch.zeros(len(self._terms), device=device)
        self._reset()
        self._identity["seed"] = seed
        self._parts = {"network": self.learner, "optimiser": self._optimiser}
        self.learner.set_scale(new_rng(seed, 1, device=self.device))

    def _reset(self) -> None:
        self._steps: dict[int, Callable[[], None]] = {}

    def _train_one_episode(self) -> Tensor:
        number = self.episode + self._workers.rank
        shape = self.learner.draw_shape(reseed(self._for_shape, self.seed, 2, number))
        reseed(self._rng, self.seed, 3, number)
        set_rate(self._optimiser, self.config.rate_after(self.episode))
        if shape not in self._steps:
            step = partial(self._step, shape)
            # Workers exchange gradients within a step. They draw different shapes, but NCCL needs
            # all of them to capture an exchange at the same time.
            is_alone = self._workers.count == 1
            self._steps[shape] = CudaGraph(step, self.device, [self._rng]) if is_alone else step
        self._steps[shape]()
        return self._row.clone()

    def _step(self, shape: int) -> None:
        """Train on an episode of a shape; write its terms to ``_row``."""
        self._optimiser.zero_grad()
        terms = self.learner.episode_terms(shape, self._rng)
        terms[0].backward()
        if self._workers.count > 1:
            gradients = []
            for weight in filter(lambda weight: weight.requires_grad, self.learner.parameters()):
                if weight.grad is None:  # all ranks must reduce tensors of the same shapes
                    weight.grad = torch.zeros_like(weight)
                gradients.append(weight.grad)
            self._workers.average(gradients)
        self._optimiser.step()
        self._row.copy_(torch.stack([term.detach() for term in terms]))

"""Base classes of all methods: training, the contract of a fit, and classifier heads.

Shapes: P = problems, N = novel classes, S = synthetic examples of a class, Q = queries,
D = feature dimension.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng, spawn
from cpaan.protocol.augmentation import num_synthetic_of
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES, GroupedHeads, real_share
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.drive import train_to_end
from cpaan.training.learning import Learner, LearningRun, LearningSettings, Run
from cpaan.training.workers import ALONE, Workers

R = TypeVar("R", bound=Run)


def _unchanged(examples: Tensor) -> Tensor:
    return examples


@dataclass(frozen=True, eq=False)
class Fitted:
    """What a method has learnt about the problems of a task."""

    predict: Callable[[Tensor], Mapping[str, Tensor]]
    """Score queries for every problem; larger is more likely.

    Queries have shape (Q, D), or (P, Q, D) if each problem has its own. The scores have shape
    (P, Q, B + N), by the name of a classifier head. A method with only a built-in classifier has
    one entry."""
    represent: Callable[[Tensor], Tensor] = _unchanged
    """Map examples, shape (..., D), into the space in which heads use synthetic examples."""
    synthetic: Sequence[Tensor] | None = None
    """Synthetic examples as the heads use them: one tensor (N, S, D) for each problem. None if the
    fit was not asked for them, because they may fill a GPU, or if there are none."""

    def after(self, transform: Callable[[Tensor], Tensor]) -> "Fitted":
        """Return the same for queries and examples that must be transformed first."""
        return Fitted(
            partial(_in_turn, transform, self.predict),
            partial(_in_turn, transform, self.represent),
            self.synthetic,
        )


def _in_turn(
    first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Any], rows: Tensor
) -> Any:
    return second(first(rows))


@torch.no_grad()
def _as_own(scores: Callable[[Tensor], Tensor], queries: Tensor) -> dict[str, Tensor]:
    return {OWN: scores(queries)}


class LowShotMethod(ABC):
    """A method that learns novel classes from a few examples."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return the training run, for callers that run the training loop themselves.

        Later calls of `fit` use this run as it is, at any episode. They need an equal ``rng``.
        """
        return Run(type(self).__name__, base.fingerprint)

    @abstractmethod
    def fit(self, task: LowShotTask, rng: torch.Generator, keep: int | None = None) -> Fitted:
        """Learn all problems of a task from its examples alone.

        Further calls may have other problems, but the same base examples and an equal ``rng``.
        What was learnt from base examples alone may be reused.

        Args:
            task: The problems.
            rng: Random stream on the CPU.
            keep: Number of synthetic examples of a class to make and to return; 0: by the settings.
                None: make them by the settings, and return none.
        """

    def take_over(self, other: "LowShotMethod") -> None:
        """Use what another method has trained; only settings without effect on it may differ."""
        assert type(other) is type(self), "it is the same method with other settings"

    def real_share(self, num_shots: int, num_synthetic: int) -> float:
        """Return the weight of a novel class's real examples; all examples count alike."""
        return num_shots / (num_shots + num_synthetic)


class Trained(LowShotMethod, Generic[R]):
    """A method that trains a run once for the given base examples, in either phase."""

    _run: R | None = None

    @abstractmethod
    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> R:
        """Return a new run. All of its random numbers come from ``rng``, which is on the CPU."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return a new run for the caller to train; `trained` then returns it as it is."""
        for_training, _ = spawn(rng, 2)
        self._run = self.new_run(base, for_training, workers)
        return self._run

    def take_over(self, other: LowShotMethod) -> None:
        """Use the run of another method as it is."""
        assert isinstance(other, Trained)
        self._run = other._run

    def trained(self, base: BaseSet, rng: torch.Generator) -> tuple[R, torch.Generator]:
        """Return the run on these base examples, and the random stream for its use.

        The run is trained to the end unless the caller trains it.
        """
        for_training, for_use = spawn(rng, 2)
        if self._run is None or self._run.data != base.fingerprint:
            self._run = self.new_run(base, for_training, ALONE)
            self._train(self._run)
        return self._run, for_use

    def _train(self, run: R) -> None:
        train_to_end(run)


class LowShotLearner(Learner):
    """A network that is trained by episodes on base classes and has its own classifier."""

    @abstractmethod
    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Learn all problems of a task with the trained network, without changing it.

        Returns:
            A function from queries to scores, with the shapes of `Fitted.predict`.
        """


class MetaLearned(Trained[LearningRun]):
    """A method that consists of a learner, trained on base classes, with its own classifier."""

    def __init__(self, name: str, learner: type[Learner], config: LearningSettings) -> None:
        """Take a name for messages, and a class whose arguments are base set, settings and rng."""
        self._name = name
        self._learner = learner
        self._config = config

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> LearningRun:
        """Create the learner."""
        ordered, seed = base.in_order_of_names(), draw_word(rng)
        learner = self._learner(ordered, self._config, new_rng(seed, 0))
        return LearningRun(self._name, learner, ordered, self._config, seed, workers)

    def fit(self, task: LowShotTask, rng: torch.Generator, keep: int | None = None) -> Fitted:
        """Train once for these base examples; adapt at every call."""
        run, for_adapting = self.trained(task.base, rng)
        with torch.no_grad():
            fitted = self.adapt(run.learner, task, for_adapting, keep or 0)
        return replace(fitted, synthetic=None) if keep is None else fitted

    def adapt(
        self, learner: Learner, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0
    ) -> Fitted:
        """Learn all problems of a task with the trained learner, which does not change."""
        assert isinstance(learner, LowShotLearner)
        scores = learner.solve(task, rng)
        return Fitted(partial(_as_own, scores))


class Augmented(LowShotMethod):
    """Classifier heads on real and synthetic examples; subclasses make the synthetic ones."""

    def __init__(self, config: EvaluationConfig) -> None:
        self._config = config

    @abstractmethod
    def synthesise(
        self, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0
    ) -> Tensor | Sequence[Tensor] | None:
        """Return synthetic examples, one tensor (N, S, D) per problem, or None for none.

        ``num_synthetic`` is S, or 0 for the number of the settings.
        """

    def fit(self, task: LowShotTask, rng: torch.Generator, keep: int | None = None) -> Fitted:
        """Synthesise examples, then fit every head to the same examples."""
        for_synthesis, *for_heads = _spawn_for_fit(rng)
        synthetic = self.synthesise(task, for_synthesis, keep or 0)
        rng_of_head = dict(zip(HEAD_CLASSES, for_heads, strict=True))
        heads = GroupedHeads(self._config)
        # Each call copies the stream, so problems with other numbers of examples do not affect it.
        heads.fit(task, synthetic, lambda name, count: rng_of_head[name].clone_state())
        if keep is None or synthetic is None:
            return Fitted(heads.scores)
        return Fitted(heads.scores, synthetic=list(synthetic))

    def real_share(self, num_shots: int, num_synthetic: int) -> float:
        """Return the weight of a novel class's real examples, as the heads use it."""
        shots = torch.tensor(float(num_shots), dtype=torch.float64)
        return float(real_share(shots, num_synthetic, self._config))

    def num_synthetic_for(self, task: LowShotTask, wanted: int) -> int:
        """Return the number of synthetic examples of a class: as wanted, or by the settings."""
        return wanted or num_synthetic_of(task.base.counts, task.shots.shape[2], self._config)


class TrainedAugmentation(Augmented, Trained[R]):
    """Augmentation by a generator that is trained on the base examples of the task."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return a new run for the caller to train."""
        for_synthesis, *_ = _spawn_for_fit(rng)
        return super().begin(base, for_synthesis, workers)


def _spawn_for_fit(rng: torch.Generator) -> list[torch.Generator]:
    """Return one stream for synthesis and one for each head, whether configured or not."""
    return spawn(rng, 1 + len(HEAD_CLASSES))

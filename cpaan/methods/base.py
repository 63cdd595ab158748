"""Base classes of all methods: training with a checkpoint, and classifier heads.

Shapes: P = problems, N = novel classes, S = synthetic examples of a class, D = feature dimension.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng, spawn
from cpaan.protocol.augmentation import diversity_of, num_synthetic_of
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES, GroupedHeads, real_share
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.drive import Progress, train_to_end
from cpaan.training.learning import Learner, LearningRun, LearningSettings, Run
from cpaan.training.workers import ALONE, Workers

R = TypeVar("R", bound=Run)


class LowShotMethod(ABC):
    """A method that learns novel classes from a few examples; the evaluation scores `predict`."""

    diversity: Tensor | None = None
    """Mean distance of two synthetic examples of a class in the last fit, shape (P, N)."""
    measures_diversity: bool = True
    """Whether a fit computes the diversity, which takes a third of the time of an evaluation."""
    keeps_synthetic: bool = False
    """Whether a fit stores its synthetic examples, which may fill most of a GPU's memory."""
    synthetic: Sequence[Tensor] | None = None
    """Stored examples of the last fit, as the heads use them: one tensor (N, S, D) per problem."""
    num_synthetic: int | None = None
    """Number of synthetic examples per class in the next fit; None: by the settings."""
    origin: dict[str, Any] | None = None
    """The command, commit and episode of the checkpoint that the training resumed from."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return the training run, for callers that run the training loop themselves.

        Later calls of `fit` use this run as it is, at any episode. They need an equal ``rng``.
        """
        return Run(type(self).__name__, base.fingerprint)

    @abstractmethod
    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Learn all problems of a task from its examples alone.

        Further calls may have other problems, but the same base examples and an equal ``rng``.
        State that was learnt from base examples alone may be reused.
        """

    @abstractmethod
    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Score queries, shape (Q, D), for every problem of the task.

        Returns scores of shape (P, Q, B + N) by the name of a classifier head; larger is more
        likely. A method with only a built-in classifier returns one entry.
        """

    def take_over(self, other: "LowShotMethod") -> None:
        """Use what another method has trained; only settings without effect on it may differ."""
        self.origin = other.origin

    def represent(self, examples: Tensor) -> Tensor:
        """Map examples, shape (..., D), into the space in which heads use synthetic examples."""
        return examples

    def real_share(self, num_shots: int, num_synthetic: int) -> float:
        """Return the weight of a novel class's real examples; all examples count alike."""
        return num_shots / (num_shots + num_synthetic)

    def record_synthetic(self, synthetic: Sequence[Tensor]) -> None:
        """Record the diversity of each problem's synthetic examples, P times shape (N, S, D)."""
        self.diversity = diversity_of(synthetic) if self.measures_diversity else None
        self.synthetic = synthetic if self.keeps_synthetic else None


@dataclass(frozen=True)
class Checkpointing:
    """Path of the checkpoint of a training, and the function that receives progress messages."""

    path: Path | None = None
    """File to resume from if it exists, and to write to; None for no checkpoint."""
    progress: Progress = lambda message: None


NO_CHECKPOINT = Checkpointing()


class Trained(LowShotMethod, Generic[R]):
    """A method that trains a run once for the given base examples, in either phase."""

    _run: R | None = None

    def __init__(self, checkpointing: Checkpointing) -> None:
        self._checkpointing = checkpointing

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
        super().take_over(other)
        self._run = other._run

    def trained(self, base: BaseSet, rng: torch.Generator) -> tuple[R, torch.Generator]:
        """Return the run on these base examples, and the random stream for its use.

        The run is trained to the end unless the caller trains it.
        """
        for_training, for_use = spawn(rng, 2)
        if self._run is None or self._run.data != base.fingerprint:
            self._run = self.new_run(base, for_training, ALONE)
            path, progress = self._checkpointing.path, self._checkpointing.progress
            self.origin = train_to_end(self._run, path, progress=progress)
        return self._run, for_use


class LowShotLearner(Learner):
    """A network that is trained by episodes on base classes and has its own classifier."""

    @abstractmethod
    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Learn all problems of a task with the trained network, without changing it.

        Returns:
            A function from queries, shape (Q, D), to scores, shape (P, Q, B + N).
        """


class MetaLearned(Trained[LearningRun]):
    """A method that consists of a learner, trained on base classes, with its own classifier."""

    def __init__(
        self,
        name: str,
        learner: type[Learner],
        config: LearningSettings,
        checkpointing: Checkpointing = NO_CHECKPOINT,
    ) -> None:
        """Take a name for messages, and a class whose arguments are base set, settings and rng."""
        super().__init__(checkpointing)
        self._name = name
        self._learner = learner
        self._config = config

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> LearningRun:
        """Create the learner."""
        ordered, seed = base.in_order_of_names(), draw_word(rng)
        learner = self._learner(ordered, self._config, new_rng(seed, 0))
        return LearningRun(self._name, learner, ordered, self._config, seed, workers)

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Train once for these base examples; adapt at every call."""
        run, for_adapting = self.trained(task.base, rng)
        self.adapt(run, task, for_adapting)

    @torch.no_grad()
    def adapt(self, run: LearningRun, task: LowShotTask, rng: torch.Generator) -> None:
        """Learn all problems of a task with the trained learner; ``run`` does not change."""
        assert isinstance(run.learner, LowShotLearner)
        self._scores = run.learner.solve(task, rng)

    @torch.no_grad()
    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return the learner's scores."""
        return {OWN: self._scores(queries)}


class Augmented(LowShotMethod):
    """Classifier heads on real and synthetic examples; subclasses make the synthetic ones."""

    def __init__(self, config: EvaluationConfig) -> None:
        self._config = config
        self._heads = GroupedHeads(config)

    @abstractmethod
    def synthesise(
        self, task: LowShotTask, rng: torch.Generator
    ) -> Tensor | Sequence[Tensor] | None:
        """Return synthetic examples, one tensor (N, S, D) per problem, or None for none."""

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Synthesise examples, then fit every head to the same examples."""
        for_synthesis, *for_heads = _spawn_for_fit(rng)
        synthetic = self.synthesise(task, for_synthesis)
        if synthetic is not None:
            self.record_synthetic(list(synthetic))
        rng_of_head = dict(zip(HEAD_CLASSES, for_heads, strict=True))
        # Each call copies the stream, so problems with other numbers of examples do not affect it.
        self._heads.fit(task, synthetic, lambda name, count: rng_of_head[name].clone_state())

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return each head's scores."""
        return self._heads.scores(queries)

    def real_share(self, num_shots: int, num_synthetic: int) -> float:
        """Return the weight of a novel class's real examples, as the heads use it."""
        shots = torch.tensor(float(num_shots), dtype=torch.float64)
        return float(real_share(shots, num_synthetic, self._config))

    def _num_synthetic(self, task: LowShotTask) -> int:
        if self.num_synthetic is not None:
            return self.num_synthetic
        return num_synthetic_of(task.base.counts, task.shots.shape[2], self._config)


class TrainedAugmentation(Augmented, Trained[R]):
    """Augmentation by a generator that is trained on the base examples of the task."""

    def __init__(
        self, config: EvaluationConfig, checkpointing: Checkpointing = NO_CHECKPOINT
    ) -> None:
        Augmented.__init__(self, config)
        Trained.__init__(self, checkpointing)

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return a new run for the caller to train."""
        for_synthesis, *_ = _spawn_for_fit(rng)
        return super().begin(base, for_synthesis, workers)


def _spawn_for_fit(rng: torch.Generator) -> list[torch.Generator]:
    """Return one stream for synthesis and one for each head, whether configured or not."""
    return spawn(rng, 1 + len(HEAD_CLASSES))

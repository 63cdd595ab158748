"""What all methods are made of: a training that is kept, and heads on real and synthetic examples.

Shapes: P = problems, N = novel classes, S = synthetic examples a class, D = feature dimension.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng, spawn
from cpaan.protocol.augmentation import diversity_of, num_synthetic_of
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.drive import train_to_end
from cpaan.training.learning import Learner, LearningRun, LearningSettings, NothingToLearn, Run
from cpaan.training.workers import ALONE, Workers

Progress = Callable[[str], None]


class LowShotMethod(ABC):
    """A row of the table. See `cpaan.protocol.tasks.Method` for what the evaluation knows of it."""

    diversity: Tensor | None = None
    """Mean distance of two synthetic examples of a class, shape (P, N), of the last fit."""
    keeps_synthetic: bool = False
    """Whether a fit is to keep its synthetic examples, which may be most of a GPU's memory."""
    synthetic: Sequence[Tensor] | None = None
    """What was kept of the last fit: of every problem, shape (N, S, D), as heads see them."""
    origin: dict[str, Any] | None = None
    """Where it went on from, if it did: the command, commit and episode of a checkpoint."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return the training run that `fit` would drive to its end, for who drives it otherwise.

        From now on, `fit` takes it as it is, whatever its episode.

        Args:
            base: The examples to train on.
            rng: In the state that `fit` will be given.
            workers: Who trains together.
        """
        return NothingToLearn(type(self).__name__, base)

    @abstractmethod
    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Learn all problems of a task."""

    def represent(self, examples: Tensor) -> Tensor:
        """Return examples, shape (..., D), in the space in which heads see synthetic ones."""
        return examples

    def take_note_of(self, synthetic: Sequence[Tensor]) -> None:
        """Note the diversity of synthetic examples, and themselves where they are to be kept.

        Args:
            synthetic: Of every problem, P times shape (N, S, D); S may be zero.
        """
        self.diversity = diversity_of(synthetic)
        self.synthetic = synthetic if self.keeps_synthetic else None

    @abstractmethod
    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return scores of shape (P, Q, C) by head."""


@dataclass(frozen=True)
class Keeping:
    """Where a training is kept, and who is told of it."""

    checkpoint: Path | None = None
    """The file, taken up again where it exists; None: nowhere."""
    progress: Progress = lambda message: None
    """Called with a line now and then while it trains."""


R = TypeVar("R", bound=Run)
C = TypeVar("C", bound=LearningSettings)


class Training(Generic[R]):
    """The run of a method on base examples: trained once for these, whatever the phase."""

    def __init__(
        self,
        new_run: Callable[[BaseSet, torch.Generator, Workers], R],
        keeping: Keeping,
    ) -> None:
        """Keep how a run is made: of base examples, an ``rng`` that decides it, and workers."""
        self._new_run = new_run
        self._keeping = keeping
        self._run: R | None = None
        self.origin: dict[str, Any] | None = None

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> R:
        """Return a new run, which others drive; `run_for` then takes it as it is."""
        self._run = self._new_run(base, rng, workers)
        return self._run

    def run_for(self, base: BaseSet, rng: torch.Generator) -> R:
        """Return the run on these base examples, trained to its end unless others drive it."""
        if self._run is None or self._run.data != base.fingerprint:
            self._run = self._new_run(base, rng, ALONE)
            self._train(self._run)
        return self._run

    def _train(self, run: R) -> None:
        keeping = self._keeping
        self.origin = train_to_end(run, keeping.checkpoint, progress=keeping.progress)


class MetaLearned(LowShotMethod, Generic[C]):
    """A method that is trained on base classes by episodes, and has a classifier of its own."""

    NAME: ClassVar[str]
    """Of what is trained, in messages and checkpoints."""

    def __init__(
        self,
        config: C,
        keeping: Keeping = Keeping(),  # noqa: B008  # it is frozen
    ) -> None:
        """Keep the settings.

        Args:
            config: Everything that decides the method, apart from features and seed.
            keeping: Where the training is kept.
        """
        self._config = config
        self._training = Training(self.new_run, keeping)

    @abstractmethod
    def new_learner(self, base: BaseSet, rng: torch.Generator) -> Learner:
        """Draw what is trained.

        Args:
            base: What it is trained on, classes in the order of names: the same in both phases.
            rng: On the CPU.
        """

    @abstractmethod
    def adapt(self, run: LearningRun, task: LowShotTask, rng: torch.Generator) -> None:
        """Learn all problems of a task with what was trained; nothing of ``run`` may change."""

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> LearningRun:
        """Return a new run; all that is random about it comes from the ``rng``, on the CPU."""
        ordered, seed = base.in_order_of_names(), draw_word(rng)
        learner = self.new_learner(ordered, new_rng(seed, 0))
        return LearningRun(self.NAME, learner, ordered, self._config, seed, workers)

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> LearningRun:
        """Return the training run that `fit` would drive to its end."""
        for_training, _ = spawn(rng, 2)
        return self._training.begin(base, for_training, workers)

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Train once for these base examples; adapt at every call."""
        for_training, for_adapting = spawn(rng, 2)
        run = self._training.run_for(task.base, for_training)
        self.origin = self._training.origin
        self.adapt(run, task, for_adapting)


class Augmented(LowShotMethod):
    """Classifier heads on real examples and on synthetic ones; subclasses say which."""

    def __init__(self, config: EvaluationConfig) -> None:
        """Prepare the heads."""
        self._config = config
        self._heads = {name: HEAD_CLASSES[name](config) for name in config.heads if name != OWN}

    @abstractmethod
    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> Tensor | None:
        """Return synthetic examples, shape (P, N, S, D), or None for no augmentation."""

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Synthesise examples, then fit every head to the same ones."""
        for_synthesis, *for_heads = self._spawn_for_fit(rng)
        synthetic = self.synthesise(task, for_synthesis)
        if synthetic is not None:
            self.take_note_of(list(synthetic))
        rng_of_head = dict(zip(HEAD_CLASSES, for_heads, strict=True))
        for name, head in self._heads.items():
            head.fit(task, synthetic, rng_of_head[name])

    def _num_synthetic(self, task: LowShotTask) -> int:
        return num_synthetic_of(task.base.counts, task.shots.shape[2], self._config)

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return each head's scores."""
        return {name: head.scores(queries) for name, head in self._heads.items()}

    @staticmethod
    def _spawn_for_fit(rng: torch.Generator) -> list[torch.Generator]:
        """Return the streams of synthesis and of every head, wanted or not."""
        return spawn(rng, 1 + len(HEAD_CLASSES))


class TrainedAugmentation(Augmented, Generic[R]):
    """Augmentation by what was trained on the base examples of the task."""

    def __init__(
        self,
        config: EvaluationConfig,
        keeping: Keeping = Keeping(),  # noqa: B008  # it is frozen
    ) -> None:
        """Prepare heads and training."""
        super().__init__(config)
        self._training = Training(self.new_run, keeping)

    @abstractmethod
    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> R:
        """Return a new run; all that is random about it comes from the ``rng``, on the CPU."""

    @abstractmethod
    def synthesise_with(self, run: R, task: LowShotTask, rng: torch.Generator) -> Tensor | None:
        """Return synthetic examples by what was trained, shape (P, N, S, D), or None for none."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> R:
        """Return the training run that `fit` would drive to its end."""
        for_synthesis, *_ = self._spawn_for_fit(rng)
        for_training, _ = spawn(for_synthesis, 2)
        return self._training.begin(base, for_training, workers)

    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> Tensor | None:
        """Train once for these base examples; synthesise at every call."""
        for_training, for_sources = spawn(rng, 2)
        run = self._training.run_for(task.base, for_training)
        self.origin = self._training.origin
        return self.synthesise_with(run, task, for_sources)

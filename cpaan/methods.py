"""Every method by its name in the tables."""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpaan.augmentation import (
    Translation,
    copy,
    half_mean_shift,
    mean_pairwise_distance,
    mean_shift,
    num_synthetic_of,
    synthesise,
    synthesise_normalised,
)
from cpaan.checkpoints import load_checkpoint, train_to_end
from cpaan.classifiers import HEAD_CLASSES
from cpaan.config import EvaluationConfig, TrainConfig
from cpaan.episodes import MetaEpisodes
from cpaan.gans import GANS, Gan
from cpaan.randomness import spawn
from cpaan.tasks import BaseSet, LowShotTask
from cpaan.training import TrainingRun
from cpaan.training_data import TrainingData
from cpaan.workers import ALONE, Workers

CONTROLS: dict[str, Translation | None] = {
    "none": None,
    "mean-shift": mean_shift,
    "half-mean-shift": half_mean_shift,
    "copy": copy,
}
"""What every trained generator has to beat."""

METHODS = (*CONTROLS, *GANS)

Progress = Callable[[str], None]


class Augmented(ABC):
    """Classifier heads on real examples and on synthetic ones; subclasses say which."""

    diversity: Tensor | None = None
    """Mean distance of two synthetic examples of a class, shape (P, N), of the last fit."""
    origin: dict[str, Any] | None = None
    """Where it went on from, if it did: the command, commit and episode of a checkpoint."""

    def __init__(self, config: EvaluationConfig) -> None:
        """Prepare the heads."""
        self._config = config
        self._heads = {name: HEAD_CLASSES[name](config) for name in config.heads}

    @abstractmethod
    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> Tensor | None:
        """Return synthetic examples, shape (P, N, S, D), or None for no augmentation."""

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Synthesise examples, then fit every head to the same ones."""
        for_synthesis, *for_heads = _spawn_for_fit(rng)
        synthetic = self.synthesise(task, for_synthesis)
        if synthetic is not None:
            self.diversity = mean_pairwise_distance(synthetic)
        rng_of_head = dict(zip(HEAD_CLASSES, for_heads, strict=True))
        for name, head in self._heads.items():
            head.fit(task, synthetic, rng_of_head[name])

    def _num_synthetic(self, task: LowShotTask) -> int:
        return num_synthetic_of(task.base.counts, task.shots.shape[2], self._config)

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return each head's scores."""
        return {name: head.scores(queries) for name, head in self._heads.items()}


class Control(Augmented):
    """Augmentation by a fixed translation, or none at all."""

    def __init__(self, translation: Translation | None, config: EvaluationConfig) -> None:
        """Keep the translation; None for no augmentation."""
        super().__init__(config)
        self._translation = translation

    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> Tensor | None:
        """Translate related base examples."""
        if self._translation is None:
            return None
        return synthesise(
            task,
            self._translation,
            neighbours=self._config,
            num_synthetic=self._num_synthetic(task),
            rng=rng,
        )


class Adversarial(Augmented):
    """Augmentation by one of the four GANs, meta-trained on the base examples of the task."""

    def __init__(
        self,
        gan: Gan,
        config: EvaluationConfig,
        training: TrainConfig,
        checkpoint: Path | None = None,
        progress: Progress = lambda message: None,
    ) -> None:
        """Keep the settings.

        Args:
            gan: Which of the four.
            config: Heads, and how much is synthesised.
            training: How the GAN is trained, and from which base classes it translates.
            checkpoint: Where its training is kept, and taken up again; None: nowhere.
            progress: Called with a line now and then while it trains.
        """
        super().__init__(config)
        self._gan = gan
        self._training = training
        self._checkpoint = checkpoint
        self._progress = progress
        self._run: TrainingRun | None = None

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> TrainingRun:
        """Return the training run that `fit` would drive to its end, for who drives it otherwise.

        From now on, `fit` takes it as it is, whatever its episode.

        Args:
            base: The examples to train on.
            rng: In the state that `fit` will be given.
            workers: Who trains together.
        """
        for_synthesis, *_ = _spawn_for_fit(rng)
        for_training, _ = _spawn_for_synthesis(for_synthesis)
        self._run = self._new_run(base, for_training, workers)
        return self._run

    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> Tensor | None:
        """Meta-train once for these base examples, whatever the phase; translate at every call."""
        for_training, for_sources = _spawn_for_synthesis(rng)
        if self._run is None or self._run.episodes.data.fingerprint != task.base.fingerprint:
            self._run = self._new_run(task.base, for_training)
            self._train(self._run)
        return synthesise_normalised(
            task,
            self._run.episodes.data,
            self._run.networks.base_to_novel,
            neighbours=self._training,
            num_synthetic=self._num_synthetic(task),
            rng=for_sources,
        )

    def _new_run(
        self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE
    ) -> TrainingRun:
        config = self._training
        data = TrainingData.prepare(base, config, with_covariances=self._gan.has_covariance)
        return TrainingRun(self._gan, MetaEpisodes(data, config), config, rng, workers=workers)

    def _train(self, run: TrainingRun) -> None:
        if self._checkpoint is not None and self._checkpoint.exists():
            origin = load_checkpoint(run, self._checkpoint)
            self.origin = {**origin, "episode": run.episode}
            self._progress(f"{self._gan.name}: going on from episode {run.episode}")
        train_to_end(run, checkpoint=self._checkpoint, progress=self._progress)


def _spawn_for_fit(rng: torch.Generator) -> list[torch.Generator]:
    """Return the streams of synthesis and of every head, wanted or not."""
    return spawn(rng, 1 + len(HEAD_CLASSES))


def _spawn_for_synthesis(rng: torch.Generator) -> list[torch.Generator]:
    """Return the streams of training and of source examples."""
    return spawn(rng, 2)


def check_methods(names: list[str]) -> None:
    """Refuse names that are no method, or that stand twice.

    Raises:
        ValueError: With the nearest name that exists.
    """
    for name in names:
        if name not in METHODS:
            close = difflib.get_close_matches(name, METHODS, n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ValueError(f"unknown method {name!r}{hint} The methods are {', '.join(METHODS)}")
    if not names:
        raise ValueError(f"no method is named; there are {', '.join(METHODS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"each method is wanted once, got {', '.join(names)!r}")


def make_method(
    name: str,
    config: EvaluationConfig,
    training: TrainConfig,
    *,
    checkpoint: Path | None = None,
    progress: Progress = lambda message: None,
) -> Augmented:
    """Return a new, unfitted method; see `Adversarial` for what only GANs use."""
    if name in CONTROLS:
        return Control(CONTROLS[name], config)
    return Adversarial(GANS[name], config, training, checkpoint, progress)

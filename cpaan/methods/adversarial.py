"""CP-AAN. Gao, Shou, Zareian, Zhang & Chang (2018), Low-shot Learning via Covariance-Preserving
Adversarial Augmentation Networks.

A GAN is meta-trained on the base classes to translate examples of related base classes into a class
of which only a few are known; at meta-test, such examples fill every novel class, and any head
learns from real and synthetic ones. c-GAN, cCyc-GAN, cDeLi-GAN and cCov-GAN differ in their
objective. What the paper leaves open is a field of `TrainConfig`.
"""

import torch
from torch import Tensor

from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.gans import Gan
from cpaan.gan.loop import TrainingRun
from cpaan.methods.base import Keeping, TrainedAugmentation
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.workers import Workers


class Adversarial(TrainedAugmentation[TrainingRun]):
    """Augmentation by one of the four GANs, meta-trained on the base examples of the task."""

    def __init__(
        self,
        gan: Gan,
        config: EvaluationConfig,
        training: TrainConfig,
        keeping: Keeping = Keeping(),  # noqa: B008  # it is frozen
    ) -> None:
        """Keep the settings.

        Args:
            gan: Which of the four.
            config: Heads, and how much is synthesised.
            training: How the GAN is trained, and from which base classes it translates.
            keeping: Where its training is kept.
        """
        super().__init__(config, keeping)
        self._gan = gan
        self._settings = training

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> TrainingRun:
        """Draw the networks."""
        config = self._settings
        data = TrainingData.prepare(base, config, with_covariances=self._gan.has_covariance)
        return TrainingRun(self._gan, MetaEpisodes(data, config), config, rng, workers=workers)

    def synthesise_with(self, run: TrainingRun, task: LowShotTask, rng: torch.Generator) -> Tensor:
        """Translate examples of related base classes."""
        return run.episodes.data.synthesise(
            task,
            run.networks.base_to_novel,
            neighbours=self._settings,
            num_synthetic=self._num_synthetic(task),
            rng=rng,
        )

"""Controls: augmentation without any learning, which every trained generator has to beat.

Related base examples, chosen as the GANs choose theirs, become synthetic examples of a novel class:
moved from their class's mean to that of the shots, half of the way, or as they are; and none at
all. The paper has none of them. Which base classes are related, and what synthetic examples weigh
beside the shots, is as in the settings of the evaluation.
"""

import torch
from torch import Tensor

from cpaan.methods.base import Augmented
from cpaan.protocol.augmentation import Translation, synthesise
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.tasks import LowShotTask


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

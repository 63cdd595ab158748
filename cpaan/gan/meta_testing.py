"""Synthetic examples of a trained translation, which knows normalised features alone."""

from dataclasses import replace

import torch
from torch import Tensor

from cpaan.gan.training_data import TrainingData
from cpaan.protocol.augmentation import Translation, synthesise
from cpaan.protocol.config import NeighbourSettings
from cpaan.protocol.tasks import LowShotTask


def synthesise_normalised(
    task: LowShotTask,
    data: TrainingData,
    translate: Translation,
    *,
    neighbours: NeighbourSettings,
    num_synthetic: int,
    rng: torch.Generator,
) -> Tensor:
    """Do as `synthesise` does, with a translation that was trained on normalised features.

    Args:
        task: The problems; their base examples are those that ``data`` was made of.
        data: The base examples as the translation knows them.
        translate: Of normalised features.
        neighbours: As in training.
        num_synthetic: S.
        rng: Decides the sources.

    Returns:
        Synthetic examples on the scale of the task, shape (P, N, S, D).
    """
    normalised = replace(task, base=data.base, shots=data.normalise(task.shots))
    with torch.no_grad():
        synthetic = synthesise(
            normalised, translate, neighbours=neighbours, num_synthetic=num_synthetic, rng=rng
        )
    return synthetic.mul_(data.scale).to(task.shots.dtype)

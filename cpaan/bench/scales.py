"""The sizes at which things are measured, and the data at those sizes.

Shapes: C = base classes, D = feature dimension.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.data.builtin import builtin_features
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.data.table import TRAIN
from cpaan.gan.config import TrainConfig
from cpaan.gan.training_data import TrainingData
from cpaan.protocol.tasks import BaseSet

_WORD_OF_CLASSES = 1  # apart from every other use of a seed


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One size of everything."""

    name: str
    num_dims: int
    num_classes: int
    """Base classes of meta-training."""
    num_ways: int
    num_shots: int
    batch_size: int
    hidden_dim: int
    noise_dim: int
    num_covariance_classes: int
    ky_fan_order: int

    dims: tuple[int, ...]
    """Sizes that the cost's growth is measured at; so are the next three."""
    covariance_classes: tuple[int, ...]
    orders: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    repeats: int
    most_seconds: float
    """Of each of what is timed in turn, for one row."""

    num_base: int
    """Base classes of the evaluation's phase; the next sizes are of evaluations too."""
    num_novel: int
    num_queries: int
    num_synthetic: int
    num_linear_steps: int
    num_timed_steps: int
    """Iterations of one timed call."""

    num_clusters: int
    """Of each base class, for analogies; the next two are sizes that their cost is measured at."""
    clusters: tuple[int, ...]
    classes: tuple[int, ...]

    def training(self, **settings: Any) -> TrainConfig:
        """Return the configuration of meta-training at this scale, or with other settings."""
        sizes = {
            "num_ways": self.num_ways,
            "episode_shots": (self.num_shots,),
            "batch_size": self.batch_size,
            "hidden_dim": self.hidden_dim,
            "noise_dim": self.noise_dim,
            "num_covariance_classes": self.num_covariance_classes,
            "ky_fan_order": self.ky_fan_order,
        }
        return TrainConfig(**{**sizes, **settings})


SCALES = {
    # ImageNet as the paper has it: 800 base examples translated to each of 20 classes.
    "paper": Scale(
        name="paper",
        num_dims=512,
        num_classes=389,
        num_ways=20,
        num_shots=10,
        batch_size=1_000,
        hidden_dim=512,
        noise_dim=100,
        num_covariance_classes=32,
        ky_fan_order=10,
        dims=(128, 256, 512),
        covariance_classes=(8, 32, 128),
        orders=(1, 5, 10, 20),
        batch_sizes=(300, 1_000, 2_000),
        repeats=11,
        most_seconds=2.5,
        num_base=196,
        num_novel=311,
        num_queries=25_350,
        num_synthetic=500,
        num_linear_steps=10_000,
        num_timed_steps=500,
        num_clusters=100,
        clusters=(25, 50, 100),
        classes=(97, 194, 389),
    ),
    # The built-in features as they are.
    "slice": Scale(
        name="slice",
        num_dims=512,
        num_classes=76,
        num_ways=20,
        num_shots=10,
        batch_size=300,
        hidden_dim=512,
        noise_dim=100,
        num_covariance_classes=32,
        ky_fan_order=10,
        dims=(128, 256, 512),
        covariance_classes=(8, 32, 56),
        orders=(1, 5, 10, 20),
        batch_sizes=(250, 300, 600),
        repeats=7,
        most_seconds=10.0,
        num_base=40,
        num_novel=56,
        num_queries=4_800,
        num_synthetic=100,
        num_linear_steps=200,
        num_timed_steps=20,
        num_clusters=20,
        clusters=(10, 20, 30),
        classes=(19, 38, 76),
    ),
    # Seconds on two cores: whether the commands work, not what they find.
    "small": Scale(
        name="small",
        num_dims=64,
        num_classes=30,
        num_ways=5,
        num_shots=5,
        batch_size=65,
        hidden_dim=64,
        noise_dim=16,
        num_covariance_classes=8,
        ky_fan_order=10,
        dims=(48, 64),
        covariance_classes=(4, 8),
        orders=(5, 10),
        batch_sizes=(45, 65),
        repeats=3,
        most_seconds=1.0,
        num_base=10,
        num_novel=10,
        num_queries=400,
        num_synthetic=20,
        num_linear_steps=20,
        num_timed_steps=5,
        num_clusters=6,
        clusters=(4, 6),
        classes=(5, 30),
    ),
}


@lru_cache(maxsize=1)  # one: what else lay on the GPU would count as memory of what is measured
def training_data(scale: Scale, num_dims: int, ky_fan_order: int, device: str) -> TrainingData:
    """Return base classes of a scale, normalised, with their covariances.

    The draw of further classes has a seed of its own: every run measures the same data.

    Args:
        scale: How many classes.
        num_dims: D; the first so many of a real feature's numbers.
        ky_fan_order: What the covariances are prepared for.
        device: Where they go.
    """
    classes = [rows[:, :num_dims] for rows in real_classes(scale.num_classes)]
    counts = torch.tensor([len(rows) for rows in classes], device=device)
    base = BaseSet(torch.cat(classes).to(device), counts)
    config = scale.training(ky_fan_order=ky_fan_order)
    return TrainingData.prepare(base, config, with_covariances=True)


def real_classes(num_classes: int) -> list[Tensor]:
    """Return train rows of base classes, each (rows, 512): the built-in ones, then mixed ones.

    A class beyond the built-in ones is a random half of a real class's examples, moved half of the
    way to the mean of another: its covariance is that of real examples, its place is between two
    real classes, and no two are the same. No row of a novel class, nor of a test partition, is
    read.
    """
    table, split = builtin_features()
    names = split.base_classes(VALIDATION_PHASE)  # of both phases: what generators are trained on
    real = [table.gather(table.rows_of(name, TRAIN)).float() for name in names]
    is_positive = all(bool((rows >= 0).all()) for rows in real)
    means = [rows.mean(dim=0) for rows in real]
    rng = new_rng(_WORD_OF_CLASSES)
    classes = real[:num_classes]
    while len(classes) < num_classes:
        one, other = torch.randperm(len(real), generator=rng)[:2].tolist()
        half = torch.randperm(len(real[one]), generator=rng)[: len(real[one]) // 2]
        rows = real[one][half] + (means[other] - means[one]) / 2
        # After a ReLU no feature is negative, and generators end in one where that is so.
        classes.append(rows.clamp(min=0) if is_positive else rows)
    return classes

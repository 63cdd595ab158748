"""Sizes of the measurements, and data of those sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.data.builtin import builtin_features
from cpaan.data.table import TRAIN
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import TrainingData
from cpaan.protocol.tasks import BaseSet

_WORD_OF_CLASSES = 1  # fixed seed, so that every run measures the same data


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of all measurements at one scale."""

    name: str
    num_dims: int
    num_classes: int
    """Base classes of meta-training."""
    training: TrainConfig
    varied: Mapping[str, tuple[int, ...]]
    """Other sizes at which the cost is measured, one changed at a time."""
    repeats: int
    most_seconds: float
    """Time limit for all measured calls of one function."""

    num_base: int
    """Base classes of the evaluated phase; the sizes below also apply to evaluations."""
    num_novel: int
    num_queries: int
    num_synthetic: int
    num_linear_steps: int
    num_timed_steps: int
    """Iterations per timed call."""


_VARIED = {"num_dims": (128, 256, 512), "ky_fan_order": (1, 5, 10, 20)}
SCALES = {
    # ImageNet as in the paper: 800 base examples translated to 20 classes.
    "paper": Scale(
        name="paper",
        num_dims=512,
        num_classes=389,
        training=TrainConfig(episode_shots=(10,)),
        varied={
            "num_covariance_classes": (8, 32, 128),
            "batch_size": (300, 1_000, 2_000),
            **_VARIED,
        },
        repeats=11,
        most_seconds=2.5,
        num_base=196,
        num_novel=311,
        num_queries=25_350,
        num_synthetic=500,
        num_linear_steps=10_000,
        num_timed_steps=500,
    ),
    # The built-in features without changes.
    "slice": Scale(
        name="slice",
        num_dims=512,
        num_classes=76,
        training=TrainConfig(episode_shots=(10,), batch_size=300),
        varied={
            "num_covariance_classes": (8, 32, 56),
            "batch_size": (250, 300, 600),
            **_VARIED,
        },
        repeats=7,
        most_seconds=10.0,
        num_base=40,
        num_novel=56,
        num_queries=4_800,
        num_synthetic=100,
        num_linear_steps=200,
        num_timed_steps=20,
    ),
    # Takes seconds on two cores, to check that the commands work.
    "small": Scale(
        name="small",
        num_dims=64,
        num_classes=30,
        training=TrainConfig(
            num_ways=5,
            episode_shots=(5,),
            batch_size=65,
            hidden_dim=64,
            noise_dim=16,
            num_covariance_classes=8,
        ),
        varied={
            "num_covariance_classes": (4, 8),
            "batch_size": (45, 65),
            "num_dims": (48, 64),
            "ky_fan_order": (5, 10),
        },
        repeats=3,
        most_seconds=1.0,
        num_base=10,
        num_novel=10,
        num_queries=400,
        num_synthetic=20,
        num_linear_steps=20,
        num_timed_steps=5,
    ),
}


@lru_cache(maxsize=1)  # other data on the GPU would count as memory of the measured function
def training_data(num_classes: int, num_dims: int, ky_fan_order: int, device: str) -> TrainingData:
    """Return normalised base classes with covariances, of the first ``num_dims`` dimensions."""
    base = real_base(num_classes, num_dims, device)
    config = TrainConfig(ky_fan_order=ky_fan_order)
    return TrainingData.prepare(base, config, with_covariances=True)


def real_base(num_classes: int, num_dims: int, device: torch.device | str = "cpu") -> BaseSet:
    """Return the first ``num_dims`` dimensions of `real_classes`."""
    classes = [rows[:, :num_dims] for rows in real_classes(num_classes)]
    counts = torch.tensor([len(rows) for rows in classes], device=device)
    return BaseSet(torch.cat(classes).to(device), counts)


def real_classes(num_classes: int) -> list[Tensor]:
    """Return train rows of base classes, shape (rows, 512): built-in classes, then mixed ones.

    A mixed class is a random half of a real class's examples, shifted half of the way to the mean
    of another class. It has the covariance of real examples and lies between two real classes. Rows
    of novel classes and test partitions are not read.
    """
    table, split = builtin_features()
    names = split.base_classes()  # of both phases, as in training
    real = [table.gather(table.rows_of(name, TRAIN)).float() for name in names]
    is_positive = all(bool((rows >= 0).all()) for rows in real)
    means = [rows.mean(dim=0) for rows in real]
    rng = new_rng(_WORD_OF_CLASSES)
    classes = real[:num_classes]
    while len(classes) < num_classes:
        one, other = torch.randperm(len(real), generator=rng)[:2].tolist()
        half = torch.randperm(len(real[one]), generator=rng)[: len(real[one]) // 2]
        rows = real[one][half] + (means[other] - means[one]) / 2
        # Features after a ReLU are not negative, and generators for them end in a ReLU.
        classes.append(rows.clamp(min=0) if is_positive else rows)
    return classes

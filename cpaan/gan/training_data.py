"""What meta-training knows of the base classes, and which settings suit them.

Shapes: C = base classes, D = feature dimension.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariances, spectra
from cpaan.protocol.neighbours import check_neighbours
from cpaan.protocol.tasks import BaseSet


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Normalised base examples, and what is constant about their classes."""

    base: BaseSet
    scale: float
    """What normalised features are multiplied by to be features again."""
    unit_norm: bool
    spectra: Spectra | None
    """None where no covariance is asked for."""
    fingerprint: str
    """Of the examples before they were normalised."""

    @classmethod
    def prepare(
        cls,
        base: BaseSet,
        config: TrainConfig,
        *,
        with_covariances: bool,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Normalise base examples and compute their covariances.

        Classes are put in the order of their names: the phases put their own classes first, but
        they share all base classes, and so should they share what was trained on them.
        """
        by_class = base.by_class()
        raw = torch.cat([by_class[number] for number in base.order])
        unit_norm = config.normalisation == "unit-norm"
        if unit_norm:
            scale = base.mean_norm
            features = normalize(raw.to(dtype), dim=-1)
        else:
            scale = base.variance**0.5 if config.normalisation == "spread" else 1.0
            features = raw.to(dtype) / scale
        if not math.isfinite(scale):
            raise ValueError("the features are too large: their squares are beyond all numbers")
        counts = base.counts[torch.tensor(base.order, device=base.counts.device)]
        normalised = BaseSet(features, counts, [base.names[number] for number in base.order])
        every = None
        if with_covariances:
            matrices = torch.stack([covariances(rows) for rows in normalised.by_class()])
            every = spectra(matrices, config.ky_fan_order)
        return cls(
            base=normalised,
            scale=scale,
            unit_norm=unit_norm,
            spectra=every,
            fingerprint=base.fingerprint,
        )

    def normalise(self, features: Tensor) -> Tensor:
        """Return features, shape (..., D), as the networks want them."""
        features = features.to(self.base.features.dtype)
        return normalize(features, dim=-1) if self.unit_norm else features / self.scale

    @property
    def is_positive(self) -> bool:
        """Whether no feature is negative."""
        return bool((self.base.features >= 0).all())


def check_training(
    config: TrainConfig, counts: Tensor, num_dims: int, *, with_covariances: bool = True
) -> None:
    """Refuse settings that do not suit the base classes.

    Args:
        config: The settings.
        counts: Examples of each base class, shape (C,).
        num_dims: D.
        with_covariances: Whether covariances will be compared.

    Raises:
        ValueError: With the setting and both numbers.
    """
    num_base = len(counts)
    if num_base - config.num_ways < 2:
        raise ValueError(
            f"num_ways is {config.num_ways}, but of {num_base} base classes at least 2 must be "
            "left as meta-base classes (--set num_ways=...)"
        )
    smallest = int(counts.min())
    if config.max_shots > smallest:
        raise ValueError(
            f"episode_shots go up to {config.max_shots}, but the smallest base class has "
            f"{smallest} examples (--set episode_shots=...)"
        )
    if with_covariances and config.ky_fan_order > num_dims:
        raise ValueError(
            f"ky_fan_order is {config.ky_fan_order}, but features have {num_dims} dimensions "
            "(--set ky_fan_order=...)"
        )
    check_neighbours(config, num_base - config.num_ways)

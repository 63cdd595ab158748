"""Small training runs of the GANs."""

from collections.abc import Callable

import torch

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import MetaEpisodes, TrainingData
from cpaan.gan.gans import GANS
from cpaan.gan.loop import TrainingRun
from cpaan.protocol.tasks import BaseSet
from cpaan.training.workers import ALONE, Workers

SMALL = TrainConfig(
    num_ways=3,
    episode_shots=(1, 2),
    batch_size=20,
    hidden_dim=12,
    perplexity=3.0,
    noise_dim=3,
    num_components=4,
    ky_fan_order=2,
    num_covariance_classes=4,
    generator_learning_rate=1e-3,
    discriminator_learning_rate=1e-3,
)


def small_base(seed: int = 0) -> BaseSet:
    """Return eight classes of twelve rows, with enough dimensions for the code of wide spaces."""
    means = 3 * torch.randn(8, 1, 24, generator=new_rng(seed), dtype=torch.float64)
    rows = means + torch.randn(8, 12, 24, generator=new_rng(seed, 1), dtype=torch.float64)
    return BaseSet(rows.flatten(0, 1), torch.full((8,), 12))


def new_run(
    name: str = "cCov-GAN",
    seed: int = 0,
    base: BaseSet | None = None,
    dtype: torch.dtype = torch.float64,
    workers: Workers = ALONE,
    engine: Callable[..., TrainingRun] = TrainingRun,
    **settings: object,
) -> TrainingRun:
    config, gan = SMALL.with_overrides(settings), GANS[name]
    data = TrainingData.prepare(
        base or small_base(), config, with_covariances=gan.has_covariance, dtype=dtype
    )
    return engine(gan, MetaEpisodes(data, config), config, new_rng(seed), workers)


def tiny_config(**settings: object) -> TrainConfig:
    """Return settings for `tiny_data`: two ways, two shots and eight meta-base examples."""
    small = {"num_ways": 2, "episode_shots": (2,), "batch_size": 12, "perplexity": 2.0}
    sizes = {"hidden_dim": 6, "noise_dim": 3, "num_components": 4, "ky_fan_order": 2}
    return TrainConfig(**{**small, **sizes, **settings})


def tiny_data(config: TrainConfig, *, is_positive: bool = False) -> TrainingData:
    """Return seven classes of five examples in five dimensions."""
    features = torch.randn(35, 5, generator=new_rng(0), dtype=torch.float64)
    base = BaseSet(features.abs() if is_positive else features, torch.full((7,), 5))
    return TrainingData.prepare(base, config, with_covariances=True, dtype=torch.float64)

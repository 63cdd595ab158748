"""The paper's toy experiment: the four GANs on a spiral in the plane.

With only two base classes, neither can act as a novel class, so there is no meta-training. Every
GAN is trained directly to translate the base arms to the novel arms, given four of their points.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import covariances, ky_fan_norm
from cpaan.gan.episodes import EpisodeClasses, Episodes, TrainingData
from cpaan.gan.gans import GANS, check_objective
from cpaan.gan.loop import TrainingRun
from cpaan.protocol.augmentation import mean_pairwise_distance
from cpaan.protocol.neighbours import check_neighbours
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from cpaan.training.drive import train_to_end

SPIRAL_CONFIG = replace(
    TrainConfig.faithful(),
    num_episodes=1_000,
    num_ways=2,
    episode_shots=(4,),
    batch_size=208,
    perplexity=1.3,
    hidden_dim=128,
    noise_dim=2,
    num_components=10,
    ky_fan_order=2,
    generator_learning_rate=1e-3,
)
"""The paper's method in two dimensions, with sizes that were chosen before any result was known."""


@dataclass(frozen=True, eq=False)
class Spiral:
    """Four arms of a spiral in the plane; methods are given a few points of the novel arms."""

    base: Tensor  # (2, examples, 2): top and bottom
    novel: Tensor  # (2, examples, 2): left and right, the ground truth
    shots: Tensor  # (2, shots, 2): some of the novel points


def draw_points(seed: int) -> Spiral:
    """Draw the paper's toy data set: 300 points per arm, and four shots.

    The paper does not give its geometry. Here the bottom arm mirrors the top arm, so that their
    covariances differ. The left arm resembles the top arm and is nearer to it, the right arm the
    bottom arm. Both are slightly larger, so that related covariances are nearly equal.
    """
    rng, num_examples = new_rng(seed, 3), 300

    def arm(mirror: float, size: float, centre: tuple[float, float]) -> Tensor:
        along = torch.rand(num_examples, generator=rng, dtype=torch.float64)
        angle = 1.25 * torch.pi * along  # makes the longest axis oblique to both coordinates
        radius = size * (0.4 + 1.6 * along)
        points = torch.stack([mirror * radius * angle.cos(), radius * angle.sin()], dim=1)
        noise = torch.randn(num_examples, 2, generator=rng, dtype=torch.float64)
        return points + 0.08 * noise + torch.tensor(centre, dtype=torch.float64)

    base = torch.stack([arm(1, 1.0, (0.0, 3.5)), arm(-1, 1.0, (0.0, -3.5))])
    novel = torch.stack([arm(1, 1.05, (-3.5, 1.0)), arm(-1, 1.05, (3.5, -1.0))])
    # The points of an arm are already in random order.
    return Spiral(base=base, novel=novel, shots=novel[:, :4])


@dataclass(frozen=True, eq=False)
class SpiralOutcome:
    """The base points of a spiral, translated by one GAN."""

    translated: Tensor  # (2, examples, 2): base points, translated to the left and right arm
    returned: Tensor  # (2, examples, 2): the same points, translated back
    diversity_ratio: float
    """Mean distance between translated points of an arm over that of true points; mean of arms."""
    covariance_gap: float
    """Nuclear norm of translated minus true covariance over that of the true one; mean of arms."""


class SpiralEpisodes(Episodes):
    """Episodes with fixed normalised shots, shape (2, shots, 2), and random base points."""

    def __init__(self, data: TrainingData, shots: Tensor, config: TrainConfig) -> None:
        super().__init__(data, config)
        weights = torch.full_like(shots[0, :, 0], 1 / shots.shape[1])
        both = torch.arange(len(shots), device=shots.device)
        self._classes = EpisodeClasses(shots, weights, shots.mean(dim=1), shots, weights, both)

    def draw_classes(self, rng: torch.Generator) -> EpisodeClasses:
        """Return the fixed shots."""
        return self._classes


def run_spiral(
    name: str,
    points: Spiral,
    config: TrainConfig,
    seed: int,
    progress: Callable[[str], None] = lambda message: None,
) -> SpiralOutcome:
    """Train one of the four GANs on a spiral, and translate all base points with it.

    c-GAN has no reverse generator. As in the paper, a second c-GAN is trained for that direction.
    Its generator and discriminator are independent of those of the first.
    """
    for_training, for_sources, for_noise = (new_rng(seed, part) for part in range(3))
    num_arms, num_examples, num_dims = points.base.shape
    base = BaseSet(points.base.reshape(-1, num_dims).float(), torch.full((num_arms,), num_examples))
    gan = GANS[name]
    if not gan.has_cycle:
        gan, config = replace(gan, has_cycle=True), config.with_overrides({"cycle_weight": 0.0})
    data = TrainingData.prepare(base, config, with_covariances=gan.has_covariance)
    episodes = SpiralEpisodes(data, data.normalise(points.shots), config)
    run = TrainingRun(gan, episodes, config, for_training)
    train_to_end(run, progress=progress)

    def there_and_back(examples: Tensor, source: Tensor, target: Tensor) -> Tensor:
        translated = run.networks.base_to_novel(examples, source, target)
        noise = run.networks.noise(tuple(translated.shape[:-1]), for_noise, translated)
        returned = run.networks.novel_to_base(translated, target, source, noise)
        return torch.cat([translated, returned], dim=-1)

    task = LowShotTask(
        base=base,
        num_base=num_arms,
        shots=points.shots.float().unsqueeze(0),
        problems=(Problem(num_shots=points.shots.shape[1], draw=0),),
    )
    (both,) = data.synthesise(
        task, there_and_back, neighbours=config, num_synthetic=num_examples, rng=for_sources
    )
    translated, returned = both.double().split(num_dims, dim=-1)
    truth = covariances(points.novel)
    gap = ky_fan_norm(covariances(translated) - truth, num_dims) / ky_fan_norm(truth, num_dims)
    ratio = mean_pairwise_distance(translated) / mean_pairwise_distance(points.novel)
    return SpiralOutcome(translated, returned, float(ratio.mean()), float(gap.mean()))


def check_spiral(config: TrainConfig) -> None:
    """Raise ValueError if settings do not suit two base classes in the plane."""
    if config.ky_fan_order > 2:
        raise ValueError(
            f"ky_fan_order is {config.ky_fan_order}, but the plane has 2 dimensions; use 1 or 2"
        )
    check_neighbours(config, num_base=2)
    for gan in GANS.values():
        check_objective(gan, config)


def to_plain(points: Spiral, outcomes: Mapping[str, SpiralOutcome]) -> dict[str, Any]:
    """Convert a spiral and its translations to JSON-compatible data, rounded for a figure."""

    def plain(part: Spiral | SpiralOutcome) -> dict[str, Any]:
        return {
            name: value.round(decimals=3).tolist() if isinstance(value, Tensor) else value
            for name, value in vars(part).items()
        }

    return {**plain(points), "outcomes": {name: plain(of) for name, of in outcomes.items()}}

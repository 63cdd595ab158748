"""The paper's four GANs and their networks.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension; (N, M) are pairs of a
class and an example translated into it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Direction, Episode, TrainingData
from cpaan.gan.networks import Discriminator, Generator
from cpaan.gan.noise import GaussianNoise, MixtureNoise


@dataclass(frozen=True)
class Gan:
    """One of the paper's four GANs: the terms of its objective, and the noise of G_b."""

    name: str
    has_cycle: bool = False
    """Whether it has the reverse generator G_b, its discriminator D_b and the cycle term."""
    noise: str | None = None
    """Either "gaussian" or "mixture"; None for the configured noise."""
    has_covariance: bool = False


GANS = {
    gan.name: gan
    for gan in (
        Gan("c-GAN"),
        Gan("cCyc-GAN", has_cycle=True, noise="gaussian"),
        Gan("cDeLi-GAN", has_cycle=True, noise="mixture"),
        Gan("cCov-GAN", has_cycle=True, has_covariance=True),
    )
}


def check_objective(gan: Gan, config: TrainConfig) -> None:
    """Raise ValueError if all weights of the generators' terms are zero."""
    weights = ["adversarial_weight", "prototype_weight"]
    weights += ["cycle_weight"] * gan.has_cycle + ["covariance_weight"] * gan.has_covariance
    if not any(getattr(config, name) for name in weights):
        names = ", ".join(weights)
        raise ValueError(f"{gan.name} has no loss: {names} are all zero; set at least one above 0")


class Translations(NamedTuple):
    """The pairs of an episode, translated to novel classes and, with a cycle, to base classes."""

    to_novel: Direction
    translated: Tensor  # (N, M, D) base examples, translated by G_n
    to_base: Direction | None = None
    returned: Tensor | None = None  # (N, M, D) shots, translated by G_b


class Networks(nn.Module):
    """All networks of one GAN: G_n, D_n and, for a GAN with a cycle, G_b and D_b."""

    def __init__(
        self, gan: Gan, data: TrainingData, config: TrainConfig, rng: torch.Generator
    ) -> None:
        """Draw the initial weights from an ``rng`` on the CPU."""
        super().__init__()
        features, is_positive = data.base.features, data.is_positive
        num_dims, noise_dim = features.shape[1], config.noise_dim
        self.gan = gan
        self.base_to_novel = Generator(num_dims, 0, config, is_positive, rng)  # G_n
        self.novel_discriminator = Discriminator(num_dims, config, rng)  # D_n
        if gan.has_cycle:
            is_mixture = (gan.noise or config.noise) == "mixture"
            self.noise = MixtureNoise(config, rng) if is_mixture else GaussianNoise(noise_dim)
            self.novel_to_base = Generator(num_dims, noise_dim, config, is_positive, rng)  # G_b
            self.base_discriminator = Discriminator(num_dims, config, rng)  # D_b
        self.to(device=features.device, dtype=features.dtype)

    def generator_parameters(self) -> list[nn.Parameter]:
        """Return the weights of the generators, including the mixture of G_b."""
        parts: list[nn.Module] = [self.base_to_novel]
        if self.gan.has_cycle:
            parts += [self.novel_to_base, self.noise]
        return [parameter for part in parts for parameter in part.parameters()]

    def discriminator_parameters(self) -> list[nn.Parameter]:
        """Return the weights of the discriminators."""
        parts = [self.novel_discriminator]
        if self.gan.has_cycle:
            parts.append(self.base_discriminator)
        return [parameter for part in parts for parameter in part.parameters()]

    def translate(self, episode: Episode, rng: torch.Generator) -> Translations:
        """Translate the pairs of an episode; ``rng`` draws the noise of G_b."""
        to_novel = episode.to_novel()
        translated = self.base_to_novel(to_novel.examples, to_novel.source, to_novel.target)
        if not self.gan.has_cycle:
            return Translations(to_novel, translated)
        to_base = episode.to_base()
        noise = self.draw_noise(to_base, rng)
        returned = self.novel_to_base(to_base.examples, to_base.source, to_base.target, noise)
        return Translations(to_novel, translated, to_base, returned)

    def draw_noise(self, direction: Direction, rng: torch.Generator) -> Tensor:
        """Draw the noise of G_b for every pair, shape (N, M, Z)."""
        return self.noise(tuple(direction.weights.shape), rng, like=direction.examples)

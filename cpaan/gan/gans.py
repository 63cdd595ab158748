"""The paper's four GANs and their networks.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension; (N, M) are pairs of a
class and an example translated into it.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episode, TrainingData
from cpaan.gan.fast.kernels import kernels_for
from cpaan.gan.networks import Answers, Chosen, Discriminator, Generator, Projected
from cpaan.gan.noise import GaussianNoise, MixtureNoise

SideStream = Callable[[], AbstractContextManager[None]]
"""Context for work that a GPU may do concurrently; see `cpaan.core.devices.Beside`."""


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
    """Examples of an episode as inputs of the networks, and their translations."""

    novel: Tensor  # (N, 1, D) prototypes
    base: Tensor  # (1, M, D) prototypes
    examples: Tensor  # (1, M, D) of base classes
    partners: Chosen  # (N, M, D) shots
    translated: Tensor  # (N, M, D) base examples translated to every novel class
    returned: Tensor | None  # (N, M, D) shots translated by G_b to the base class of a pair
    judged: tuple[Tensor, Tensor | None]  # the same two for adversarial terms
    cycled: tuple[Tensor, Tensor | None]  # and for cycles
    to_novel: Projected | None  # prototypes for G_n, see `Generator.project`
    to_base: Projected | None  # the same for G_b


class Networks(nn.Module):
    """All networks of one GAN: G_n, D_n and, with a reverse generator, G_b and D_b."""

    def __init__(
        self,
        gan: Gan,
        data: TrainingData,
        config: TrainConfig,
        rng: torch.Generator,
        *,
        with_reverse_generator: bool = False,
    ) -> None:
        """Draw the initial weights from an ``rng`` on the CPU.

        A GAN without a cycle has a reverse generator only if it is requested.
        """
        super().__init__()
        features, is_positive = data.base.features, data.is_positive
        num_dims, noise_dim = features.shape[1], config.noise_dim
        self.base_to_novel = Generator(num_dims, 0, config, is_positive, rng)  # G_n
        self.novel_discriminator = Discriminator(num_dims, config, rng)  # D_n
        self.has_reverse_generator = gan.has_cycle or with_reverse_generator
        if self.has_reverse_generator:
            is_mixture = (gan.noise or config.noise) == "mixture"
            self.noise = MixtureNoise(config, rng) if is_mixture else GaussianNoise(noise_dim)
            self.novel_to_base = Generator(num_dims, noise_dim, config, is_positive, rng)  # G_b
            self.base_discriminator = Discriminator(num_dims, config, rng)  # D_b
        self.to(device=features.device, dtype=features.dtype)
        is_mixed = kernels_for("pairs", features) is not None and config.precision == "mixed"
        self.row_dtype = torch.bfloat16 if is_mixed else features.dtype

    def generator_parameters(self) -> list[nn.Parameter]:
        """Return the weights of the generators, including the mixture of G_b."""
        parts: list[nn.Module] = [self.base_to_novel]
        if self.has_reverse_generator:
            parts += [self.novel_to_base, self.noise]
        return [parameter for part in parts for parameter in part.parameters()]

    def discriminator_parameters(self) -> list[nn.Parameter]:
        """Return the weights of the discriminators."""
        parts = [self.novel_discriminator]
        if self.has_reverse_generator:
            parts.append(self.base_discriminator)
        return [parameter for part in parts for parameter in part.parameters()]

    def translate(
        self, episode: Episode, rng: torch.Generator, beside: SideStream = nullcontext
    ) -> Translations:
        """Translate every base example to every novel class, and a shot of each pair in reverse.

        The reverse direction may run concurrently, in the context ``beside``.
        """
        novel = episode.novel_prototypes.unsqueeze(1)
        base = episode.base_prototypes[episode.sources]
        examples = episode.base_examples.to(self.row_dtype)
        partners = Chosen(episode.shots.to(self.row_dtype), episode.partners)
        returned: Sequence[Tensor | None] = [None] * 3
        to_base: Projected | None = None
        if self.has_reverse_generator:
            with beside():
                noise = self.noise(tuple(episode.weights.shape), rng, examples)
                to_base = self.novel_to_base.project(novel, base)
                returned = self.novel_to_base.translate_for(
                    3, partners, novel, base, noise, to_base
                )
        to_novel = self.base_to_novel.project(base, novel)
        translated = self.base_to_novel.translate_for(3, examples, base, novel, projected=to_novel)
        own, judged, cycled = zip(translated, returned, strict=True)
        return Translations(
            novel, base, examples, partners, *own, judged, cycled, to_novel, to_base
        )

    def answers(self, episode: Episode) -> tuple[Answers, Answers | None]:
        """Return the answers of D_n and, with a reverse generator, of D_b.

        Those of D_n are the novel classes, and fake; those of D_b are the classes of the batch's
        examples, and fake.
        """
        novel = self.novel_discriminator.answers(episode.novel_prototypes)
        if not self.has_reverse_generator:
            return novel, None
        is_present = torch.zeros_like(episode.base_classes, dtype=torch.bool)
        is_present = is_present.index_fill(0, episode.sources.flatten(), True)
        return novel, self.base_discriminator.answers(episode.base_prototypes, is_present)

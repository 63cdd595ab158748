"""The paper's four GANs: their networks, and their objectives as sums of terms.

Shapes: N = meta-novel classes, M = meta-base examples, C = base classes, D = feature dimension;
(N, M) are pairs of a class and an example translated into it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpaan.config import TrainConfig
from cpaan.episodes import Episode
from cpaan.networks import Discriminator, Generator
from cpaan.noise import make_noise
from cpaan.objectives import (
    FAKE,
    choose_covariance_classes,
    covariance_loss,
    cycle_loss,
    discriminator_loss,
    generator_loss,
    prototype_loss,
)
from cpaan.training_data import TrainingData

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Gan:
    """One of the paper's four: which terms its objective has, and the noise of G_b."""

    name: str
    has_cycle: bool = False
    """Whether there is a way back, G_b against D_b, and the cycle term with it."""
    noise: str | None = None
    """Either "gaussian" or "mixture"; None: as configured."""
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


def generator_objective(terms: Terms, config: TrainConfig) -> Tensor:
    """Return what the generators minimise; terms that a GAN lacks are zero.

    c-GAN is the first term; cCyc-GAN and cDeLi-GAN add the second and the cycle; cCov-GAN adds
    the covariance. The prototype term, of the weight zero in the paper, is ours.
    """
    return (
        config.adversarial_weight * (terms["novel_adversarial"] + terms["base_adversarial"])
        + config.cycle_weight * terms["cycle"]
        + config.covariance_weight * terms["covariance"]
        + config.prototype_weight * terms["prototype"]
        + config.noise_penalty * terms["noise_penalty"]
    )


def check_objective(gan: Gan, config: TrainConfig) -> None:
    """Refuse weights that leave the generators nothing to learn.

    Raises:
        ValueError: With the weights that are zero.
    """
    weights = ["adversarial_weight", "prototype_weight"]
    weights += ["cycle_weight"] * gan.has_cycle + ["covariance_weight"] * gan.has_covariance
    if not any(getattr(config, name) for name in weights):
        raise ValueError(f"{gan.name} has nothing to learn: {', '.join(weights)} are all zero")


def discriminator_objective(terms: Terms) -> Tensor:
    """Return what the discriminators minimise."""
    return terms["novel_discriminator"] + terms["base_discriminator"]


class Translations(NamedTuple):
    """An episode's examples in the other kind of class."""

    novel: Tensor  # (N, 1, D) prototypes
    base: Tensor  # (1 or N, M, D) prototypes
    translated: Tensor  # (N, M, D) base examples in every novel class
    returned: Tensor | None  # (N, M, D) shots in the base class of every pair; None: no way back


class Networks(nn.Module):
    """All networks of one GAN: G_n, D_n and, where there is a way back, G_b and D_b."""

    def __init__(
        self,
        gan: Gan,
        data: TrainingData,
        config: TrainConfig,
        rng: torch.Generator,
        *,
        has_way_back: bool,
    ) -> None:
        """Draw their weights; ``rng`` is on the CPU."""
        super().__init__()
        num_base, num_dims = data.base.prototypes.shape
        is_positive = data.is_positive
        self.base_to_novel = Generator(num_dims, 0, config, is_positive, rng)  # G_n
        self.novel_discriminator = Discriminator(num_dims, num_base, config, rng)  # D_n
        self.has_way_back = has_way_back
        if has_way_back:
            self.noise = make_noise(gan.noise or config.noise, config, rng)
            self.novel_to_base = Generator(num_dims, config.noise_dim, config, is_positive, rng)
            self.base_discriminator = Discriminator(num_dims, num_base, config, rng)  # D_b
        self.to(device=data.base.features.device, dtype=data.base.features.dtype)

    def of_generators(self) -> list[nn.Parameter]:
        """Return what the generators' optimiser trains; the mixture is a part of G_b."""
        parts: list[nn.Module] = [self.base_to_novel]
        if self.has_way_back:
            parts += [self.novel_to_base, self.noise]
        return [parameter for part in parts for parameter in part.parameters()]

    def of_discriminators(self) -> list[nn.Parameter]:
        """Return what the discriminators' optimiser trains."""
        parts = [self.novel_discriminator]
        if self.has_way_back:
            parts.append(self.base_discriminator)
        return [parameter for part in parts for parameter in part.parameters()]

    def translate(self, episode: Episode, rng: torch.Generator) -> Translations:
        """Translate every base example to every novel class, and a shot of each the other way."""
        novel = episode.novel_prototypes.unsqueeze(1)
        base = episode.base_prototypes[episode.sources]
        translated = self.base_to_novel(episode.base_examples, base, novel)
        returned = None
        if self.has_way_back:
            noise = self.noise(tuple(episode.weights.shape), rng, translated)
            returned = self.novel_to_base(episode.partners, novel, base, noise)
        return Translations(novel, base, translated, returned)

    def novel_answers(self, episode: Episode, examples: Tensor) -> Tensor:
        """Return what D_n says of examples: log-probabilities, shape (..., N + 1)."""
        return self.novel_discriminator(examples, episode.novel_classes, episode.novel_prototypes)

    def base_answers(self, episode: Episode, examples: Tensor) -> Tensor:
        """Return what D_b says of examples, shape (..., C - N + 1).

        Only classes that the episode's batch has examples of can be the answer.
        """
        is_present = torch.zeros_like(episode.base_classes, dtype=torch.bool)
        is_present = is_present.index_fill(0, episode.sources.flatten(), True)
        return self.base_discriminator(
            examples, episode.base_classes, episode.base_prototypes, is_present
        )


def discriminator_terms(networks: Networks, episode: Episode, moved: Translations) -> Terms:
    """Return the discriminators' losses, on translations as they are: no gradient reaches those."""
    num_novel = len(episode.weights)
    real = _of_labels(networks.novel_answers(episode, episode.real), _novel_labels(episode))
    fake = networks.novel_answers(episode, moved.translated.detach())[..., FAKE]
    terms = {
        "novel_discriminator": discriminator_loss(
            real, episode.real_weights / num_novel, fake, episode.weights / num_novel
        )
    }
    if moved.returned is not None:
        real = _of_labels(networks.base_answers(episode, episode.base_examples), episode.sources)
        fake = networks.base_answers(episode, moved.returned.detach())[..., FAKE]
        real_weights = torch.full_like(real, 1 / real.numel())
        terms["base_discriminator"] = discriminator_loss(
            real, real_weights, fake, episode.back_weights
        )
    return terms


def generator_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    moved: Translations,
    data: TrainingData,
    config: TrainConfig,
    rng: torch.Generator,
) -> Terms:
    """Return the terms of a GAN's generators, without their weights.

    Terms of the weight zero are left out: some cost a lot.
    """
    terms: Terms = {}
    translated, returned = moved.translated, moved.returned
    weights = episode.weights / len(episode.weights)  # a mean over novel classes
    if config.adversarial_weight:
        terms["novel_adversarial"] = generator_loss(
            networks.novel_answers(episode, translated),
            _novel_labels(episode),
            weights,
            config.generator_loss,
        )
        if returned is not None:
            terms["base_adversarial"] = generator_loss(
                networks.base_answers(episode, returned),
                episode.sources,
                episode.back_weights,
                config.generator_loss,
            )
    if gan.has_cycle and config.cycle_weight:
        noise = networks.noise(tuple(weights.shape), rng, translated)
        if config.cycle_noise == "forward":
            noise = torch.zeros_like(noise)
        novel_again = networks.base_to_novel(returned, moved.base, moved.novel)
        base_again = networks.novel_to_base(translated, moved.novel, moved.base, noise)
        terms["cycle"] = cycle_loss(novel_again, episode.partners, weights) + cycle_loss(
            base_again, episode.base_examples, weights
        )
    if gan.has_covariance and config.covariance_weight:
        assert data.spectra is not None
        spectra, classes, scores, left_out = choose_covariance_classes(
            episode, data.spectra, config, rng
        )
        terms["covariance"] = covariance_loss(
            translated, episode.sample_weights, spectra, classes, scores, config
        )
        terms["similarity_left_out"] = left_out
    if config.prototype_weight:
        terms["prototype"] = prototype_loss(translated, episode.sample_weights, episode.class_means)
    if networks.has_way_back and config.noise_penalty:
        terms["noise_penalty"] = networks.noise.penalty()
    return terms


def _novel_labels(episode: Episode) -> Tensor:
    """Return the position of every novel class, shape (N, 1)."""
    return torch.arange(len(episode.weights), device=episode.weights.device).unsqueeze(1)


def _of_labels(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the log-probability of each example's own class, shape (...)."""
    labels = labels.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return log_probabilities.gather(-1, labels).squeeze(-1)

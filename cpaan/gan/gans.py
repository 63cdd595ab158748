"""The paper's four GANs: their networks, and their objectives as sums of terms.

Shapes: N = meta-novel classes, M = meta-base examples, C = base classes, D = feature dimension;
(N, M) are pairs of a class and an example translated into it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episode
from cpaan.gan.fast.dispatch import kernels_for
from cpaan.gan.fast.pair_ops import moments
from cpaan.gan.networks import Answers, Chosen, Discriminator, Generator
from cpaan.gan.noise import make_noise
from cpaan.gan.objectives import (
    choose_covariance_classes,
    covariance_loss,
    cycle_loss,
    prototype_loss,
)
from cpaan.gan.training_data import TrainingData

Terms = dict[str, Tensor]
Place = Callable[[], AbstractContextManager[None]]
"""Where something is computed; see `cpaan.core.devices.Beside`."""


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
        + config.cycle_weight * (terms["novel_cycle"] + terms["base_cycle"])
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
    """An episode's examples, as the networks take them and in the other kind of class."""

    novel: Tensor  # (N, 1, D) prototypes
    base: Tensor  # (1 or N, M, D) prototypes
    examples: Tensor  # (1 or N, M, D) of base classes
    partners: Chosen  # (N, M, D) shots
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
        features = data.base.features
        self.base_to_novel = Generator(num_dims, 0, config, is_positive, rng)  # G_n
        self.novel_discriminator = Discriminator(num_dims, num_base, config, rng)  # D_n
        self.has_way_back = has_way_back
        if has_way_back:
            self.noise = make_noise(gan.noise or config.noise, config, rng)
            self.novel_to_base = Generator(num_dims, config.noise_dim, config, is_positive, rng)
            self.base_discriminator = Discriminator(num_dims, num_base, config, rng)  # D_b
        self.to(device=features.device, dtype=features.dtype)
        is_mixed = kernels_for(features) is not None and config.precision == "mixed"
        self.row_dtype = torch.bfloat16 if is_mixed else features.dtype

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

    def translate(
        self, episode: Episode, rng: torch.Generator, beside: Place = nullcontext
    ) -> Translations:
        """Translate every base example to every novel class, and a shot of each the other way.

        The other way may be gone ``beside`` the first.
        """
        novel = episode.novel_prototypes.unsqueeze(1)
        base = episode.base_prototypes[episode.sources]
        examples = episode.base_examples.to(self.row_dtype)
        partners = Chosen(episode.shots.to(self.row_dtype), episode.partners)
        returned = None
        if self.has_way_back:
            with beside():
                noise = self.noise(tuple(episode.weights.shape), rng, examples)
                returned = self.novel_to_base(partners, novel, base, noise)
        translated = self.base_to_novel(examples, base, novel)
        return Translations(novel, base, examples, partners, translated, returned)

    def novel_answers(self, episode: Episode) -> Answers:
        """Return what D_n can say: one of the novel classes, or fake."""
        return self.novel_discriminator.answers(episode.novel_classes, episode.novel_prototypes)

    def base_answers(self, episode: Episode) -> Answers:
        """Return what D_b can say: a class that the batch has examples of, or fake."""
        is_present = torch.zeros_like(episode.base_classes, dtype=torch.bool)
        is_present = is_present.index_fill(0, episode.sources.flatten(), True)
        return self.base_discriminator.answers(
            episode.base_classes, episode.base_prototypes, is_present
        )


def discriminator_terms(
    networks: Networks, episode: Episode, moved: Translations, beside: Place = nullcontext
) -> Terms:
    """Return the discriminators' losses: the cross-entropy of telling classes and "fake" apart.

    It is -L_adv of the paper. Translations are taken as they are: no gradient reaches them. What
    is about base classes may be computed ``beside`` the rest.
    """
    terms: Terms = {}
    if moved.returned is not None:
        with beside():
            discriminator, answers = networks.base_discriminator, networks.base_answers(episode)
            weights = torch.ones_like(moved.base[..., 0]) / episode.sources.numel()
            real = discriminator.log_likelihood(moved.examples, answers, episode.sources, weights)
            fake = discriminator.log_likelihood(
                moved.returned.detach(), answers, None, episode.back_weights
            )
            terms["base_discriminator"] = -real - fake
    discriminator, answers = networks.novel_discriminator, networks.novel_answers(episode)
    num_novel = len(episode.weights)
    real = discriminator.log_likelihood(
        episode.real.to(networks.row_dtype),
        answers,
        _novel_labels(episode),
        episode.real_weights / num_novel,
    )
    fake = discriminator.log_likelihood(
        moved.translated.detach(), answers, None, episode.weights / num_novel
    )
    terms["novel_discriminator"] = -real - fake
    return terms


def moment_terms(
    gan: Gan,
    episode: Episode,
    moved: Translations,
    data: TrainingData,
    config: TrainConfig,
    rng: torch.Generator,
) -> Terms:
    """Return the generators' terms of translated classes' means and covariances.

    Like all terms, without their weights; those of the weight zero are left out.
    """
    terms: Terms = {}
    has_covariance = gan.has_covariance and bool(config.covariance_weight)
    if not has_covariance and not config.prototype_weight:
        return terms
    means, covariances = moments(
        moved.translated, episode.sample_weights, with_covariances=has_covariance
    )
    if config.prototype_weight:
        terms["prototype"] = prototype_loss(means, episode.class_means)
    if has_covariance:
        assert data.spectra is not None
        spectra, classes, scores, left_out = choose_covariance_classes(
            episode, data.spectra, config, rng
        )
        terms["covariance"] = covariance_loss(covariances, spectra, classes, scores, config)
        terms["similarity_left_out"] = left_out
    return terms


def pair_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    moved: Translations,
    config: TrainConfig,
    rng: torch.Generator,
    beside: Place = nullcontext,
) -> Terms:
    """Return the generators' terms of single pairs: adversaries and cycles; and the noise's own.

    What is about base classes may be computed ``beside`` the rest.
    """
    terms: Terms = {}
    translated, returned = moved.translated, moved.returned
    weights = episode.weights / len(episode.weights)  # a mean over novel classes
    if returned is not None:
        with beside():
            terms |= _base_terms(gan, networks, episode, moved, config, rng)
    if config.adversarial_weight:
        terms["novel_adversarial"] = _adversarial(
            networks.novel_discriminator,
            translated,
            networks.novel_answers(episode),
            _novel_labels(episode),
            weights,
            config,
        )
    if gan.has_cycle and config.cycle_weight:
        assert returned is not None
        novel_again = networks.base_to_novel(returned, moved.base, moved.novel)
        terms["novel_cycle"] = cycle_loss(novel_again, moved.partners, weights)
    return terms


def _base_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    moved: Translations,
    config: TrainConfig,
    rng: torch.Generator,
) -> Terms:
    """Return terms of what was translated to base classes, there and back."""
    terms: Terms = {}
    assert moved.returned is not None
    if config.adversarial_weight:
        terms["base_adversarial"] = _adversarial(
            networks.base_discriminator,
            moved.returned,
            networks.base_answers(episode),
            episode.sources,
            episode.back_weights,
            config,
        )
    if gan.has_cycle and config.cycle_weight:
        noise = networks.noise(tuple(episode.weights.shape), rng, moved.translated)
        if config.cycle_noise == "forward":
            noise = torch.zeros_like(noise)
        base_again = networks.novel_to_base(moved.translated, moved.novel, moved.base, noise)
        weights = episode.weights / len(episode.weights)
        terms["base_cycle"] = cycle_loss(base_again, moved.examples, weights)
    if config.noise_penalty:
        terms["noise_penalty"] = networks.noise.penalty(episode.weights)
    return terms


def _adversarial(
    discriminator: Discriminator,
    translated: Tensor,
    answers: Answers,
    labels: Tensor,
    weights: Tensor,
    config: TrainConfig,
) -> Tensor:
    """Return what a generator wants of a discriminator.

    The paper prints minimax: not to be called fake. That is the same whichever real class an
    example is then taken for, so nothing points to its own. Its text says "classifying the
    generated example as y_n": the class-directed loss does.
    """
    if config.generator_loss == "minimax":
        return discriminator.log_likelihood(translated, answers, None, weights)
    return -discriminator.log_likelihood(translated, answers, labels, weights)


def _novel_labels(episode: Episode) -> Tensor:
    """Return the position of every novel class, shape (N, 1)."""
    return torch.arange(len(episode.weights), device=episode.weights.device).unsqueeze(1)

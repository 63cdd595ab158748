"""The paper's objectives: one function per equation, and the weighted sums of their terms.

Terms are unweighted; terms with a weight of zero are omitted. Shapes: N = meta-novel classes, M =
meta-base examples, K = shots, D = feature dimension, L = base classes that a novel class is
compared with; (N, M) are pairs of a class and an example translated to it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariance_distances, covariances, weighted_mean
from cpaan.gan.episodes import Direction, Episode
from cpaan.gan.gans import Networks, Translations
from cpaan.gan.networks import Discriminator, Generator

Terms = dict[str, Tensor]

DISCRIMINATOR_WEIGHTS = {"novel_discriminator": 1.0, "base_discriminator": 1.0}


def generator_weights(config: TrainConfig) -> dict[str, float]:
    """Return the weights of the terms that the generators minimise.

    c-GAN has only the first term; cCyc-GAN and cDeLi-GAN add the second and the cycle; cCov-GAN
    adds the covariance. The prototype term is ours; its weight is zero in the paper's method.
    """
    return {
        "novel_adversarial": config.adversarial_weight,
        "base_adversarial": config.adversarial_weight,
        "novel_cycle": config.cycle_weight,
        "base_cycle": config.cycle_weight,
        "covariance": config.covariance_weight,
        "prototype": config.prototype_weight,
    }


def objective(terms: Terms, weights: Mapping[str, float]) -> Tensor:
    """Compute the weighted sum of terms, without those that a GAN lacks."""
    return torch.stack([weights[name] * terms[name] for name in weights if name in terms]).sum()


def discriminator_terms(networks: Networks, pairs: Translations) -> Terms:
    """Compute the terms that D_n and D_b minimise; translations are constant here."""
    to_novel, translated, to_base, returned = pairs
    novel = discriminator_loss(networks.novel_discriminator, to_novel, translated.detach())
    if to_base is None or returned is None:
        return {"novel_discriminator": novel}
    base = discriminator_loss(networks.base_discriminator, to_base, returned.detach())
    return {"novel_discriminator": novel, "base_discriminator": base}


def generator_terms(
    networks: Networks,
    episode: Episode,
    pairs: Translations,
    spectra: Spectra | None,
    config: TrainConfig,
    rng: torch.Generator,
) -> Terms:
    """Compute the terms that G_n and G_b minimise; ``rng`` draws the noise of the cycle."""
    to_novel, translated, to_base, returned = pairs
    terms: Terms = {}
    if config.adversarial_weight:
        terms["novel_adversarial"] = adversarial_loss(
            networks.novel_discriminator, to_novel, translated, config
        )
    if to_base is not None and returned is not None:
        if config.adversarial_weight:
            terms["base_adversarial"] = adversarial_loss(
                networks.base_discriminator, to_base, returned, config
            )
        if config.cycle_weight:
            noise = networks.draw_noise(to_novel, rng)
            # Both cycles have the weights of pairs of a novel class.
            terms["novel_cycle"] = cycle_loss(
                networks.base_to_novel, to_base, returned, None, to_novel.weights
            )
            terms["base_cycle"] = cycle_loss(
                networks.novel_to_base, to_novel, translated, noise, to_novel.weights
            )
    if networks.gan.has_covariance and config.covariance_weight:
        assert spectra is not None, "the GAN has a covariance term"
        of_translated = covariances(translated, episode.sample_weights)
        terms |= covariance_terms(of_translated, episode, spectra, config)
    if config.prototype_weight:
        terms["prototype"] = prototype_loss(translated, episode)
    return terms


def discriminator_loss(
    discriminator: Discriminator, direction: Direction, translated: Tensor
) -> Tensor:
    """Compute -L_adv, which a discriminator minimises.

    It classifies real examples by their labels, and translated examples as "fake", the last class.
    """
    fake = translated.flatten(0, 1)
    as_fake = direction.real_labels.new_full((len(fake),), len(direction.prototypes))
    return -log_likelihood(
        discriminator,
        direction,
        torch.cat([direction.real, fake]),
        torch.cat([direction.real_labels, as_fake]),
        torch.cat([direction.real_weights, direction.weights.flatten()]),
    )


def adversarial_loss(
    discriminator: Discriminator, direction: Direction, translated: Tensor, config: TrainConfig
) -> Tensor:
    """Compute the part of L_adv that a generator minimises.

    The formula is minimax: the log-likelihood of "fake". It does not depend on the predicted real
    class, so no gradient points to an example's class. The paper's text says "classifying the
    generated example as y_n", which is the class-directed loss.
    """
    examples, weights = translated.flatten(0, 1), direction.weights.flatten()
    labels = direction.labels.expand(direction.weights.shape).flatten()
    if config.generator_loss == "minimax":
        as_fake = torch.full_like(labels, len(direction.prototypes))
        return log_likelihood(discriminator, direction, examples, as_fake, weights)
    return -log_likelihood(discriminator, direction, examples, labels, weights)


def log_likelihood(
    discriminator: Discriminator,
    direction: Direction,
    examples: Tensor,
    labels: Tensor,
    weights: Tensor,
) -> Tensor:
    """Compute Σ weight · log D(label | example), for examples (R, D), labels and weights (R,)."""
    log_probabilities = discriminator(examples, direction.prototypes, direction.is_present)
    return -(weights * nll_loss(log_probabilities, labels, reduction="none")).sum()


def cycle_loss(
    back: Generator, direction: Direction, translated: Tensor, noise: Tensor | None, weights: Tensor
) -> Tensor:
    """Compute one cycle of L_cyc: Σ weight · ‖example translated there and back - example‖².

    The formula lacks the example and would pull all translations to zero; the paper's text has it.
    The generator ``back`` translates from the target of the direction to its source.
    """
    restored = back(translated, direction.target, direction.source, noise)
    return (weights * (restored - direction.examples).square().sum(dim=-1)).sum()


def covariance_terms(
    of_translated: Tensor, episode: Episode, spectra: Spectra, config: TrainConfig
) -> Terms:
    """Compute L_cov, and the similarity of the base classes that it leaves out.

    It does not depend on class means: the adversarial terms place a class, this term keeps its
    spread. ``of_translated`` are the covariances of translated classes, shape (N, D, D).
    """
    classes, scores, left_out = choose_covariance_classes(episode, config)
    distances = covariance_distances(spectra, classes, of_translated, config.ky_fan_order)
    loss = (scores * distances).sum(dim=1).mean()
    return {"covariance": loss, "similarity_left_out": left_out}


def choose_covariance_classes(
    episode: Episode, config: TrainConfig
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the base classes that every meta-novel class is compared with.

    Returns the classes (N, L), the nearest first, their scores (N, L), and the total similarity of
    the other classes, a mean over meta-novel classes.
    """
    alpha, num_classes = episode.alpha, episode.alpha.shape[1]
    is_all = config.covariance_classes == "all"
    count = num_classes if is_all else min(config.num_covariance_classes, num_classes)
    scores, nearest = alpha.topk(count, dim=1)
    left_out = (1 - scores.sum(dim=1)).mean()
    if config.normalised_weights:
        scores = scores / scores.sum(dim=1, keepdim=True)
    else:
        # The paper's literal formula: a mean over related classes of similarity times distance.
        num_related = config.num_neighbours if config.neighbours == "hard" else num_classes
        scores = scores / num_related
    return episode.base_classes[nearest], scores, left_out


def prototype_loss(translated: Tensor, episode: Episode) -> Tensor:
    """Compute the squared distance of the means of translated classes to those of whole classes.

    This term is not in the paper, whose losses reproduce the noisy mean of a few shots. The mean
    of the whole class is known in meta-training.
    """
    means = weighted_mean(translated, episode.sample_weights).squeeze(-2)
    return (means - episode.class_means).square().sum(dim=1).mean()

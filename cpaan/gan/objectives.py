"""The paper's objectives: functions for the terms, and the weighted sums of terms.

Terms are unweighted; terms with a weight of zero are omitted. Shapes: N = meta-novel classes, M =
meta-base examples, D = feature dimension, L = base classes that a novel class is compared with;
(N, M) are pairs of a class and an example translated to it.
"""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor

from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import covariance_distances
from cpaan.gan.episodes import Episode, TrainingData
from cpaan.gan.fast.pair_ops import moments, squared_distance
from cpaan.gan.gans import Gan, Networks, SideStream, Translations
from cpaan.gan.networks import Answers, Chosen, Discriminator, Summand, combine, total_of

Terms = dict[str, Tensor]


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


DISCRIMINATOR_WEIGHTS = {"novel_discriminator": 1.0, "base_discriminator": 1.0}


def objective(terms: Terms, weights: Mapping[str, float]) -> Tensor:
    """Compute the weighted sum of terms; those that a GAN lacks are zero."""
    return torch.stack([weight * terms[name] for name, weight in weights.items()]).sum()


def discriminator_terms(
    networks: Networks,
    episode: Episode,
    moved: Translations,
    beside: SideStream = nullcontext,
    answers: tuple[Answers, Answers | None] | None = None,
) -> Terms:
    """Compute the discriminators' cross-entropies over classes and "fake": the paper's -L_adv.

    Translations are constant here. The term of D_b may run concurrently, in the context ``beside``.
    ``answers`` are those of the networks, if known.
    """
    terms: Terms = {}
    of_novel, of_base = answers or networks.answers(episode)
    if moved.returned is not None:
        assert of_base is not None
        with beside():
            weights = torch.ones_like(moved.base[..., 0]) / episode.sources.numel()
            terms["base_discriminator"] = -networks.base_discriminator.log_likelihoods(
                [
                    (moved.examples, episode.sources, weights),
                    (moved.returned.detach(), None, episode.back_weights),
                ],
                of_base,
            )
    num_novel = len(episode.weights)
    real = episode.real.to(networks.row_dtype)
    terms["novel_discriminator"] = -networks.novel_discriminator.log_likelihoods(
        [
            (real, _novel_labels(episode), episode.real_weights / num_novel),
            (moved.translated.detach(), None, episode.weights / num_novel),
        ],
        of_novel,
    )
    return terms


def moment_terms(
    gan: Gan, episode: Episode, moved: Translations, data: TrainingData, config: TrainConfig
) -> Terms:
    """Compute the generators' terms for means and covariances of translated classes."""
    terms: Terms = {}
    has_covariance = gan.has_covariance and bool(config.covariance_weight)
    if not has_covariance and not config.prototype_weight:
        return terms
    means, covariances = moments(
        moved.translated, episode.sample_weights, with_covariances=has_covariance
    )
    if config.prototype_weight:
        # Not in the paper, whose losses reproduce the noisy mean of a few shots. The mean of the
        # whole class is available in meta-training, and this term uses it.
        terms["prototype"] = (means - episode.class_means).square().sum(dim=1).mean()
    if has_covariance:
        assert data.spectra is not None
        classes, scores, left_out = choose_covariance_classes(episode, config)
        # It does not depend on class means: the adversarial terms place a class, this term keeps
        # its spread.
        distances = covariance_distances(data.spectra, classes, covariances, config.ky_fan_order)
        terms["covariance"] = (scores * distances).sum(dim=1).mean()
        terms["similarity_left_out"] = left_out
    return terms


def pair_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    moved: Translations,
    config: TrainConfig,
    rng: torch.Generator,
    beside: SideStream = nullcontext,
    judging: SideStream = nullcontext,
    answers: tuple[Answers, Answers | None] | None = None,
) -> Terms:
    """Compute the generators' terms for single pairs: adversarial and cycle.

    The cycle of base classes may run concurrently, in the context ``beside``, and all adversarial
    terms in the context ``judging``. ``answers`` are those of the networks, if known.
    """
    terms: Terms = {}
    has_cycle = gan.has_cycle and bool(config.cycle_weight)
    (translated, returned), (first, second) = moved.judged, moved.cycled
    # Every context has its own weights, because its stream does not keep those of others alive.
    of_novel = of_base = None
    if config.adversarial_weight:
        of_novel, of_base = answers or networks.answers(episode)
    if returned is not None:
        if of_base is not None:
            with judging():
                batch = returned, episode.sources, episode.back_weights
                terms["base_adversarial"] = adversarial_loss(
                    networks.base_discriminator, batch, of_base, config
                )
        if has_cycle:
            with beside():
                noise = networks.noise(tuple(episode.weights.shape), rng, first)
                base_again = networks.novel_to_base(
                    first, moved.novel, moved.base, noise, moved.to_base
                )
                weights = episode.weights / len(episode.weights)  # a mean over novel classes
                terms["base_cycle"] = cycle_loss(base_again, moved.examples, weights)
    if of_novel is not None:
        with judging():
            batch = translated, _novel_labels(episode), episode.weights / len(episode.weights)
            terms["novel_adversarial"] = adversarial_loss(
                networks.novel_discriminator, batch, of_novel, config
            )
    if has_cycle:
        assert second is not None
        novel_again = networks.base_to_novel(
            second, moved.base, moved.novel, projected=moved.to_novel
        )
        weights = episode.weights / len(episode.weights)
        terms["novel_cycle"] = cycle_loss(novel_again, moved.partners, weights)
    return terms


def adversarial_loss(
    discriminator: Discriminator,
    batch: tuple[Tensor, Tensor, Tensor],
    answers: Answers,
    config: TrainConfig,
) -> Tensor:
    """Compute the loss of a generator, for translated examples, their labels and weights.

    The paper's formula is minimax, the log-likelihood of "fake". This loss does not depend on the
    predicted real class, so no gradient points to an example's own class. The paper's text says
    "classifying the generated example as y_n", which is the class-directed loss.
    """
    translated, _, weights = batch
    if config.generator_loss == "minimax":
        return discriminator.log_likelihoods([(translated, None, weights)], answers)
    return -discriminator.log_likelihoods([batch], answers)


def cycle_loss(restored: Tensor, originals: Tensor | Chosen, weights: Tensor) -> Tensor:
    """Compute the weighted squared distance of restored examples to their originals.

    Examples have shape (N, M, D), weights (N, M). The paper's formula lacks the originals and
    would pull all translations to zero; its text includes them.
    """
    rows, shared = combine([Summand(originals)])
    return squared_distance(
        restored.flatten(0, 1),
        shared,
        weights.flatten(),
        shape=(weights.shape[0], weights.shape[1]),
        added=total_of(rows),
    )


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
    scores, chosen = alpha.topk(count, dim=1)
    left_out = (1 - scores.sum(dim=1)).mean()
    if config.normalised_weights:
        scores = scores / scores.sum(dim=1, keepdim=True)
    else:
        # The paper's literal formula: a mean over related classes of similarity times distance.
        num_related = config.num_neighbours if config.neighbours == "hard" else num_classes
        scores = scores / num_related
    return episode.base_classes[chosen], scores, left_out


def _novel_labels(episode: Episode) -> Tensor:
    """Return the position of every novel class, shape (N, 1)."""
    return torch.arange(len(episode.weights), device=episode.weights.device).unsqueeze(1)

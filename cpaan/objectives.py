"""The terms of the paper's objectives, each a function of tensors.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension; (N, M) are pairs of a
class and an example translated into it.
"""

import torch
from torch import Tensor

from cpaan.config import TrainConfig
from cpaan.episodes import Episode
from cpaan.linalg import Spectra, covariance_distances, covariances, spectra

FAKE = -1  # the last of a discriminator's answers


def discriminator_loss(
    real: Tensor, real_weights: Tensor, translated: Tensor, translated_weights: Tensor
) -> Tensor:
    """Return the cross-entropy of telling real classes and "fake" apart: -L_adv of the paper.

    Args:
        real: log D(its class | x) of real examples, any shape.
        real_weights: Sum to one; of a shape that broadcasts.
        translated: log D(fake | x) of translated examples, any shape.
        translated_weights: Likewise.
    """
    return -(real_weights * real).sum() - (translated_weights * translated).sum()


def generator_loss(
    log_probabilities: Tensor, targets: Tensor, weights: Tensor, kind: str
) -> Tensor:
    """Return what a generator wants of a discriminator.

    The paper prints minimax: not to be called fake. That is the same whichever real class an
    example is then taken for, so nothing points to its own. Its text says "classifying the
    generated example as y_n": the class-directed loss does.

    Args:
        log_probabilities: Of translated examples, shape (N, M, classes + 1), fake last.
        targets: The class that each should be taken for, shape broadcasting to (N, M).
        weights: Shape (N, M).
        kind: "class-directed" or "minimax".
    """
    if kind == "minimax":
        return (weights * log_probabilities[..., FAKE]).sum()
    targets = targets.expand(weights.shape).unsqueeze(-1)
    return -(weights * log_probabilities.gather(-1, targets).squeeze(-1)).sum()


def cycle_loss(restored: Tensor, originals: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted squared distance of examples to what a cycle made of them.

    The formula in print lacks the originals, and would pull all translations to zero; the text
    has them.

    Args:
        restored: Shape (N, M, D).
        originals: Of a shape that broadcasts to it.
        weights: Shape (N, M).
    """
    return (weights * (restored - originals).square().sum(dim=-1)).sum()


def covariance_loss(
    translated: Tensor,
    sample_weights: Tensor,
    base: Spectra,
    classes: Tensor,
    scores: Tensor,
    config: TrainConfig,
) -> Tensor:
    """Return how far translated classes are from the covariances of related base classes.

    It is blind to the classes' means, which is the point: the adversary places a class, this
    term keeps its spread.

    Args:
        translated: Shape (N, M, D).
        sample_weights: Shape (N, M), summing to one for every class.
        base: Covariances of base classes.
        classes: The base classes that each novel class is compared with, shape (N, L).
        scores: How much each comparison counts, shape (N, L).
        config: Ky Fan order, and whether distances are relative.
    """
    of_translated = covariances(translated, sample_weights)
    distances = covariance_distances(base, classes, of_translated, config.ky_fan_order)
    if config.relative_covariance:
        # A class of equal examples has no covariance; against the largest norm it is nothing.
        least = torch.finfo(base.norms.dtype).eps * base.norms.max()
        distances = distances / base.norms[classes].clamp(min=least)
    return (scores * distances).sum(dim=1).mean()


def prototype_loss(translated: Tensor, sample_weights: Tensor, class_means: Tensor) -> Tensor:
    """Return the squared distance of translated classes' means to those of the whole classes.

    Not in the paper. Its losses reproduce the mean of the few shots, noise included; but
    meta-training knows where the class really is, and this term asks for that place. Shapes:
    (N, M, D), (N, M), (N, D).
    """
    means = torch.einsum("nmd,nm->nd", translated, sample_weights)
    return (means - class_means).square().sum(dim=1).mean()


def choose_covariance_classes(
    episode: Episode, base: Spectra, config: TrainConfig, rng: torch.Generator
) -> tuple[Spectra, Tensor, Tensor, Tensor]:
    """Choose the base classes that every meta-novel class is compared with.

    Returns:
        Their covariances, the classes (N, L) and scores (N, L), and the mean similarity of the
        classes that were left out.
    """
    alpha, kind = episode.alpha, config.covariance_classes
    num_classes = alpha.shape[1]
    left_out = alpha.new_zeros(())
    if kind == "mixture":
        mixed = torch.einsum("nb,bij->nij", alpha, base.matrices[episode.base_classes])
        base = spectra(mixed, config.ky_fan_order)
        classes = torch.arange(len(alpha), device=alpha.device).unsqueeze(1)
        scores = torch.ones_like(classes, dtype=alpha.dtype)
    elif kind == "sampled":
        count = min(config.num_covariance_classes, num_classes)
        chosen = torch.multinomial(alpha, count, replacement=True, generator=rng)
        classes = episode.base_classes[chosen]
        scores = torch.full_like(chosen, 1 / count, dtype=alpha.dtype)
    else:
        # Sorted, also where all are taken: comparisons start from the nearest class.
        count = num_classes if kind == "all" else min(config.num_covariance_classes, num_classes)
        scores, chosen = alpha.topk(count, dim=1)
        classes = episode.base_classes[chosen]
        left_out = (1 - scores.sum(dim=1)).mean()
        if config.normalised_weights:
            scores = scores / scores.sum(dim=1, keepdim=True)
    if not config.normalised_weights:
        # The formula to the letter: a mean over related classes of similarity times distance.
        num_related = config.num_neighbours if config.neighbours == "hard" else num_classes
        scores = scores / num_related
    return base, classes, scores, left_out

"""The terms of the paper's objectives, each a function of tensors.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension; (N, M) are pairs of a
class and an example translated into it.
"""

import torch
from torch import Tensor

from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra, covariance_distances, spectra
from cpaan.gan.episodes import Episode
from cpaan.gan.fast.pair_ops import squared_distance
from cpaan.gan.networks import Chosen, combine
from cpaan.protocol.neighbours import draw_by


def cycle_loss(restored: Tensor, originals: Tensor | Chosen, weights: Tensor) -> Tensor:
    """Return the weighted squared distance of examples to what a cycle made of them.

    The formula in print lacks the originals, and would pull all translations to zero; the text
    has them.

    Args:
        restored: Shape (N, M, D).
        originals: Of a shape that broadcasts to it.
        weights: Shape (N, M).
    """
    added, shared = combine([(originals, 1.0)])
    shape = (weights.shape[0], weights.shape[1])
    return squared_distance(
        restored.flatten(0, 1), shared, weights.flatten(), shape=shape, added=added
    )


def covariance_loss(
    of_translated: Tensor, base: Spectra, classes: Tensor, scores: Tensor, config: TrainConfig
) -> Tensor:
    """Return how far translated classes are from the covariances of related base classes.

    It is blind to the classes' means, which is the point: the adversary places a class, this
    term keeps its spread.

    Args:
        of_translated: Covariances of translated classes, shape (N, D, D).
        base: Covariances of base classes.
        classes: The base classes that each novel class is compared with, shape (N, L).
        scores: How much each comparison counts, shape (N, L).
        config: Ky Fan order, and whether distances are relative.
    """
    distances = covariance_distances(base, classes, of_translated, config.ky_fan_order)
    if config.relative_covariance:
        # A class of equal examples has no covariance; against the largest norm it is nothing.
        least = torch.finfo(base.norms.dtype).eps * base.norms.max()
        distances = distances / base.norms[classes].clamp(min=least)
    return (scores * distances).sum(dim=1).mean()


def prototype_loss(of_translated: Tensor, class_means: Tensor) -> Tensor:
    """Return the squared distance of translated classes' means to those of the whole classes.

    Not in the paper. Its losses reproduce the mean of the few shots, noise included; but
    meta-training knows where the class really is, and this term asks for that place. Shapes:
    (N, D) both.
    """
    return (of_translated - class_means).square().sum(dim=1).mean()


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
        uniforms = torch.rand((len(alpha), count), generator=rng, device=alpha.device)
        chosen = draw_by(alpha, uniforms)
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

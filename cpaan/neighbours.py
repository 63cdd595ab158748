"""Neighbourhood batch sampling: which base classes are related to a novel class, and how much."""

import torch
from torch import Tensor

_BISECTIONS = 60  # enough to exhaust double precision


def soft_similarity(novel: Tensor, base: Tensor, perplexity: float) -> Tensor:
    """Return NBS-S scores, a softmax over negative squared distances between prototypes.

    The paper's softmax has no temperature, so its meaning hangs on the scale of the features:
    on ResNet features one class takes all, on normalised ones all are equal. Here one
    temperature for all novel classes is set so that they have ``perplexity`` related base
    classes on average: free of units, and a novel class with close relatives leans on fewer of
    them than one without. (A temperature for each class, with the perplexity reached exactly
    by each, lost 1.5 points at one shot on real features when related examples were copied.)

    Args:
        novel: Prototypes of novel classes, shape (..., N, D); each (N, D) has its temperature.
        base: Prototypes of base classes, shape (C, D).
        perplexity: Mean over novel classes of exp(entropy of a class's scores).

    Returns:
        Shape (..., N, C); sums to one over the base classes.

    Raises:
        ValueError: If no scores can have that perplexity, or all distances are equal.
    """
    check_perplexity(perplexity, len(base))
    distances = torch.cdist(novel.double(), base.double()).square()
    # Only differences to the nearest matter to a softmax; their mean sets the search's scale.
    distances = distances - distances.amin(dim=-1, keepdim=True)
    scale = distances.mean(dim=(-2, -1), keepdim=True)
    if not (scale > 0).all():
        raise ValueError("all base classes are equally far from every novel one: none is related")
    distances = distances / scale

    low = torch.full_like(distances[..., :1, :1], -15.0)  # logarithms of the temperature
    high = torch.full_like(low, 15.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_too_sharp = _mean_perplexity(distances, middle) < perplexity
        low, high = torch.where(is_too_sharp, middle, low), torch.where(is_too_sharp, high, middle)
    return (-distances / low.exp()).softmax(dim=-1).to(novel.dtype)


def check_perplexity(perplexity: float, num_base: int) -> None:
    """Refuse a perplexity that scores of so many base classes cannot have."""
    if not 1 < perplexity < num_base:
        raise ValueError(
            f"perplexity must be above 1 and below the number of base classes, {num_base}, "
            f"got {perplexity} (--set perplexity=...)"
        )


def _mean_perplexity(distances: Tensor, log_temperature: Tensor) -> Tensor:
    log_scores = (-distances / log_temperature.exp()).log_softmax(dim=-1)
    # A score that underflows to zero has a finite logarithm still, so its share is zero, not NaN.
    entropy = -(log_scores.exp() * log_scores).sum(dim=-1, keepdim=True)
    return entropy.exp().mean(dim=-2, keepdim=True)

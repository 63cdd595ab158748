"""Neighbourhood batch sampling (NBS): similarity of base classes to a novel class.

Shapes: N = novel classes, C = base classes, D = feature dimension.
"""

import torch
from torch import Tensor

from cpaan.protocol.config import NeighbourSettings

# Each pass tests this many temperatures at once and narrows the range to two adjacent ones, to
# 1e-6 at the end. Bisection takes many short steps, which are several times slower on a GPU.
TEMPERATURES = 33
PASSES = 5


def similarity(novel: Tensor, base: Tensor, settings: NeighbourSettings) -> Tensor:
    """Compute scores of base classes for novel classes, shape (..., N, C).

    NBS-S is `soft_similarity` or, without a perplexity, the paper's softmax over negative squared
    distances. NBS-H is 1/k for each of the k nearest base classes. Without neighbours, all scores
    are equal. Scores sum to one over base classes. Prototypes have shapes (..., N, D) and (C, D).
    """
    check_neighbours(settings, len(base))
    if settings.neighbours == "soft" and settings.perplexity is not None:
        return soft_similarity(novel, base, settings.perplexity)
    if settings.neighbours == "none":
        return novel.new_full((*novel.shape[:-1], len(base)), 1 / len(base))
    distances = torch.cdist(novel.double(), base.double())
    if settings.neighbours == "hard":
        nearest = distances.topk(settings.num_neighbours, dim=-1, largest=False).indices
        scores = torch.zeros_like(distances).scatter(-1, nearest, 1 / settings.num_neighbours)
    else:
        scores = (-distances.square()).softmax(dim=-1)
    return scores.to(novel.dtype)


def draw_by(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Draw base classes in proportion to scores (..., C), with uniform numbers (..., draws).

    Returns positions of classes, shape (..., draws). Classes with a score of zero are not drawn.
    """
    cumulative = scores.double().cumsum(dim=-1)
    cumulative = cumulative / cumulative[..., -1:]  # the last sum differs from one by rounding
    return torch.searchsorted(cumulative, uniforms.double(), right=True)


def check_neighbours(settings: NeighbourSettings, num_base: int) -> None:
    """Raise ValueError if the settings do not suit this number of base classes."""
    if settings.neighbours == "hard" and settings.num_neighbours > num_base:
        raise ValueError(
            f"num_neighbours is {settings.num_neighbours}, but there are {num_base} base classes; "
            f"use --set num_neighbours={num_base} or less"
        )
    perplexity = settings.perplexity
    if settings.neighbours == "soft" and perplexity is not None and not 1 < perplexity < num_base:
        raise ValueError(
            f"perplexity must be above 1 and below the number of base classes, {num_base}, "
            f"got {perplexity} (--set perplexity=...)"
        )


def soft_similarity(novel: Tensor, base: Tensor, perplexity: float) -> Tensor:
    """Compute NBS-S scores: a softmax over negative squared distances between prototypes.

    The paper's softmax has no temperature, so it depends on the scale of the features. On ResNet
    features one class gets all the weight; on normalised features all weights are equal.

    Here, all novel classes share a temperature that gives them ``perplexity`` related base classes
    on average. It has no unit, and novel classes with close base classes use fewer of them. With a
    temperature for each class, to reach the perplexity exactly, copying related examples lost 1.5
    points at one shot on real features.

    The perplexity is the mean over novel classes of exp(entropy of a class's scores). If all base
    classes are equally far from every novel class, their scores are equal.
    """
    distances = torch.cdist(novel.double(), base.double()).square()
    # A softmax depends only on differences to the nearest; their mean scales the search.
    distances = distances - distances.amin(dim=-1, keepdim=True)
    scale = distances.mean(dim=(-2, -1), keepdim=True)
    distances = distances / torch.where(scale > 0, scale, 1)

    low, width = torch.full_like(scale, -15.0), 30.0  # logarithms of the temperature
    steps = torch.arange(TEMPERATURES, dtype=distances.dtype, device=distances.device)
    steps = steps.view(-1, *[1] * distances.dim())
    for _ in range(PASSES):
        width /= TEMPERATURES - 1
        is_too_sharp = _mean_perplexity(distances, low + width * steps) < perplexity
        # Perplexity grows with temperature, so continue from the last one that is too low.
        low = low + width * (is_too_sharp.sum(dim=0) - 1).clamp(min=0)
    return (-distances / low.exp()).softmax(dim=-1).to(novel.dtype)


def _mean_perplexity(distances: Tensor, log_temperature: Tensor) -> Tensor:
    # The entropy of p = w / Σw with w = exp(-d / T) is log Σw + Σ p d / T. The nearest class has
    # d = 0 and w = 1, so nothing overflows, and Σw is never zero.
    inverse = (-log_temperature).exp()
    weights = (distances * -inverse).exp()
    total = weights.sum(dim=-1, keepdim=True)
    entropy = total.log() + inverse * (weights * distances).sum(dim=-1, keepdim=True) / total
    return entropy.exp().mean(dim=-2, keepdim=True)

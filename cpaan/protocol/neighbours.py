"""Neighbourhood batch sampling: which base classes are related to a novel class, and how much.

Shapes: N = novel classes, C = base classes, D = feature dimension.
"""

import torch
from torch import Tensor

from cpaan.protocol.config import NeighbourSettings

# Each pass looks at so many temperatures at once and narrows the range to two neighbours of
# them, to 1e-6 in the end. Bisection, in many short steps, would cost a GPU several times more.
_TEMPERATURES = 33
_PASSES = 5


def similarity(novel: Tensor, base: Tensor, settings: NeighbourSettings) -> Tensor:
    """Return scores of base classes for novel classes, shape (..., N, C), by NBS-S, NBS-H or none.

    NBS-S is `soft_similarity` or, without a perplexity, the paper's softmax over negative squared
    distances; NBS-H is 1/k for each of the k nearest base classes; none is the same for all. Scores
    sum to one over the base classes. Prototypes have the shapes (..., N, D) and (C, D).
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
    """Draw base classes in proportion to scores (..., C), by uniform numbers (..., draws).

    Positions of classes whose score is not zero are returned, shape (..., draws).
    """
    cumulative = scores.double().cumsum(dim=-1)
    cumulative = cumulative / cumulative[..., -1:]  # which differs from one by rounding
    return torch.searchsorted(cumulative, uniforms.double(), right=True)


def check_neighbours(settings: NeighbourSettings, num_base: int) -> None:
    """Refuse settings that so many base classes cannot serve."""
    if settings.neighbours == "hard" and settings.num_neighbours > num_base:
        raise ValueError(
            f"num_neighbours is {settings.num_neighbours}, but there are {num_base} base classes "
            "to choose from (--set num_neighbours=...)"
        )
    perplexity = settings.perplexity
    if settings.neighbours == "soft" and perplexity is not None and not 1 < perplexity < num_base:
        raise ValueError(
            f"perplexity must be above 1 and below the number of base classes, {num_base}, "
            f"got {perplexity} (--set perplexity=...)"
        )


def soft_similarity(novel: Tensor, base: Tensor, perplexity: float) -> Tensor:
    """Return NBS-S scores, a softmax over negative squared distances between prototypes.

    The paper's softmax has no temperature, so its meaning hangs on the scale of the features:
    on ResNet features one class takes all, on normalised ones all are equal. Here one
    temperature for all novel classes is set so that they have ``perplexity`` related base
    classes on average: free of units, and a novel class with close relatives leans on fewer of
    them than one without. (A temperature for each class, with the perplexity reached exactly
    by each, lost 1.5 points at one shot on real features when related examples were copied.)

    The perplexity is the mean over novel classes of exp(entropy of a class's scores). Base classes
    that are all equally far from every novel one score the same.
    """
    distances = torch.cdist(novel.double(), base.double()).square()
    # Only differences to the nearest matter to a softmax; their mean sets the search's scale.
    distances = distances - distances.amin(dim=-1, keepdim=True)
    scale = distances.mean(dim=(-2, -1), keepdim=True)
    distances = distances / torch.where(scale > 0, scale, 1)

    low, width = torch.full_like(scale, -15.0), 30.0  # logarithms of the temperature
    steps = torch.arange(_TEMPERATURES, dtype=distances.dtype, device=distances.device)
    steps = steps.view(-1, *[1] * distances.dim())
    for _ in range(_PASSES):
        width /= _TEMPERATURES - 1
        is_too_sharp = _mean_perplexity(distances, low + width * steps) < perplexity
        # Perplexity grows with temperature: go on from the last one that is too sharp.
        low = low + width * (is_too_sharp.sum(dim=0) - 1).clamp(min=0)
    return (-distances / low.exp()).softmax(dim=-1).to(novel.dtype)


def _mean_perplexity(distances: Tensor, log_temperature: Tensor) -> Tensor:
    # Of p = w / Σw with w = exp(-d / T), the entropy is log Σw + Σ p d / T. The nearest class
    # has d = 0 and w = 1, so that nothing overflows, and Σw is never zero.
    inverse = (-log_temperature).exp()
    weights = (distances * -inverse).exp()
    total = weights.sum(dim=-1, keepdim=True)
    entropy = total.log() + inverse * (weights * distances).sum(dim=-1, keepdim=True) / total
    return entropy.exp().mean(dim=-2, keepdim=True)

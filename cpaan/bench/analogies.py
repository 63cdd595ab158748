"""Analogies between clusters of base classes: ours against all differences multiplied out.

Shapes: C = base classes, M = clusters of a class, D = feature dimension.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cpaan.bench.measuring import Bench, Row, Subject
from cpaan.core.randomness import new_rng
from cpaan.methods.analogies import Analogies, Clusters, mine_analogies

HELP = "analogies of all pairs of clusters, against products of all ordered pairs' differences"

_PLAIN_ROWS = 64
"""Ordered pairs that the plain side finds the analogies of where there are more; each costs the
same, and all of them would be an hour."""


def make_clusters(
    num_classes: int, num_clusters: int, num_dims: int, seed: int, device: torch.device
) -> Clusters:
    """Return random clusters, in some directions of all classes further apart than in others.

    What the search costs hardly depends on where they are.
    """
    rng = new_rng(seed, device=device)
    shape = (num_classes, num_clusters, num_dims)
    spread = torch.arange(1, num_dims + 1, device=device).rsqrt()
    centroids = torch.randn(shape, generator=rng, device=device) * spread
    return Clusters(centroids, torch.full((num_classes,), num_clusters, device=device))


def ordered_pairs(num_clusters: int, device: torch.device) -> Tensor:
    """Return all ordered pairs of different clusters, shape (2, M * (M - 1))."""
    numbers = torch.arange(num_clusters, device=device)
    pairs = torch.cartesian_prod(numbers, numbers).T
    return pairs[:, pairs[0] != pairs[1]]


def unit_differences(centroids: Tensor) -> Tensor:
    """Return directions from one cluster to another, shape (..., M * (M - 1), D)."""
    first, second = ordered_pairs(centroids.shape[-2], centroids.device)
    return normalize(centroids[..., second, :] - centroids[..., first, :], dim=-1)


def plain(units: Tensor, own: int, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best cosines of some ordered pairs of a class, and places among all pairs.

    Args:
        units: Unit differences of all classes, shape (C, pairs, D).
        own: The class.
        rows: Which of its pairs.
    """
    cosines = units[own, rows] @ units.flatten(0, 1).T
    cosines.unflatten(1, units.shape[:2])[:, own] = -1
    best = cosines.max(dim=1)
    return best.values, best.indices


def largest_error(found: Analogies, centroids: Tensor, own: int, rows: Tensor) -> float:
    """Return how far our cosines of some ordered pairs are from those in float64 at most."""
    best = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    units = unit_differences(centroids[own].double())[rows]
    for number, others in enumerate(centroids):  # one by one: all would be tens of gigabytes
        if number != own:
            cosines = units @ unit_differences(others.double()).T
            best = torch.maximum(best, cosines.amax(dim=1))
    first, second = ordered_pairs(centroids.shape[1], rows.device)[:, rows]
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    is_pair = (found.first == low.unsqueeze(1)) & (found.second == high.unsqueeze(1))
    ours = found.cosines[own, is_pair.long().argmax(dim=1)]
    return float(((ours - best) / best).abs().max())


def measure(bench: Bench) -> list[Row]:
    """Measure at the scale, and with other numbers of classes and of clusters."""
    scale = bench.scale
    cases: list[tuple[str, dict[str, int], list[str]]] = [
        ("analogies", {}, ["num_clusters", "num_classes"])
    ]
    for key, values, usual in (
        ("num_clusters", scale.clusters, scale.num_clusters),
        ("num_classes", scale.classes, scale.num_classes),
    ):
        cases += [
            (f"analogies {key}={value}", {key: value}, [key]) for value in values if value != usual
        ]
    rows = []
    for name, changes, varied in cases:
        if bench.wants(name):
            bench.say(f"{name} ...")
            rows.append(_measure_case(bench, name, changes, varied))
    return rows


def _measure_case(bench: Bench, name: str, changes: dict[str, int], varied: list[str]) -> Row:
    sizes: dict[str, Any] = {
        "num_classes": bench.scale.num_classes,
        "num_clusters": bench.scale.num_clusters,
        "num_dims": bench.scale.num_dims,
        **changes,
    }
    clusters = make_clusters(**sizes, seed=bench.seed, device=bench.device)
    num_classes, num_clusters, num_dims = clusters.centroids.shape
    num_pairs = num_classes * num_clusters * (num_clusters - 1)
    count = min(num_pairs // num_classes, _PLAIN_ROWS)
    rows = torch.arange(count, device=bench.device) * (num_pairs // num_classes) // count
    own = num_classes // 2

    times = bench.time({"ours": Subject(lambda: mine_analogies(clusters), is_warm=False)})
    # Not in turn, or the differences, gigabytes, would count as memory of ours.
    units = unit_differences(clusters.centroids)
    times |= bench.time({"plain": Subject(lambda: plain(units, own, rows))})
    # Each two unordered pairs of two classes once, over as many numbers as have to be multiplied.
    flop = (num_pairs / 2) ** 2 * min(num_clusters, num_dims)
    num_bytes = 4.0 * (clusters.centroids.numel() + num_pairs)
    return bench.row(
        name,
        times["ours"],
        times["plain"].times(num_pairs / count),
        floor_ms=bench.peaks.floor_ms(flop, num_bytes),
        relative_error=largest_error(mine_analogies(clusters), clusters.centroids, own, rows),
        num_pairs=num_pairs,
        plain_pairs=count,  # timed; where fewer than all, plain_ms is in proportion
        **sizes,
        family="analogies",
        varied=varied,
    )

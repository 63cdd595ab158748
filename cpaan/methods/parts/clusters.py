"""Clusters of base classes, by k-means on many classes at a time.

Shapes: C = base classes, R = rows of the largest class, M = clusters of a class, D = feature
dimension.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cpaan.protocol.tasks import BaseSet

_BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**30}  # on a CPU, what a cache holds


class Clusters(NamedTuple):
    """Centroids of all base classes."""

    centroids: Tensor  # (C, M, D), float32; zeros beyond a class's count
    counts: Tensor  # (C,) clusters of each class: M, or its rows where those are fewer


def cluster_classes(
    base: BaseSet,
    num_clusters: int,
    rng: torch.Generator,
    *,
    num_iterations: int = 20,
    start: Literal["rows", "sphere"] = "rows",
    block_bytes: int | None = None,
) -> Clusters:
    """Cluster the rows of every base class by k-means, many classes at a time.

    Args:
        base: The classes.
        num_clusters: M; a class with fewer rows has a cluster for each.
        rng: Decides where clusters start; on the CPU.
        num_iterations: Of Lloyd's algorithm.
        start: From random rows of the class; or from random points at distance one from zero, and
            after the first iteration those that no row is nearest to become random rows.
        block_bytes: Of memory at a time; a class more than that where it is larger.
    """
    device = base.features.device
    block_bytes = block_bytes or _BLOCK_BYTES[device.type]
    num_classes, num_rows = len(base.counts), int(base.counts.max())
    num_dims, num_clusters = base.features.shape[1], min(num_clusters, num_rows)
    counts = base.counts.clamp(max=num_clusters)
    # All that is random comes before the blocks, which then change nothing.
    keys = torch.rand((num_classes, num_rows), generator=rng)
    keys = keys.to(device).masked_fill(beyond(base.counts, num_rows), math.inf)
    chosen = keys.topk(num_clusters, largest=False).indices
    directions = None
    if start == "sphere":
        shape = (num_classes, num_clusters, num_dims)
        directions = normalize(torch.randn(shape, generator=rng), dim=-1)

    per_class = 4 * num_rows * (2 * num_dims + 3 * num_clusters)
    centroids = []
    for classes in torch.arange(num_classes, device=device).split(max(1, block_bytes // per_class)):
        places = torch.arange(num_rows, device=device).expand(len(classes), -1)
        places = places.minimum(base.counts[classes, None] - 1)
        rows = base.features[base.first_row[classes, None] + places].float()
        middle = base.prototypes[classes].float().unsqueeze(1)
        rows = rows - middle  # distances of points that are far from zero keep their digits
        starts = rows.gather(1, chosen[classes].unsqueeze(-1).expand(-1, -1, num_dims))
        num_rows_of, counts_of = base.counts[classes], counts[classes]
        if directions is None:
            found = lloyd(rows, num_rows_of, starts, counts_of, num_iterations)
        else:
            drawn = directions[classes.cpu()].to(device) - middle
            means, sizes = _step(rows, num_rows_of, drawn, counts_of)
            starts = torch.where(sizes > 0, means, starts)
            found = lloyd(rows, num_rows_of, starts, counts_of, num_iterations - 1)
        is_none = beyond(counts[classes], num_clusters).unsqueeze(-1)
        centroids.append((found + middle).masked_fill(is_none, 0.0))
    return Clusters(torch.cat(centroids), counts)


def lloyd(
    rows: Tensor, num_rows: Tensor, centroids: Tensor, counts: Tensor, num_iterations: int
) -> Tensor:
    """Move centroids to the means of the rows that are nearest to them, again and again.

    A centroid that has no row stays where it is.

    Args:
        rows: Of every class, shape (C, R, D).
        num_rows: How many of R are rows of the class, shape (C,).
        centroids: Where to start, shape (C, M, D).
        counts: How many of M are clusters of the class, shape (C,).
        num_iterations: How often.

    Returns:
        Shape (C, M, D).
    """
    for _ in range(num_iterations):
        means, sizes = _step(rows, num_rows, centroids, counts)
        centroids = torch.where(sizes > 0, means, centroids)
    return centroids


def _step(
    rows: Tensor, num_rows: Tensor, centroids: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means of the rows that are nearest to each centroid, and how many, (C, M, 1)."""
    squares = centroids.square().sum(dim=-1)
    squares = squares.masked_fill(beyond(counts, centroids.shape[1]), math.inf)
    nearest = torch.baddbmm(squares.unsqueeze(1), rows, centroids.mT, alpha=-2).argmin(dim=-1)
    is_row = ~beyond(num_rows, rows.shape[1])
    members = rows.new_zeros((*rows.shape[:2], centroids.shape[1]))
    members.scatter_(2, nearest.unsqueeze(-1), is_row.unsqueeze(-1).to(rows.dtype))
    sizes = members.sum(dim=1).unsqueeze(-1)
    # A product, and not sums in whatever order: the same every time on a GPU, too.
    return (members.mT @ rows) / sizes.clamp(min=1), sizes


def beyond(counts: Tensor, size: int) -> Tensor:
    """Return which of so many places are beyond a class's count, shape (C, size)."""
    return torch.arange(size, device=counts.device) >= counts.unsqueeze(1)

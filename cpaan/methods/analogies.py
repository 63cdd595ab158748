"""Analogies between clusters of base classes: a is to b as c is to d.

Base classes are clustered by k-means, many classes at a time. An analogy joins two clusters a and b
of one class with two clusters c and d of another class. Of all such pairs, it takes the one with
the largest cosine of b - a and d - c. The result equals that of comparing all pairs in float64, at
a fraction of the cost:
* The cosine of (a, b) and (d, c) is minus that of (a, b) and (c, d). Unordered pairs are therefore
  enough, a quarter of the work. The best match has the largest absolute cosine; a negative sign
  swaps c and d.
* The differences of a class with M clusters lie in the M dimensions that its clusters span.
  Products of clusters with bases of these spaces, in float64, cost (C M)² D. Cosines are then
  products over min(M, D) numbers instead of D.
* These cosines, in float16 on a GPU and float32 on a CPU, only select candidate classes. Their
  error has a known bound. Classes within twice the bound of the best are compared again in float64,
  with four products of clusters for each cosine.

Time grows as (C M)² D + (C M² / 2)² min(M, D). Memory holds a block of cosines of bounded size,
C M² / 2 unit differences of min(M, D) numbers, and three arrays of C M D float64 numbers. For
ImageNet's 389 classes of 100 clusters in 512 dimensions, these are 1, 0.4 and 0.5 GB. All 3.7e12
cosines at once would be 7,400 GB.

Shapes: C = base classes, M = clusters of a class, D = feature dimension, P = unordered pairs of
clusters, K = dimensions of a class's own space, R = rows of the largest class.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from cpaan.protocol.tasks import BaseSet

_BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**30}  # on a CPU, the size of a cache
_DTYPES = {"cpu": torch.float32, "cuda": torch.half}
_ALIGNED = 8  # a GPU is slow with matrices of odd sizes
_LEAST_LENGTH = 1e-5  # of a difference, relative to the largest distance to the class mean


class Clusters(NamedTuple):
    """Centroids of all base classes."""

    centroids: Tensor  # (C, M, D), float32; zeros beyond a class's count
    counts: Tensor  # (C,) clusters of each class: M, or its number of rows if smaller


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

    Clusters start at random rows of the class, or at random points of the unit sphere. On the
    sphere, clusters without rows become random rows after the first iteration. A class with fewer
    rows than clusters has one cluster per row. A block of classes takes ``block_bytes`` of memory.
    """
    device = base.features.device
    block_bytes = block_bytes or _BLOCK_BYTES[device.type]
    num_classes, num_rows = len(base.counts), int(base.counts.max())
    num_dims, num_clusters = base.features.shape[1], min(num_clusters, num_rows)
    counts = base.counts.clamp(max=num_clusters)
    # Draw all random numbers before the loop, so that the block size does not change the result.
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
        rows = rows - middle  # keeps the precision of distances between points far from zero
        starts = rows.gather(1, chosen[classes].unsqueeze(-1).expand(-1, -1, num_dims))
        first = starts if directions is None else directions[classes.cpu()].to(device) - middle
        means = lloyd(rows, base.counts[classes], first, counts[classes], num_iterations, starts)
        is_none = beyond(counts[classes], num_clusters).unsqueeze(-1)
        centroids.append((means + middle).masked_fill(is_none, 0.0))
    return Clusters(torch.cat(centroids), counts)


def lloyd(
    rows: Tensor,
    num_rows: Tensor,
    centroids: Tensor,
    counts: Tensor,
    num_iterations: int,
    instead: Tensor | None = None,
) -> Tensor:
    """Move centroids (C, M, D) to the means of the rows (C, R, D) that are nearest to them.

    A centroid without rows stays; in the first iteration, that of ``instead`` replaces it. A class
    has the first ``num_rows`` of R rows and the first ``counts`` of M clusters, both of shape (C,).
    """
    is_row = (~beyond(num_rows, rows.shape[1])).unsqueeze(-1).to(rows.dtype)
    is_none = beyond(counts, centroids.shape[1])
    for _ in range(num_iterations):
        squares = centroids.square().sum(dim=-1).masked_fill(is_none, math.inf)
        nearest = torch.baddbmm(squares.unsqueeze(1), rows, centroids.mT, alpha=-2).argmin(dim=-1)
        members = rows.new_zeros((*rows.shape[:2], centroids.shape[1]))
        members.scatter_(2, nearest.unsqueeze(-1), is_row)
        sizes = members.sum(dim=1).unsqueeze(-1)
        # A matrix product gives the same result every time on a GPU; atomic sums do not.
        means = (members.mT @ rows) / sizes.clamp(min=1)
        centroids = torch.where(sizes > 0, means, centroids if instead is None else instead)
        instead = None
    return centroids


def beyond(counts: Tensor, size: int) -> Tensor:
    """Return a mask of the positions at or beyond each class's count, shape (C, size)."""
    return torch.arange(size, device=counts.device) >= counts.unsqueeze(1)


class Analogies(NamedTuple):
    """The most similar pair of clusters in another class, for every class and pair of its clusters.

    Pairs (a, b) are those of `torch.combinations`. The match of (b, a) is (d, c).
    """

    classes: Tensor  # (C, P) class of clusters c and d, int32
    third: Tensor  # (C, P) c, int16
    fourth: Tensor  # (C, P) d, int16
    cosines: Tensor  # (C, P) of b - a and d - c, float32; zero if a equals b


@torch.no_grad()
def mine_analogies(
    clusters: Clusters, *, block_bytes: int | None = None, dtype: torch.dtype | None = None
) -> Analogies:
    """Find the best analogy of every pair of clusters, of 2 or more classes, as in float64.

    Of equally good analogies, the one with the first class is returned. Approximate cosines have
    the given type, and a block of them takes ``block_bytes`` of memory.
    """
    device = clusters.centroids.device
    num_classes, num_clusters, _ = clusters.centroids.shape
    pairs = torch.combinations(torch.arange(num_clusters)).T  # (2, P)
    num_pairs = pairs.shape[1]
    search = _Search(
        clusters,
        # Pad with pairs of a cluster and itself: their difference is zero, and so is every cosine.
        pad(pairs, (0, -num_pairs % _ALIGNED)).to(device),
        dtype or _DTYPES[device.type],
        block_bytes or _BLOCK_BYTES[device.type],
    )
    best = [search.best_of(number) for number in range(num_classes)]
    classes, places, cosines = (
        torch.stack(column)[:, :num_pairs] for column in zip(*best, strict=True)
    )
    first, second = pairs.to(device)
    is_turned = cosines < 0
    return Analogies(
        classes.int(),
        torch.where(is_turned, second[places], first[places]).short(),
        torch.where(is_turned, first[places], second[places]).short(),
        cosines.abs().float(),
    )


class _Search:
    """Precomputed tensors, and the search for the analogies of one class."""

    def __init__(
        self, clusters: Clusters, pairs: Tensor, dtype: torch.dtype, block_bytes: int
    ) -> None:
        centroids, counts = clusters
        num_classes, num_clusters, _ = centroids.shape
        self._first, self._second = pairs
        self._block_bytes = block_bytes
        # Centre each class; this changes no difference.
        is_none = beyond(counts, num_clusters).unsqueeze(-1)
        wide = centroids.double().masked_fill(is_none, 0.0)
        wide = wide - wide.sum(dim=1, keepdim=True) / counts.view(-1, 1, 1)
        self._centroids = wide.masked_fill(is_none, 0.0)
        basis = torch.linalg.qr(self._centroids.mT).Q
        self._basis = pad(basis, (0, -basis.shape[-1] % _ALIGNED))  # (C, D, K)

        shape = (num_classes, pairs.shape[1])
        self._inverse = centroids.new_zeros(shape, dtype=torch.float64)  # zero for invalid pairs
        self._units = centroids.new_zeros((*shape, self._basis.shape[-1]), dtype=dtype)
        for number, (points, axes) in enumerate(zip(self._centroids, self._basis, strict=True)):
            difference = self._differences(points @ axes)
            length = torch.linalg.vector_norm(difference, dim=-1)
            radius = torch.linalg.vector_norm(points, dim=-1).amax()
            is_pair = (self._second < counts[number]) & (length > _LEAST_LENGTH * radius)
            inverse = torch.where(is_pair, 1 / length, 0.0)
            self._inverse[number] = inverse
            self._units[number] = difference * inverse.unsqueeze(-1)

        # Two vectors of length at most one, each rounded with relative error u, have a product with
        # an error of at most 2u (Cauchy-Schwarz). Rounding the product adds one u. The remaining 5u
        # cover float16 underflow and libraries that round partial sums. A float32 sum of K products
        # adds K rounding errors, doubled because GPUs truncate.
        unit = torch.finfo(dtype).eps / 2
        error = 8 * unit + 2 * self._basis.shape[-1] * torch.finfo(torch.float32).eps
        self._tolerance = 2 * error

    def best_of(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return class, pair and signed cosine of the best match of each pair, shape (P,)."""
        maxima = self._maxima(number)  # (C, P)
        maxima[number] = -math.inf
        is_candidate = maxima >= maxima.amax(dim=0) - self._tolerance
        is_candidate &= self._inverse[number] > 0
        classes, rows = is_candidate.nonzero(as_tuple=True)  # in the order of classes
        places, cosines = self._exact(number, classes, rows)

        best = torch.zeros_like(self._inverse[number])
        best.scatter_reduce_(0, rows, cosines.abs(), "amax")
        candidates = torch.arange(len(rows), device=rows.device)
        candidates = candidates.masked_fill(cosines.abs() < best[rows], len(rows))
        winner = torch.full_like(best, len(rows), dtype=torch.long)
        winner.scatter_reduce_(0, rows, candidates, "amin")
        # Pairs without a candidate take the padded zeros at the end, so their cosine is zero.
        classes, places, cosines = (pad(column, (0, 1)) for column in (classes, places, cosines))
        return classes[winner], places[winner], cosines[winner]

    def _maxima(self, number: int) -> Tensor:
        """Return approximate largest absolute cosines with each class's pairs, shape (C, P)."""
        num_classes, num_pairs, num_dims = self._units.shape
        inverse = self._inverse[number].unsqueeze(-1)
        projected = self._centroids[number] @ self._basis  # (C, M, K)
        maxima = torch.empty_like(self._inverse, dtype=torch.float32)
        itemsize = self._units.element_size()
        per_row = itemsize * num_pairs + (24 + itemsize) * num_dims
        num_rows = min(num_pairs, max(1, self._block_bytes // per_row))
        num_others = max(1, self._block_bytes // (per_row * num_rows))
        for start in range(0, num_pairs, num_rows):
            rows = slice(start, start + num_rows)
            for first_class in range(0, num_classes, num_others):
                others = slice(first_class, first_class + num_others)
                left = self._differences(projected[others], rows) * inverse[rows]
                cosines = left.to(self._units.dtype) @ self._units[others].mT  # (others, rows, P)
                maxima[others, rows] = _largest(cosines)
        return maxima

    def _exact(self, number: int, classes: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best pair of each candidate (class, row), and its signed cosine in float64."""
        products = self._centroids[number] @ self._centroids.mT  # (C, M, M)
        parts = []
        per_candidate = 24 * self._inverse.shape[1]
        count = max(1, self._block_bytes // per_candidate)
        for its_classes, its_rows in zip(classes.split(count), rows.split(count), strict=True):
            across = products[its_classes, self._first[its_rows]]
            across -= products[its_classes, self._second[its_rows]]
            cosines = across[:, self._first]
            cosines -= across[:, self._second]
            cosines *= self._inverse[its_classes]
            place = cosines.abs().argmax(dim=1)
            value = cosines.gather(1, place.unsqueeze(1)).squeeze(1)
            parts.append((place, value * self._inverse[number, its_rows]))
        places, values = zip(*parts, strict=True) if parts else ((rows,), (rows.double(),))
        return torch.cat(places), torch.cat(values)

    def _differences(self, points: Tensor, pairs: slice = slice(None)) -> Tensor:
        """Return differences of pairs of points, shape (..., pairs, dims)."""
        return points[..., self._first[pairs], :] - points[..., self._second[pairs], :]


def _largest(values: Tensor) -> Tensor:
    """Return the largest absolute value along the last dimension; may overwrite ``values``."""
    if values.is_cuda:  # one pass, without an intermediate tensor
        return torch.linalg.vector_norm(values, ord=math.inf, dim=-1)
    return values.abs_().amax(dim=-1)

"""Test clusters against scikit-learn, analogies against float64, and both by hand."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from cpaan.core.randomness import new_rng
from cpaan.methods.analogies import Analogies, Clusters, cluster_classes, lloyd, mine_analogies
from cpaan.protocol.tasks import BaseSet
from helpers.tasks import normals


def base_of(*counts: int, num_dims: int = 5) -> BaseSet:
    return BaseSet(normals(sum(counts), num_dims), torch.tensor(counts))


def test_lloyd_goes_where_that_of_scikit_learn_goes():
    base = base_of(40, 25, 33)
    starts = torch.stack([rows[:6] for rows in base.by_class()])
    rows = torch.zeros(3, 40, 5)
    for number, its_rows in enumerate(base.by_class()):
        rows[number, : len(its_rows)] = its_rows
    for num_iterations in (1, 3, 20):
        found = lloyd(rows, base.counts, starts, torch.full((3,), 6), num_iterations)

        for own, start, of_class in zip(found, starts, base.by_class(), strict=True):
            theirs = KMeans(6, init=start.numpy(), n_init=1, max_iter=num_iterations, tol=0.0)
            expected = theirs.fit(of_class.numpy()).cluster_centers_
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start", ["rows", "sphere"])
def test_a_class_with_few_rows_has_a_cluster_for_each_and_blocks_change_nothing(start):
    base = base_of(3, 50, 2)

    found, of_block, of_seed = (
        cluster_classes(base, 4, new_rng(seed), start=start, block_bytes=size)
        for seed, size in ((0, 2**30), (0, 1), (1, 2**30))
    )

    assert found.counts.tolist() == [3, 4, 2]
    assert found.centroids.shape == (3, 4, 5)
    assert (found.centroids[0, 3:] == 0).all()
    assert (found.centroids[2, 2:] == 0).all()
    if start == "rows":
        of_rows = sorted(base.by_class()[0].tolist())
        np.testing.assert_allclose(sorted(found.centroids[0, :3].tolist()), of_rows, atol=1e-6)
    torch.testing.assert_close(of_block, found)
    assert not torch.allclose(of_seed.centroids, found.centroids)


def test_clusters_that_are_far_from_zero_and_apart_are_found():
    middles = 4096 + 100 * torch.eye(3).repeat(2, 1, 1) * torch.tensor([1.0, 5.0]).view(2, 1, 1)
    rows = middles.repeat_interleave(8, dim=1) + 0.01 * normals(2, 24, 3)
    base = BaseSet(rows.flatten(0, 1), torch.tensor([24, 24]))

    found = cluster_classes(base, 3, new_rng(3))  # starts from one row of each cluster

    assert torch.cdist(found.centroids, middles).amin(dim=1).max() < 0.1


def test_a_start_that_no_row_is_near_becomes_a_row():
    """All rows are in one corner, so only the start in the nearest direction gets rows."""
    base = BaseSet(100 + normals(60, 3), torch.tensor([60]))

    found = cluster_classes(base, 6, new_rng(0), start="sphere")

    assert (found.centroids > 90).all()
    assert len(found.centroids[0].unique(dim=0)) == 6


def whole(centroids: Tensor) -> Clusters:
    """Return clusters with the same number for every class."""
    return Clusters(centroids, torch.full((len(centroids),), centroids.shape[1]))


def as_ordered(
    found: Analogies, num_clusters: int
) -> dict[tuple[int, int, int], tuple[int, int, int, float]]:
    """Return (class, c, d, cosine) of every (class, a, b), in both directions."""
    every = {}
    pairs = torch.combinations(torch.arange(num_clusters)).T
    for own in range(len(found.cosines)):
        columns = (*pairs, *(each[own] for each in found))
        for a, b, other, c, d, cosine in zip(*(each.tolist() for each in columns), strict=True):
            every[own, a, b] = (other, c, d, cosine)
            every[own, b, a] = (other, d, c, cosine)
    return every


@pytest.mark.parametrize("dtype", [torch.float32, torch.half], ids=str)
@pytest.mark.parametrize("shape", [(7, 6, 20), (8, 9, 4), (4, 12, 64), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("block_bytes", [3_000, 2**26])
def test_analogies_are_those_of_all_products_in_float64(shape, dtype, block_bytes):
    centroids = 50 + normals(*shape)
    found = mine_analogies(whole(centroids), dtype=dtype, block_bytes=block_bytes)
    every = as_ordered(found, shape[1])

    pairs = list(itertools.permutations(range(shape[1]), 2))
    starts, ends = zip(*pairs, strict=True)
    wide = centroids.double()
    units = normalize(wide[:, list(ends)] - wide[:, list(starts)], dim=-1)  # (classes, pairs, D)
    for own, (row, (a, b)) in itertools.product(range(shape[0]), enumerate(pairs)):
        cosines = units @ units[own, row]
        cosines[own] = -1
        other, place = divmod(int(cosines.argmax()), len(pairs))
        assert every[own, a, b][:3] == (other, *pairs[place])
        assert every[own, a, b][3] == pytest.approx(float(cosines[other, place]), abs=1e-6)


def test_what_is_no_pair_has_no_analogy():
    centroids = normals(3, 4, 6)
    centroids[1, 2] = centroids[1, 0]  # two equal clusters
    clusters = Clusters(centroids, torch.tensor([4, 4, 2]))  # the last class has two

    found = mine_analogies(clusters)

    # Pairs are (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3).
    assert (found.cosines[0] > 0).all()
    assert (found.cosines > 0).tolist()[1] == [True, False, True, True, True, True]
    assert (found.cosines > 0).tolist()[2] == [True, False, False, False, False, False]
    of_last = found.classes == 2
    assert (found.fourth[of_last] < 2).all()
    assert (found.third[of_last] < 2).all()
    of_middle = (found.classes == 1) & (found.cosines > 0)
    ends = zip(found.third[of_middle].tolist(), found.fourth[of_middle].tolist(), strict=True)
    assert {0, 2} not in [set(each) for each in ends]


def test_two_that_float16_cannot_tell_apart_are_told_apart():
    """Class 1 is off by an angle of 0.02 (cosine 1 - 2e-4), and class 2 by zero."""
    first, second = torch.eye(8)[:2]
    off = 5 * (first * np.cos(0.02) + second * np.sin(0.02))
    centroids = torch.stack([torch.stack([0 * first, each]) for each in (first, off, 3 * first)])

    found = mine_analogies(whole(centroids), dtype=torch.half)

    assert found.classes[0].tolist() == [2]
    assert found.cosines[0].tolist() == [pytest.approx(1.0, abs=1e-7)]


class Largest(TorchDispatchMode):
    """Record the largest result of an operation, in bytes."""

    num_bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.num_bytes = max(self.num_bytes, result.numel() * result.element_size())
        return result


def test_blocks_keep_to_their_budget():
    """All (10 x 45)² cosines would take 810 KB in float32; the tables take 18 KB."""
    for block_bytes in (60_000, 150_000, 400_000):
        with Largest() as noted:
            mine_analogies(whole(normals(10, 10, 10)), block_bytes=block_bytes)

        assert 0.1 * block_bytes < noted.num_bytes <= block_bytes

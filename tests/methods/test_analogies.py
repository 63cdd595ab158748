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
from cpaan.methods.analogies import Clusters, cluster_classes, lloyd, mine_analogies
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
        centroids = lloyd(rows, base.counts, starts, torch.full((3,), 6), num_iterations)

        for ours, start, of_class in zip(centroids, starts, base.by_class(), strict=True):
            theirs = KMeans(6, init=start.numpy(), n_init=1, max_iter=num_iterations, tol=0.0)
            expected = theirs.fit(of_class.numpy()).cluster_centers_
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("start", ["rows", "sphere"])
def test_a_class_with_few_rows_has_a_cluster_for_each_and_blocks_change_nothing(start):
    base = base_of(3, 50, 2)

    clusters, of_block, of_seed = (
        cluster_classes(base, 4, new_rng(seed), start=start, block_bytes=size)
        for seed, size in ((0, 2**30), (0, 1), (1, 2**30))
    )

    assert clusters.counts.tolist() == [3, 4, 2]
    assert clusters.centroids.shape == (3, 4, 5)
    assert (clusters.centroids[0, 3:] == 0).all()
    assert (clusters.centroids[2, 2:] == 0).all()
    if start == "rows":
        of_rows = sorted(base.by_class()[0].tolist())
        np.testing.assert_allclose(sorted(clusters.centroids[0, :3].tolist()), of_rows, atol=1e-6)
    torch.testing.assert_close(of_block, clusters)
    assert not torch.allclose(of_seed.centroids, clusters.centroids)


def test_clusters_that_are_far_from_zero_and_apart_are_found():
    middles = 4096 + 100 * torch.eye(3).repeat(2, 1, 1) * torch.tensor([1.0, 5.0]).view(2, 1, 1)
    rows = middles.repeat_interleave(8, dim=1) + 0.01 * normals(2, 24, 3)
    base = BaseSet(rows.flatten(0, 1), torch.tensor([24, 24]))

    clusters = cluster_classes(base, 3, new_rng(3))  # starts from one row of each cluster

    assert torch.cdist(clusters.centroids, middles).amin(dim=1).max() < 0.1


def test_a_start_that_no_row_is_near_becomes_a_row():
    """All rows are in one corner, so only the start in the nearest direction gets rows."""
    base = BaseSet(100 + normals(60, 3), torch.tensor([60]))

    clusters = cluster_classes(base, 6, new_rng(0), start="sphere")

    assert (clusters.centroids > 90).all()
    assert len(clusters.centroids[0].unique(dim=0)) == 6


def whole(centroids: Tensor) -> Clusters:
    """Return clusters with the same number for every class."""
    return Clusters(centroids, torch.full((len(centroids),), centroids.shape[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.half], ids=str)
@pytest.mark.parametrize("shape", [(7, 6, 20), (8, 9, 4), (4, 12, 64), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("block_bytes", [3_000, 2**26])
def test_analogies_are_those_of_all_products_in_float64(shape, dtype, block_bytes):
    centroids = 50 + normals(*shape)
    analogies = mine_analogies(whole(centroids), dtype=dtype, block_bytes=block_bytes)
    pairs = list(itertools.permutations(range(shape[1]), 2))
    starts, ends = zip(*pairs, strict=True)
    wide = centroids.double()
    units = normalize(wide[:, list(ends)] - wide[:, list(starts)], dim=-1)  # (classes, pairs, D)

    once = enumerate(itertools.combinations(range(shape[1]), 2))
    for label, (number, pair) in itertools.product(range(shape[0]), once):
        cosines = units @ units[label, pairs.index(pair)]
        cosines[label] = -1
        other, place = divmod(int(cosines.argmax()), len(pairs))
        cosine = pytest.approx(float(cosines[other, place]), abs=1e-6)
        analogy = tuple(column[label, number].item() for column in analogies)
        assert analogy == (other, *pairs[place], cosine)


def test_what_is_no_pair_has_no_analogy():
    centroids = normals(3, 4, 6)
    centroids[1, 2] = centroids[1, 0]  # two equal clusters
    clusters = Clusters(centroids, torch.tensor([4, 4, 2]))  # the last class has two

    analogies = mine_analogies(clusters)

    # Pairs are (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3).
    assert (analogies.cosines[0] > 0).all()
    assert (analogies.cosines > 0).tolist()[1] == [True, False, True, True, True, True]
    assert (analogies.cosines > 0).tolist()[2] == [True, False, False, False, False, False]
    of_last = analogies.classes == 2
    assert (analogies.fourth[of_last] < 2).all()
    assert (analogies.third[of_last] < 2).all()
    of_middle = (analogies.classes == 1) & (analogies.cosines > 0)
    ends = torch.stack([analogies.third, analogies.fourth])[:, of_middle].T.tolist()
    assert {0, 2} not in map(set, ends)


def test_two_that_float16_cannot_tell_apart_are_told_apart():
    """Class 1 is off by an angle of 0.02 (cosine 1 - 2e-4), and class 2 by zero."""
    first, second = torch.eye(8)[:2]
    off = 5 * (first * np.cos(0.02) + second * np.sin(0.02))
    centroids = torch.stack([torch.stack([0 * first, end]) for end in (first, off, 3 * first)])

    analogies = mine_analogies(whole(centroids), dtype=torch.half)

    assert analogies.classes[0].tolist() == [2]
    assert analogies.cosines[0].tolist() == [pytest.approx(1.0, abs=1e-7)]


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

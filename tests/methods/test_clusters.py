"""Clusters of base classes: against scikit-learn, and by hand."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.methods.parts.clusters import cluster_classes, lloyd
from cpaan.protocol.tasks import BaseSet


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed))


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
            expected = _scikit_learn(of_class.numpy(), start.numpy(), num_iterations)
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)


def _scikit_learn(rows: np.ndarray, start: np.ndarray, num_iterations: int) -> np.ndarray:
    model = KMeans(len(start), init=start, n_init=1, max_iter=num_iterations, tol=0.0)
    return model.fit(rows).cluster_centers_


@pytest.mark.parametrize("start", ["rows", "sphere"])
def test_a_class_with_few_rows_has_a_cluster_for_each(start):
    base = base_of(3, 50, 2)

    found = cluster_classes(base, 4, new_rng(0), start=start)

    assert found.counts.tolist() == [3, 4, 2]
    assert found.centroids.shape == (3, 4, 5)
    assert (found.centroids[0, 3:] == 0).all()
    assert (found.centroids[2, 2:] == 0).all()
    if start == "rows":
        of_rows = sorted(base.by_class()[0].tolist())
        np.testing.assert_allclose(sorted(found.centroids[0, :3].tolist()), of_rows, atol=1e-6)


def test_clusters_that_are_far_from_zero_and_apart_are_found():
    middles = 4096 + 100 * torch.eye(3).repeat(2, 1, 1) * torch.tensor([1.0, 5.0]).view(2, 1, 1)
    rows = middles.repeat_interleave(8, dim=1) + 0.01 * normals(2, 24, 3)
    base = BaseSet(rows.flatten(0, 1), torch.tensor([24, 24]))
    for seed in range(40):  # a start from one row of each is a matter of luck
        found = cluster_classes(base, 3, new_rng(seed))
        distances = torch.cdist(found.centroids, middles)
        if (distances.amin(dim=1) < 1).all():
            break

    assert distances.amin(dim=1).max() < 0.1


@pytest.mark.parametrize("start", ["rows", "sphere"])
def test_clusters_do_not_depend_on_blocks_but_on_the_seed(start):
    base = base_of(30, 20, 25, 4)

    one, other = (
        cluster_classes(base, 5, new_rng(0), start=start, block_bytes=size) for size in (1, 2**30)
    )

    torch.testing.assert_close(one, other)
    other_seed = cluster_classes(base, 5, new_rng(1), start=start)
    assert not torch.allclose(one.centroids, other_seed.centroids)


def test_a_start_that_no_row_is_near_becomes_a_row():
    """All rows are in one corner: but for the nearest direction, starts would have nothing."""
    base = BaseSet(100 + normals(60, 3), torch.tensor([60]))

    found = cluster_classes(base, 6, new_rng(0), start="sphere")

    assert (found.centroids > 90).all()
    assert len(found.centroids[0].unique(dim=0)) == 6


def test_no_iteration_loses_anything():
    base = base_of(80, num_dims=4)
    costs = []
    for num_iterations in (0, 1, 2, 5, 20):
        found = cluster_classes(base, 8, new_rng(0), num_iterations=num_iterations)
        nearest = torch.cdist(base.features, found.centroids[0]).amin(dim=1)
        costs.append(float(nearest.square().sum()))

    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]

"""Analogies between clusters: against all products in float64, and by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from cpaan.core.randomness import new_rng
from cpaan.methods.parts.analogies import Analogies, mine_analogies
from cpaan.methods.parts.clusters import Clusters


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed))


def whole(centroids: Tensor) -> Clusters:
    """Return clusters of classes that all have as many."""
    return Clusters(centroids, torch.full((len(centroids),), centroids.shape[1]))


def ordered_pairs(num_clusters: int) -> Tensor:
    """All ordered pairs of different clusters, shape (2, M * (M - 1))."""
    numbers = torch.arange(num_clusters)
    pairs = torch.cartesian_prod(numbers, numbers).T
    return pairs[:, pairs[0] != pairs[1]]


def unit_differences(centroids: Tensor) -> Tensor:
    """Directions from one cluster to another, shape (..., M * (M - 1), D)."""
    first, second = ordered_pairs(centroids.shape[-2])
    return normalize(centroids[..., second, :] - centroids[..., first, :], dim=-1)


def plain(units: Tensor, own: int) -> tuple[Tensor, Tensor]:
    """The best cosines of the ordered pairs of a class, and places among all pairs."""
    cosines = units[own] @ units.flatten(0, 1).T
    cosines.unflatten(1, units.shape[:2])[:, own] = -1
    best = cosines.max(dim=1)
    return best.values, best.indices


def as_ordered(found: Analogies) -> dict[tuple[int, int, int], tuple[int, int, int, float]]:
    """Return (class, c, d, cosine) of every (class, a, b), both ways round."""
    every = {}
    for own in range(len(found.cosines)):
        columns = (found.first, found.second, found.classes[own], found.third[own])
        columns = (*columns, found.fourth[own], found.cosines[own])
        for a, b, other, c, d, cosine in zip(*(each.tolist() for each in columns), strict=True):
            every[own, a, b] = (other, c, d, cosine)
            every[own, b, a] = (other, d, c, cosine)
    return every


@pytest.mark.parametrize("dtype", [torch.float32, torch.half], ids=str)
@pytest.mark.parametrize("shape", [(7, 6, 20), (8, 9, 4), (4, 12, 64), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("block_bytes", [3_000, 2**26])
def test_analogies_are_those_of_all_products_in_float64(shape, dtype, block_bytes):
    centroids = 50 + normals(*shape)
    pairs = ordered_pairs(shape[1])
    units = unit_differences(centroids.double())
    every = as_ordered(mine_analogies(whole(centroids), dtype=dtype, block_bytes=block_bytes))

    for own in range(shape[0]):
        cosines, places = plain(units, own)
        for row, (a, b) in enumerate(pairs.T.tolist()):
            place = int(places[row])
            c, d = pairs[:, place % pairs.shape[1]].tolist()
            *winner, cosine = every[own, a, b]
            assert winner == [place // pairs.shape[1], c, d]
            assert cosine == pytest.approx(float(cosines[row]), abs=1e-6)


def test_translated_copies_of_a_grid_are_full_of_analogies():
    grid = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))
    moves = torch.tensor([[0.0, 0.0], [40.0, -7.0], [0.5, 1000.0]])
    centroids = moves.unsqueeze(1) + grid

    for (own, a, b), (other, c, d, cosine) in as_ordered(mine_analogies(whole(centroids))).items():
        assert other != own
        assert cosine == pytest.approx(1.0)
        step, its_step = grid[b] - grid[a], centroids[other, d] - centroids[other, c]
        lengths = step.norm() * its_step.norm()
        assert float(step @ its_step / lengths) == pytest.approx(1.0)  # a shorter one may serve


def test_a_known_translation_is_found_in_the_class_that_has_it():
    """In many dimensions no two random differences are alike; these were put there."""
    centroids = normals(5, 6, 200)
    centroids[3, 4] = centroids[3, 1] + 2 * (centroids[0, 5] - centroids[0, 2])

    every = as_ordered(mine_analogies(whole(centroids)))

    assert every[0, 2, 5] == (3, 1, 4, pytest.approx(1.0))
    assert every[0, 5, 2] == (3, 4, 1, pytest.approx(1.0))
    assert every[3, 4, 1] == (0, 5, 2, pytest.approx(1.0))


def test_what_is_no_pair_has_no_analogy():
    centroids = normals(3, 4, 6)
    centroids[1, 2] = centroids[1, 0]  # two clusters in the same place
    clusters = Clusters(centroids, torch.tensor([4, 4, 2]))  # and two that are none

    found = mine_analogies(clusters)

    pairs = list(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert pairs == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
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
    """Class 1 is off by an angle of 0.02, of which the cosine is 1 - 2e-4; class 2 by none."""
    first, second = torch.eye(8)[:2]
    off = 5 * (first * np.cos(0.02) + second * np.sin(0.02))
    centroids = torch.stack([torch.stack([0 * first, each]) for each in (first, off, 3 * first)])

    found = mine_analogies(whole(centroids), dtype=torch.half)

    assert found.classes[0].tolist() == [2]
    assert found.cosines[0].tolist() == [pytest.approx(1.0, abs=1e-7)]


class Largest(TorchDispatchMode):
    """Notes the most bytes that a single operation's result has."""

    num_bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.num_bytes = max(self.num_bytes, result.numel() * result.element_size())
        return result


def test_blocks_keep_to_their_budget():
    """All 10 x 45 squared cosines would be 810 KB in float32; the tables are 18 KB."""
    num_classes, num_clusters, num_dims = 10, 10, 10
    centroids = normals(num_classes, num_clusters, num_dims)
    largest = []
    for block_bytes in (60_000, 150_000, 400_000):
        with Largest() as noted:
            mine_analogies(whole(centroids), block_bytes=block_bytes)
        assert noted.num_bytes <= block_bytes
        largest.append(noted.num_bytes)

    assert largest == sorted(set(largest))  # what there is, is used


def test_a_row_at_a_time_where_one_class_is_beyond_the_budget():
    centroids = normals(3, 30, 4)  # 435 pairs squared are 757 KB
    with Largest() as noted:
        found = mine_analogies(whole(centroids), block_bytes=60_000)

    assert noted.num_bytes <= 60_000
    torch.testing.assert_close(found, mine_analogies(whole(centroids)))


def test_some_pairs_are_looked_at_alone():
    centroids = normals(6, 8, 30)

    found = mine_analogies(whole(centroids), most_pairs=5, rng=new_rng(0))

    chosen = set(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert len(chosen) == 5
    ends = zip(found.third.flatten().tolist(), found.fourth.flatten().tolist(), strict=True)
    assert {tuple(sorted(each)) for each in ends} <= chosen
    other = mine_analogies(whole(centroids), most_pairs=5, rng=new_rng(1))
    assert chosen != set(zip(other.first.tolist(), other.second.tolist(), strict=True))


@pytest.mark.parametrize(("num_classes", "num_clusters"), [(1, 5), (5, 1)])
def test_without_two_of_each_there_are_no_analogies(num_classes, num_clusters):
    with pytest.raises(ValueError, match=f"got {num_classes} and {num_clusters}"):
        mine_analogies(whole(normals(num_classes, num_clusters, 3)))


def test_random_pairs_are_decided_by_a_given_stream():
    with pytest.raises(ValueError, match="3 random pairs of 6 need an rng"):
        mine_analogies(whole(normals(3, 4, 5)), most_pairs=3)


def test_results_are_compact():
    found = mine_analogies(whole(normals(3, 5, 4)))

    each = sum(value.element_size() for value in found[2:])
    assert each == 12
    assert found.cosines.shape == (3, 10)

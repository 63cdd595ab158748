"""Test Siamese networks: pairs, and comparisons by hand."""

import dataclasses

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.siamese import SiameseConfig, SiameseNetwork
from cpaan.protocol.tasks import BaseSet, Problem
from helpers.tasks import normals, small_task

BASE = BaseSet(normals(20, 8), torch.tensor([10, 10]))
SMALL = SiameseConfig(num_episodes=60, num_pairs=64, hidden_dim=16, num_exemplars=5)
IDENTITY = SMALL.with_overrides({"normalisation": "none", "output": "linear", "num_exemplars": 2})


def network_of(base: BaseSet, config: SiameseConfig = SMALL, **settings: object) -> SiameseNetwork:
    return SiameseNetwork(base, config.with_overrides(settings), new_rng(0))


@pytest.mark.parametrize(
    ("comparison", "expected"),
    # With weights (-1, 2) and bias 0.5, the query (1, 0) scores -|1 - x| + 2 |y| + 0.5.
    [
        # (0, 0): -0.5, (2, 0): -0.5; (0, 4): 7.5; (1, 1): 2.5, (3, 1): 0.5
        ("mean", [-0.5, 7.5, 1.5]),
        ("max", [-0.5, 7.5, 2.5]),
        # (1, 0): 0.5; (0, 4): 7.5; (2, 1): 1.5
        ("centroid", [0.5, 7.5, 1.5]),
    ],
)
def test_scores_are_weighted_differences_by_hand(comparison, expected):
    task = small_task(
        base=[[[0.0, 0.0], [2.0, 0.0]], [[0.0, 4.0], [0.0, 4.0]]], shots=[[[1.0, 1.0], [3.0, 1.0]]]
    )
    network = network_of(task.base, IDENTITY, comparison=comparison)
    network.weight.data, network.bias.data = torch.tensor([-1.0, 2.0]), torch.tensor(0.5)

    scores = network.solve(task, new_rng(0))(torch.tensor([[1.0, 0.0]]))

    torch.testing.assert_close(scores, torch.tensor([[expected]]))


@pytest.mark.parametrize("sign", [-1.0, 1.0, None])
def test_all_pairs_at_once_score_as_one_by_one(sign):
    network = network_of(BASE)
    first, second = normals(3, 8), normals(5, 8, seed=1)
    drawn = normals(8, seed=2)
    network.weight.data = drawn if sign is None else sign * drawn.abs()

    scores = network.compare_all(first, second)

    one_by_one = [torch.stack([network.compare(row, other) for other in second]) for row in first]
    torch.testing.assert_close(scores, torch.stack(one_by_one).detach())


def test_the_largest_score_is_of_equally_many_examples_of_all_classes():
    """With one shot, a base class has one exemplar, too, even if it has more rows."""
    base = [[[float(row)] for row in range(50)], [[100.0], [101.0]]]
    task = small_task(base=base, shots=[[[0.0], [9.0], [5.0]]])
    task = dataclasses.replace(task, problems=tuple(Problem(shots, 0) for shots in (1, 2, 3)))
    network = network_of(task.base, IDENTITY, comparison="max", num_exemplars=20)

    scores = network.solve(task, new_rng(0))(torch.arange(50.0).unsqueeze(1))

    # Scores of the identity fall with the distance, so a query at an exemplar has the largest.
    is_largest = scores >= network.bias.detach() - 1e-4
    assert is_largest[..., 0].sum(dim=1).tolist() == [1, 2, 3]
    assert is_largest[..., 2].sum(dim=1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("near_share", [0.0, 0.5, 1.0])
def test_half_of_the_pairs_are_of_one_class_and_the_others_are_as_near_as_asked(near_share):
    """Classes are on a line, so the nearest class of each is known; rows differ slightly."""
    nearest = {0.0: 1.0, 1.0: 0.0, 2.5: 1.0, 10.0: 2.5}
    counts = (2, 3, 4, 5)
    rows = [[place, row / 64] for place, n in zip(nearest, counts, strict=True) for row in range(n)]
    base = BaseSet(torch.tensor(rows), torch.tensor(counts))
    network = network_of(base, IDENTITY, near_share=near_share, num_near=1)

    met = set()
    for seed in range(30):
        drawn, is_same = network.draw_pairs(new_rng(seed))
        assert is_same.tolist() == [1.0] * 32 + [0.0] * 32
        first, second = drawn
        assert (first[:32, 0] == second[:32, 0]).all()
        assert (first[:32, 1] != second[:32, 1]).all()
        assert (first[32:, 0] != second[32:, 0]).all()
        is_near = [nearest[one] == other for one, other in drawn[:, 32:, 0].T.tolist()]
        assert all(is_near[: round(32 * near_share)])
        assert all(is_near) == (near_share == 1.0)
        met |= {tuple(row) for row in drawn.flatten(0, 1).tolist()}
    assert len(met) == sum(counts)  # all rows are drawn


def test_what_is_left_out_is_left_out_of_both_of_a_pair():
    network = network_of(BASE, output="linear")

    first, second = network(normals(1, 50, 8).expand(2, -1, -1), new_rng(2))

    assert torch.equal(first, second)
    assert 0.3 < float((first == 0).float().mean()) < 0.7


@pytest.mark.parametrize(("counts", "message"), [([2, 1], "of 2, has 1"), ([2], "of 1, has 2")])
def test_too_few_examples_are_refused(counts, message):
    with pytest.raises(ValueError, match=f"the smallest {message} train rows, but at least 2 cl"):
        network_of(BaseSet(normals(sum(counts), 1), torch.tensor(counts)))

"""Test MAML: inner steps by hand, and the meta-gradient in two other ways."""

import higher
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpaan.core.randomness import new_rng
from cpaan.methods.maml import AdaptedNetwork, MAMLConfig, Support
from cpaan.protocol.tasks import BaseSet
from helpers.tasks import normals, read_problems

SMALL = MAMLConfig(
    num_tasks=2,
    num_ways=5,
    episode_shots=(1, 2, 5),
    num_queries=3,
    num_inner_steps=3,
    hidden_dim=16,
)
PLAIN = {"normalisation": "none", "output": "linear", "dropout": 0.0, "scales_rows": False}


def tiny(**settings: object) -> AdaptedNetwork:
    """Return a three-dimensional network in float64, without zero weights."""
    config = SMALL.with_overrides({**PLAIN, "num_ways": 2, "hidden_dim": 4, **settings})
    base = BaseSet(normals(24, 3), torch.tensor([12, 12]))
    network = AdaptedNetwork(base, config, new_rng(1)).double()
    for parameter in network.parameters():
        parameter.data = 0.5 * normals(*parameter.shape, seed=2).double()
    return network


def tasks() -> tuple[Tensor, Tensor, Tensor]:
    """Return supports (2, classes, shots, 3), queries (2, 4, 3) and labels (2, 4) of two tasks."""
    supports, queries = normals(2, 3, 2, 3, seed=3).double(), normals(2, 4, 3, seed=4).double()
    return supports, queries, torch.randint(3, (2, 4), generator=new_rng(5))


def query_loss(network: AdaptedNetwork) -> Tensor:
    supports, queries, labels = tasks()
    logits = network.query_logits(supports, queries)
    return cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_on_an_identity_the_first_two_steps_are_softmax_regression_by_hand():
    """From zero, all C classes are equally likely; a row moves by rate / C · (own mean - mean)."""
    supports = torch.tensor([[[[4.0, 0.0], [2.0, 0.0]], [[0.0, 6.0], [0.0, 0.0]]]])
    base = BaseSet(normals(12, 2), torch.tensor([6, 6]))
    config = SMALL.with_overrides({**PLAIN, "episode_shots": (1,), "inner_learning_rate": 0.5})
    network = AdaptedNetwork(base, config, new_rng(0))
    support = Support.of(supports)

    weights, later = (
        network.adapt(network.begin(support), support, num_steps=count) for count in (1, 2)
    )

    # Class means (3, 0) and (0, 3), overall mean (1.5, 1.5): 0.5 / 2 · (±1.5, ∓1.5).
    expected = torch.tensor([[[0.375, -0.375], [-0.375, 0.375]]])
    torch.testing.assert_close(weights.rows, expected)
    torch.testing.assert_close(weights.row_bias, torch.zeros(1, 1, 2))
    # All rows were equal, so the body had no gradient.
    torch.testing.assert_close(weights.last, torch.zeros(1, 2, 16))
    # Each of the four examples x has a quarter of the loss, and the error p - y.
    rows, inputs = expected[0], supports.view(4, 2)
    errors = ((inputs @ rows.T).softmax(dim=1) - torch.eye(2).repeat_interleave(2, dim=0)) / 4
    torch.testing.assert_close(later.rows[0], rows - 0.5 * errors.T @ inputs)
    torch.testing.assert_close(later.row_bias[0, 0], -0.5 * errors.sum(dim=0))
    # In the second step, the gradient reaches the last layer through the rows.
    hidden = network.hidden(inputs).relu().detach()
    torch.testing.assert_close(later.last[0], -0.5 * (errors @ rows).T @ hidden)
    torch.testing.assert_close(later.last_bias[0, 0], -0.5 * (errors @ rows).sum(dim=0))
    torch.testing.assert_close(later.hidden[0], network.hidden.weight.detach())


class Residual(nn.Sequential):
    """Layers whose output is added to their input."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + super().forward(inputs)


def test_the_meta_gradient_is_that_of_higher():
    network = tiny(inner_learning_rate=0.3)
    query_loss(network).backward()

    supports, queries, labels = tasks()
    hidden, last, head = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(3, 3)
    model = nn.Sequential(Residual(hidden, nn.ReLU(), last), head).double()
    hidden.load_state_dict(network.hidden.state_dict())
    last.load_state_dict(network.last.state_dict())
    head.load_state_dict({"weight": torch.zeros(3, 3), "bias": torch.zeros(3)})
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for number in range(2):
        with higher.innerloop_ctx(model, optimiser, copy_initial_weights=False) as (
            functional,
            differentiable,
        ):
            for _ in range(3):
                logits = functional(supports[number].flatten(0, 1))
                differentiable.step(cross_entropy(logits, torch.tensor([0, 0, 1, 1, 2, 2])))
            losses.append(cross_entropy(functional(queries[number]), labels[number]))
    torch.stack(losses).mean().backward()

    for theirs, ours in ((hidden, network.hidden), (last, network.last)):
        assert ours.weight.grad.abs().max() > 1e-3
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)


@pytest.mark.parametrize("head", ["shared", "prototype"])
@pytest.mark.parametrize("output", ["linear", "sphere"])
def test_the_meta_gradient_is_a_quotient_of_differences(head, output):
    network = tiny(head=head, output=output, scales_rows=True, inner_learning_rate=0.2)
    query_loss(network).backward()

    for name, parameter in network.named_parameters():
        direction = normals(*parameter.shape, seed=7).double()
        ends = []
        for step in (1e-5, -2e-5):
            parameter.data += step * direction
            ends.append(float(query_loss(network).detach()))
        parameter.data += 1e-5 * direction
        slope = (ends[0] - ends[1]) / 2e-5
        assert slope == pytest.approx(float((parameter.grad * direction).sum()), rel=1e-4), name
        assert abs(slope) > 1e-4


def test_each_number_of_the_meta_gradient_is_clipped():
    free, clipped = tiny(), tiny(clip=1e-3)
    for network in (free, clipped):
        query_loss(network).backward()

    for ours, all_of_it in zip(clipped.parameters(), free.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, all_of_it.grad.clamp(-1e-3, 1e-3))
    assert free.last.weight.grad.abs().max() > 1e-3


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_without_steps_prototype_rows_rank_like_nearest_centroids(gaussians, scale):
    """Scores are distances to centroids, up to a constant for each query."""
    task, queries = read_problems(gaussians)
    settings = {"head": "prototype", "num_test_steps": 0, "num_base_shots": 25, **PLAIN}
    config = SMALL.with_overrides({**settings, "prototype_scale": scale})

    network = AdaptedNetwork(task.base, config, new_rng(0))
    scores = network.solve(task, new_rng(0))(queries.features).detach()

    base = task.base.prototypes[: task.num_base].expand(len(task.problems), -1, -1)
    centroids = torch.cat([base, task.novel_prototypes], dim=1)
    squared = (queries.features.unsqueeze(1) - centroids.unsqueeze(1)).square().sum(dim=-1)
    lengths = queries.features.square().sum(dim=-1, keepdim=True)
    torch.testing.assert_close(scores, scale * (lengths - squared) / 8, rtol=1e-4, atol=1e-4)

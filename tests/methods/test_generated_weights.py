"""Test cosine classifiers with generated weights: episodes, AWG and wDAE by hand, training."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from cpaan.core.randomness import new_rng
from cpaan.methods.denoising_weights import (
    DenoisingNetwork,
    DenoisingWeightsConfig,
    Messages,
    neighbours_of,
)
from cpaan.methods.registry import METHODS
from cpaan.methods.weight_generator import AttentiveWeights, WeightGeneratorConfig
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.heads import CosineCentroid
from cpaan.protocol.tasks import BaseSet
from helpers.tasks import normals, read_problems

AWG = WeightGeneratorConfig(num_episodes=20, episode_shots=(1, 2), num_queries=3)
WDAE = DenoisingWeightsConfig(
    num_episodes=20, episode_shots=(1, 2), num_queries=3, hidden_dim=16, num_neighbours=3
)
BASE = BaseSet(normals(120, 6), torch.full((12,), 10))


def numbered_classes(num_classes: int) -> BaseSet:
    """Return rows in the dimension of their class; the length of a row is its number."""
    rows = [
        float(length) * torch.eye(num_classes)[label]
        for label in range(num_classes)
        for length in range(1, 11)
    ]
    return BaseSet(torch.stack(rows), torch.full((num_classes,), 10))


@pytest.mark.parametrize(
    ("novel_share", "num_novel"), [(0.5, 3), (250 / 389, 4), (0.01, 1), (0.99, 5)]
)
def test_an_episode_splits_the_classes_and_labels_base_ones_first(novel_share, num_novel):
    settings = {"novel_share": novel_share, "episode_shots": (2,), "centred": False, "dropout": 0.0}
    learner = AttentiveWeights(numbered_classes(6), AWG.with_overrides(settings), new_rng(0))
    met = set()
    for seed in range(20):
        classes, supports, queries, labels = learner.draw(2, new_rng(seed))

        novel = classes[-num_novel:]
        assert sorted(classes.tolist()) == list(range(6))
        assert supports.shape == (num_novel, 2, 6)
        assert queries.shape == (6 * 3, 6)
        assert torch.equal(queries.argmax(dim=1), classes[labels])
        assert torch.equal(supports.argmax(dim=2), novel.unsqueeze(1).expand(-1, 2))
        assert labels.bincount().tolist() == [3] * 6
        met |= set(novel.tolist())
    assert met == set(range(6))


def axes(num_classes: int = 3, **settings: object) -> AttentiveWeights:
    """Return a learner with base class i on axis i; attention queries equal the supports."""
    config = AWG.with_overrides({"centred": False, **settings})
    learner = AttentiveWeights(numbered_classes(num_classes), config, new_rng(0))
    learner.query.weight.data = torch.eye(num_classes)
    return learner


def test_a_generated_weight_by_hand():
    """Attention exp(log 3 · 1) : exp(0) gives 3/4 of the first base class and 1/4 of the other."""
    learner = axes(2, attention_scale=math.log(3), attention_start=2.0)

    weights = learner.weights(torch.arange(2), torch.tensor([[[1.0, 0.0]]]))

    expected = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1 + 2 * 0.75, 2 * 0.25]])
    torch.testing.assert_close(weights, expected)


def test_attention_is_over_the_base_classes_at_hand():
    """A class that plays a novel one must not get its own weight."""
    learner = axes()
    supports = torch.tensor([[[0.0, 1.0, 0.0]]])

    learner.weights(torch.tensor([0, 2]), supports)[-1].sum().backward()

    assert torch.equal(learner.base_weights.grad[1], torch.zeros(3))
    assert torch.equal(learner.keys.grad[1], torch.zeros(3))
    assert learner.base_weights.grad[0].abs().sum() > 0


def test_without_attention_and_training_both_are_the_nearest_cosine_centroid(gaussians):
    task, queries = read_problems(gaussians, shots=(1,))
    scores, of_wdae = (
        learner(task.base.in_order_of_names(), config, new_rng(0))
        .solve(task, new_rng(0))(queries.features)
        .detach()
        for learner, config in (
            (AttentiveWeights, AWG.with_overrides({"attention_start": 0.0})),
            (DenoisingNetwork, WDAE),
        )
    )

    head = CosineCentroid(EvaluationConfig())
    head.fit(task, None, new_rng(0))
    expected = head.scores(queries.features)

    torch.testing.assert_close(scores[..., 12:], expected[..., 12:], rtol=1e-4, atol=1e-4)
    # The weight of a base class is the mean of directions, not the direction of the mean.
    directions = normalize(task.base.features - task.base.prototypes.mean(dim=0), dim=-1)
    means = normalize(directions.view(24, 25, 8).mean(dim=1), dim=-1)
    by_hand = 10 * normalize(queries.features - task.base.prototypes.mean(dim=0), dim=-1) @ means.T
    torch.testing.assert_close(scores[0, :, :12], by_hand[:, :12], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(of_wdae, scores, rtol=1e-4, atol=1e-4)


def test_a_class_hears_of_the_nearest_others_by_their_cosine():
    degrees = torch.tensor([0.0, 10.0, 30.0, 90.0]).deg2rad()
    weights = torch.stack([degrees.cos(), degrees.sin()], dim=1)

    nearest, shares = neighbours_of(weights, num_neighbours=2, temperature=5.0)

    assert nearest.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    near, far = (math.exp(5 * math.cos(math.radians(angle))) for angle in (10, 30))
    expected = torch.tensor([near / (near + far), far / (near + far)])
    torch.testing.assert_close(shares[0], expected)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(4))


def test_a_message_is_of_the_pair_and_is_weighed():
    """Layer normalisation of two numbers leaves only their order: plus or minus one."""
    messages = Messages(2, 2, 0.0, new_rng(0))
    messages.pair.weight.data, messages.pair.bias.data = torch.eye(2), torch.zeros(2)
    states = torch.tensor([[10.0, 0.0], [0.0, 30.0], [0.0, 5.0]])
    nearest, shares = torch.tensor([[1, 2]] * 3), torch.tensor([[0.75, 0.25]] * 3)

    heard = messages(states, nearest, shares)

    # The sum of first and second is (10, 30), that of first and third (10, 5). Leaky ReLU: -0.01.
    expected = [0.75 * -0.01 + 0.25 * 1, 0.75 * 1 + 0.25 * -0.01]
    torch.testing.assert_close(heard[0], torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_reconstruction_is_the_mean_squared_distance_to_the_base_weights():
    config = replace(WDAE, noise=0.0, reconstruction_weight=3.0, message_dropout=0.0)
    network = DenoisingNetwork(BASE, config, new_rng(2))
    loss, query_loss, reconstruction = network.episode_terms(2, new_rng(1))

    episode = network.draw(2, new_rng(1))
    estimates = normalize(episode.supports.mean(dim=1), dim=-1)
    squares = (estimates - network.base_weights[episode.classes[-len(estimates) :]]).square().sum()

    # At the start, the weights of base classes have no error.
    torch.testing.assert_close(reconstruction, squares / 12)
    torch.testing.assert_close(loss, query_loss + 3 * reconstruction)


def test_a_step_of_several_episodes_has_the_mean_of_their_terms():
    rng = new_rng(1)
    one, two = (
        DenoisingNetwork(BASE, replace(WDAE, episodes_per_step=count), new_rng(2))
        for count in (1, 2)
    )
    apart = [torch.stack(one.episode_terms(2, rng)) for _ in range(2)]

    together = torch.stack(two.episode_terms(2, new_rng(1)))

    torch.testing.assert_close(together, (apart[0] + apart[1]) / 2)
    assert not torch.allclose(*apart)


@pytest.mark.parametrize(
    ("num_shots", "share"), [(1, 1.0), (3, 1.0), (5, 0.6), (7, 0.6), (30, 0.2)]
)
def test_with_more_shots_a_smaller_share_of_the_correction_is_applied(num_shots, share):
    corrections = METHODS["wDAE"].published.corrections
    network = DenoisingNetwork(BASE, replace(WDAE, corrections=corrections), new_rng(2))
    network.correction.weight.data.normal_(generator=new_rng(3))
    classes, supports = torch.arange(8), network.directions(normals(4, num_shots, 6, seed=1))

    weights = network.weights(classes, supports)

    means = torch.cat([network.base_weights[:8], supports.mean(dim=1)])
    estimates = normalize(means, dim=-1)
    whole = network.denoise(estimates) - estimates
    assert whole.norm() > 0.1
    torch.testing.assert_close(weights - estimates, share * whole)

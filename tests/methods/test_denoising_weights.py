"""Denoising of weights: the graph, where it starts, and that training helps new classes."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from cpaan.core.randomness import new_rng
from cpaan.methods.denoising_weights import (
    PUBLISHED,
    DenoisingNetwork,
    DenoisingWeights,
    DenoisingWeightsConfig,
    Messages,
    neighbours_of,
)
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import CosineCentroid
from cpaan.protocol.tasks import BaseSet, read_phase
from cpaan.training.learning import EpisodeRngs
from cpaan.training.workers import ALONE
from helpers.tasks import shots_of

CPU = torch.device("cpu")
SMALL = DenoisingWeightsConfig(
    num_episodes=20, episode_shots=(1, 2), num_queries=3, hidden_dim=16, num_neighbours=3
)


def random_base(num_classes: int = 12, num_dims: int = 6) -> BaseSet:
    means = 3 * torch.randn(num_classes, 1, num_dims, generator=new_rng(0))
    noise = torch.randn(num_classes, 10, num_dims, generator=new_rng(1))
    return BaseSet((means + noise).flatten(0, 1), torch.full((num_classes,), 10))


def new_network(**settings: object) -> DenoisingNetwork:
    return DenoisingNetwork(random_base(), SMALL.with_overrides(settings), new_rng(2))


def with_corrections(network: DenoisingNetwork) -> DenoisingNetwork:
    """Draw the last layer, which starts at zero."""
    torch.nn.init.normal_(network.correction.weight, generator=new_rng(3))
    return network


def test_a_class_hears_of_the_nearest_others_by_their_cosine():
    degrees = torch.tensor([0.0, 10.0, 30.0, 90.0]).deg2rad()
    weights = torch.stack([degrees.cos(), degrees.sin()], dim=1)

    nearest, shares = neighbours_of(weights, num_neighbours=2, temperature=5.0)

    assert nearest.tolist() == [[1, 2], [0, 2], [1, 0], [2, 1]]
    near, far = (math.exp(5 * math.cos(math.radians(angle))) for angle in (10, 30))
    expected = torch.tensor([near / (near + far), far / (near + far)])
    torch.testing.assert_close(shares[0], expected)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(4))


def test_where_there_are_fewer_classes_all_others_are_neighbours():
    nearest, shares = neighbours_of(torch.eye(3), num_neighbours=10, temperature=5.0)

    assert nearest.sort(dim=1).values.tolist() == [[1, 2], [0, 2], [0, 1]]
    torch.testing.assert_close(shares, torch.full((3, 2), 0.5))


def test_a_message_is_of_the_pair_and_is_weighed():
    """Layer normalisation of two numbers leaves their order alone: plus or minus one."""
    messages = Messages(2, 2, 0.0, new_rng(0))
    messages.pair.weight.data, messages.pair.bias.data = torch.eye(2), torch.zeros(2)
    states = torch.tensor([[10.0, 0.0], [0.0, 30.0], [0.0, 5.0]])
    nearest, shares = torch.tensor([[1, 2]] * 3), torch.tensor([[0.75, 0.25]] * 3)

    heard = messages(states, nearest, shares)

    # The first and second are (10, 30) together, the first and third (10, 5). Leaky: -0.01.
    expected = [0.75 * -0.01 + 0.25 * 1, 0.75 * 1 + 0.25 * -0.01]
    torch.testing.assert_close(heard[0], torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_classes_in_another_order_are_corrected_alike(num_layers):
    network = with_corrections(new_network(num_layers=num_layers))
    estimates = normalize(torch.randn(9, 6, generator=new_rng(4)), dim=-1)
    order = torch.randperm(9, generator=new_rng(5))

    corrected = network.denoise(estimates)

    torch.testing.assert_close(network.denoise(estimates[order]), corrected[order])
    assert (corrected - estimates).norm(dim=1).min() > 0.01
    torch.testing.assert_close(corrected.norm(dim=1), torch.ones(9))


def test_at_the_start_weights_stay_as_they_are_so_that_the_truth_costs_nothing():
    network = new_network(noise=0.0)
    base, novel = torch.arange(8), torch.arange(8, 12)

    weights = network.weights(base, network.base_weights[novel].unsqueeze(1), new_rng(0))

    torch.testing.assert_close(weights, network.base_weights)


def test_reconstruction_is_the_mean_squared_distance_to_the_base_weights():
    network = new_network(noise=0.0, reconstruction_weight=3.0, message_dropout=0.0)
    rngs = EpisodeRngs(new_rng(1), new_rng(2))
    loss, query_loss, reconstruction = network.episode_terms(rngs)

    episode = network.draw(EpisodeRngs(new_rng(1), new_rng(2)))
    estimates = normalize(episode.supports.mean(dim=1), dim=-1)
    squares = (estimates - network.base_weights[episode.novel]).square().sum()

    # At the start, base classes are as they should be.
    torch.testing.assert_close(reconstruction, squares / 12)
    torch.testing.assert_close(loss, query_loss + 3 * reconstruction)


def test_noise_and_dropout_are_of_training_alone():
    network = with_corrections(new_network(noise=0.5))
    estimates = network.base_weights

    assert torch.equal(network.denoise(estimates), network.denoise(estimates))
    noisy = [network.denoise(estimates, new_rng(seed)) for seed in (0, 0, 1)]
    assert torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy[0], noisy[2])


def test_before_training_it_is_the_nearest_cosine_centroid(gaussians):
    rows = shots_of(gaussians.table, gaussians.split)
    task, queries = read_phase(gaussians.table, gaussians.split, "validation", rows, (1,), CPU)
    method = DenoisingWeights(SMALL)
    method.adapt(method.new_run(task.base, new_rng(0), ALONE), task, new_rng(0))
    scores = method.predict(queries.features)[OWN]

    head = CosineCentroid(EvaluationConfig(cosine_scale=10.0))
    head.fit(task, None, new_rng(0))
    expected = head.scores(queries.features)

    torch.testing.assert_close(scores[..., 12:], expected[..., 12:], rtol=1e-4, atol=1e-4)


def test_an_episode_of_the_published_settings_is_finite():
    rows = random_base(num_dims=8).features.relu() + 0.1
    base = BaseSet(rows.repeat(3, 1), torch.full((12,), 30))

    terms = DenoisingNetwork(base, PUBLISHED, new_rng(0)).episode_terms(
        EpisodeRngs(new_rng(1), new_rng(2))
    )

    assert all(0 < float(term.detach()) < 20 for term in terms)

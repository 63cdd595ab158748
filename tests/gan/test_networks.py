"""Test generators, discriminators and noise."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.networks import SLOPE, Discriminator, Generator
from cpaan.gan.noise import GaussianNoise, MixtureNoise
from helpers.tasks import normals

NUM_DIMS = 3
LIKE = torch.zeros(1, dtype=torch.float64)


def generator(*, is_positive: bool = False, **settings) -> Generator:
    config = TrainConfig(hidden_dim=5, **settings)
    return Generator(NUM_DIMS, 0, config, is_positive, new_rng(0))


def test_the_first_layer_is_drawn_as_one_layer_of_all_inputs_and_sizes_are_the_papers():
    network = Generator(512, 100, TrainConfig(), True, new_rng(0))

    bound = 1 / math.sqrt(3 * 512 + 100)
    parts = (network.from_example, network.from_source, network.from_target, network.from_noise)
    for parameter in torch.nn.ModuleList(parts).parameters():
        assert 0.95 * bound < parameter.abs().max() <= bound
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    assert num_parameters == (1636 + 1) * 512 + (512 + 1) * 512 + (512 + 1) * 512


def test_a_generator_is_a_perceptron_of_its_concatenated_inputs():
    """Inputs that pairs share have other shapes, and are written out here."""
    config = TrainConfig(hidden_dim=5, residual="none")
    network = Generator(NUM_DIMS, 2, config, is_positive=False, rng=new_rng(0))
    inputs = [normals(2, 4, NUM_DIMS), normals(2, 1, NUM_DIMS), normals(1, 4, NUM_DIMS)]
    noise = normals(2, 4, 2, seed=3)

    translated = network(*inputs, noise)

    parts = (network.from_example, network.from_source, network.from_target, network.from_noise)
    weight = torch.cat([part.weight for part in parts], dim=1)
    written_out = [part.expand(2, 4, -1) for part in (*inputs, noise)]
    hidden = linear(torch.cat(written_out, dim=-1), weight, network.from_example.bias)
    hidden = leaky_relu(network.hidden(leaky_relu(hidden, SLOPE)), SLOPE)
    torch.testing.assert_close(translated, network.last(hidden))


def test_a_discriminator_multiplies_embedded_examples_by_embedded_classes():
    network = Discriminator(NUM_DIMS, TrainConfig(hidden_dim=4), new_rng(0))
    examples, prototypes = normals(2, 7, NUM_DIMS), normals(5, NUM_DIMS, seed=1)
    is_present = torch.tensor([True, True, False, True, True])

    log_probabilities = network(examples, prototypes, is_present)

    hidden = leaky_relu(network.hidden(leaky_relu(network.first(examples), SLOPE)), SLOPE)
    embedded = network.embed(hidden)
    logits = embedded @ network.key(prototypes).T / math.sqrt(4)
    logits = torch.cat([logits, network.fake(embedded)], dim=-1)
    present = [0, 1, 3, 4, 5]
    expected = logits[..., present].log_softmax(dim=-1)
    torch.testing.assert_close(log_probabilities[..., present], expected)
    assert (log_probabilities[..., 2] == -torch.inf).all()


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_residual_starts_without_an_output_of_the_network_and_learns(residual):
    network = generator(residual=residual)
    examples, source, target = (normals(2, 7, NUM_DIMS, seed=seed) for seed in (1, 2, 3))

    translated = network(examples, source, target)
    translated.square().sum().backward()

    shift = examples - source + target
    torch.testing.assert_close(translated, examples if residual == "identity" else shift)
    assert network.last.weight.grad.any()


@pytest.mark.parametrize(
    ("output", "is_positive", "may_be_negative"),
    [("match", True, 0), ("match", False, 1), ("linear", True, 1), ("relu", False, 0)],
)
def test_outputs_are_negative_only_where_features_may_be(output, is_positive, may_be_negative):
    for residual in ("none", "mean-shift"):
        network = generator(is_positive=is_positive, output=output, residual=residual)
        translated = network(*(normals(2, 25, NUM_DIMS, seed=seed).abs() for seed in (1, 2, 3)))
        assert (translated < 0).any() == may_be_negative
        assert (translated > 0).any()


def assert_moments(draws: Tensor, mean: Tensor, covariance: Tensor) -> None:
    """Compare moments of the (draws, Z) sample with the true ones, to five standard errors."""
    centred = draws - mean
    products = centred.unsqueeze(2) * centred.unsqueeze(1)
    for sample, expected in ((draws, mean), (products, covariance)):
        standard_error = sample.std(dim=0) / len(sample) ** 0.5
        assert ((sample.mean(dim=0) - expected).abs() <= 5 * standard_error).all()


def test_gaussian_noise_is_standard_normal():
    noise = GaussianNoise(3)

    assert_moments(noise((20_000,), new_rng(0), LIKE), torch.zeros(3), torch.eye(3))
    assert list(noise.parameters()) == []


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (-1, -1)])
def test_the_sign_of_a_deviation_leaves_the_distribution_unchanged(signs):
    means = torch.tensor([[0.0, 1.0], [2.0, -1.0]])
    deviations = torch.tensor([[0.5, 2.0], [0.1, 1.0]])

    noise = MixtureNoise(TrainConfig(noise_dim=2, num_components=2), new_rng(0))
    noise.means.data = means.double()
    noise.deviations.data = (deviations * torch.tensor(signs).unsqueeze(1)).double()
    draws = noise((40_000,), new_rng(0), LIKE).detach()

    between = torch.cov(means.T, correction=0)
    within = torch.diag(deviations.square().mean(dim=0))
    assert_moments(draws, means.mean(dim=0), between + within)


def test_components_start_as_in_the_paper_and_are_trained():
    noise = MixtureNoise(TrainConfig(), new_rng(0))
    means, deviations = noise.means.detach().clone(), noise.deviations.detach().clone()

    noise((5_000,), new_rng(1), LIKE).square().sum().backward()

    assert means.shape == deviations.shape == (50, 100)
    assert -1 <= means.min() < -0.99
    assert 0.99 < means.max() <= 1
    # Five standard errors of the mean of 5,000 numbers; U(-1, 1) has variance 1/3.
    assert means.mean().item() == pytest.approx(0, abs=5 * (1 / 3 / 5000) ** 0.5)
    assert deviations.mean().item() == pytest.approx(0, abs=5 * 0.2 / 5000**0.5)
    assert deviations.std().item() == pytest.approx(0.2, abs=5 * 0.2 / 10_000**0.5)
    assert (noise.means.grad != 0).all()
    assert (noise.deviations.grad != 0).all()

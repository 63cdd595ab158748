"""Test generators, discriminators and noise.

`tests/bench` tests that the networks are perceptrons on concatenated inputs.
"""

import math

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.networks import Chosen, Discriminator, Generator
from cpaan.gan.noise import GaussianNoise, MixtureNoise, make_noise

NUM_DIMS, NOISE_DIM = 3, 2
LIKE = torch.zeros(1, dtype=torch.float64)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed))


def generator(noise_dim: int = 0, *, is_positive: bool = False, seed: int = 0, **settings):
    config = TrainConfig(hidden_dim=5, **settings)
    return Generator(NUM_DIMS, noise_dim, config, is_positive, new_rng(seed))


def discriminator(seed: int = 0) -> Discriminator:
    return Discriminator(NUM_DIMS, TrainConfig(hidden_dim=5), new_rng(seed))


def log_probabilities(network: Discriminator, examples: Tensor, *of_answers: Tensor) -> Tensor:
    """Return the log-probabilities of answers, shape (..., classes + 1), fake last."""
    answers = network.answers(*of_answers)
    logits = network.embed_examples(examples) @ answers.keys.T + answers.biases
    return logits.log_softmax(dim=-1).unflatten(0, examples.shape[:-1])


def test_the_first_layer_is_drawn_as_one_layer_of_all_inputs_and_sizes_are_the_papers():
    network = Generator(512, 100, TrainConfig(), True, new_rng(0))

    bound = 1 / math.sqrt(3 * 512 + 100)
    parts = (network.from_example, network.from_source, network.from_target, network.from_noise)
    for parameter in (each for part in parts for each in part.parameters()):
        assert 0.95 * bound < parameter.abs().max() <= bound
    num_parameters = sum(parameter.numel() for parameter in network.parameters())
    assert num_parameters == (1636 + 1) * 512 + (512 + 1) * 512 + (512 + 1) * 512


def translate_and_learn(network: Generator, *inputs: Tensor | Chosen | None) -> list[Tensor]:
    """Return translations, and the gradients of all weights for a cubic loss."""
    translated = network(*inputs)
    return [translated, *torch.autograd.grad(translated.pow(3).sum(), network.parameters())]


@pytest.mark.parametrize("noise_dim", [0, NOISE_DIM])
@pytest.mark.parametrize("residual", ["none", "identity", "mean-shift"])
def test_shared_and_chosen_inputs_are_translated_as_repeated_ones(residual, noise_dim):
    network = generator(noise_dim, residual=residual)
    torch.nn.init.normal_(network.last.weight, generator=new_rng(9))  # not the initial zeros
    table, places = normals(4, 2, NUM_DIMS, seed=1), torch.arange(28).view(4, 7) % 3 % 2
    source, targets = normals(4, 1, NUM_DIMS, seed=2), normals(1, 7, NUM_DIMS, seed=3)
    shared = normals(1, 7, NUM_DIMS, seed=5)
    noise = normals(4, 7, noise_dim, seed=4) if noise_dim else None
    chosen = torch.stack([table[novel, places[novel]] for novel in range(4)])
    prototypes = [each.expand(4, 7, NUM_DIMS) for each in (source, targets)]

    for examples, repeated in (
        (Chosen(table, places), chosen),
        (shared, shared.expand(4, 7, NUM_DIMS)),
    ):
        ours = translate_and_learn(network, examples, source, targets, noise)
        expected = translate_and_learn(network, repeated, *prototypes, noise)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_residual_starts_without_an_output_of_the_network_and_learns(residual):
    network = generator(residual=residual)
    examples, source, target = (normals(2, 7, NUM_DIMS, seed=seed) for seed in (1, 2, 3))

    translated = network(examples, source, target)
    translated.square().sum().backward()

    shift = examples - source + target
    assert torch.equal(translated, examples if residual == "identity" else shift)
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


def test_an_absent_class_is_never_the_answer():
    network, examples = discriminator(), normals(7, NUM_DIMS)
    prototypes, is_present = normals(3, NUM_DIMS, seed=1), torch.tensor([True, False, True])

    answers = log_probabilities(network, examples, prototypes, is_present)
    likelihood = network.log_likelihood(
        examples,
        network.answers(prototypes, is_present),
        torch.tensor([0, 2, 3, 0, 2, 3, 0]),
        torch.ones(7),
    )
    likelihood.backward()

    without = log_probabilities(network, examples, prototypes[is_present])
    torch.testing.assert_close(answers[:, [0, 2, 3]], without)
    assert not answers[:, 1].exp().any()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


def test_weights_come_from_the_rng_alone():
    def weights(seed: int) -> Tensor:
        networks = generator(NOISE_DIM, residual="none", seed=seed), discriminator(seed=seed)
        return torch.cat([each.flatten() for part in networks for each in part.parameters()])

    global_state = torch.get_rng_state()
    first = weights(3)
    assert torch.equal(torch.get_rng_state(), global_state)

    torch.rand(1)  # another global state
    assert torch.equal(weights(3), first)
    assert not (weights(4) == first).any()


def mixture(means: Tensor, deviations: Tensor) -> MixtureNoise:
    """Return a mixture with given components."""
    noise = MixtureNoise(means.shape[1], len(means), spread=1.0, rng=new_rng(0))
    noise.means.data, noise.deviations.data = means.double(), deviations.double()
    return noise


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

    noise = mixture(means, deviations * torch.tensor(signs).unsqueeze(1))
    draws = noise((40_000,), new_rng(0), LIKE).detach()

    between = torch.cov(means.T, correction=0)
    within = torch.diag(deviations.square().mean(dim=0))
    assert_moments(draws, means.mean(dim=0), between + within)


def test_components_start_as_in_the_paper_and_are_trained():
    noise = make_noise("mixture", TrainConfig(), new_rng(0))
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

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, log_softmax

from cpaan.core.randomness import new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.networks import Chosen, Discriminator, Generator

NUM_DIMS, NOISE_DIM, NUM_BASE = 3, 2, 6


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed))


def generator(noise_dim: int = 0, *, is_positive: bool = False, seed: int = 0, **settings):
    config = TrainConfig(hidden_dim=5, **settings)
    return Generator(NUM_DIMS, noise_dim, config, is_positive, new_rng(seed))


def discriminator(kind: str = "projection", seed: int = 0) -> Discriminator:
    config = TrainConfig(hidden_dim=5, discriminator=kind)
    return Discriminator(NUM_DIMS, NUM_BASE, config, new_rng(seed))


def log_probabilities(network: Discriminator, examples: Tensor, *of_answers: Tensor) -> Tensor:
    """What a discriminator says of examples, shape (..., classes + 1), fake last."""
    answers = network.answers(*of_answers)
    logits = network.embed_examples(examples) @ answers.keys.T + answers.biases
    return logits.log_softmax(dim=-1).unflatten(0, examples.shape[:-1])


def num_parameters(network: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def test_a_generator_is_a_perceptron_of_three_layers_on_all_inputs_side_by_side():
    network = generator(NOISE_DIM, residual="none", output="linear")
    inputs = [normals(2, 7, NUM_DIMS, seed=seed) for seed in (1, 2, 3)]
    inputs.append(normals(2, 7, NOISE_DIM, seed=4))

    translated = network(*inputs)

    parts = [network.from_example, network.from_source, network.from_target, network.from_noise]
    first_weight = torch.cat([part.weight for part in parts], dim=1)
    hidden = linear(torch.cat(inputs, dim=-1), first_weight, network.from_example.bias)
    hidden = linear(leaky_relu(hidden, 0.1), network.hidden.weight, network.hidden.bias)
    expected = linear(leaky_relu(hidden, 0.1), network.last.weight, network.last.bias)
    torch.testing.assert_close(translated, expected)


def test_the_first_layer_is_drawn_as_one_layer_of_all_inputs():
    config = TrainConfig(hidden_dim=200)

    network = Generator(NUM_DIMS, NOISE_DIM, config, False, new_rng(0))

    bound = 1 / math.sqrt(3 * NUM_DIMS + NOISE_DIM)
    for part in (
        network.from_example.weight,
        network.from_example.bias,
        network.from_source.weight,
        network.from_target.weight,
        network.from_noise.weight,
    ):
        assert 0.95 * bound < part.abs().max() <= bound


@pytest.mark.parametrize("residual", ["none", "identity", "mean-shift"])
def test_what_is_shared_by_classes_need_not_be_repeated(residual):
    network = generator(NOISE_DIM, residual=residual)
    torch.nn.init.normal_(network.last.weight, generator=new_rng(9))  # away from the start
    examples, sources = normals(1, 7, NUM_DIMS, seed=1), normals(1, 7, NUM_DIMS, seed=2)
    targets = normals(4, 1, NUM_DIMS, seed=3)
    noise = normals(4, 7, NOISE_DIM, seed=4)

    translated = network(examples, sources, targets, noise)

    repeated = [each.expand(4, 7, NUM_DIMS) for each in (examples, sources, targets)]
    torch.testing.assert_close(translated, network(*repeated, noise))


def translate_and_learn(network: Generator, *inputs: Tensor | Chosen | None) -> list[Tensor]:
    """Return translations, and the gradients of all weights for a cubic loss."""
    translated = network(*inputs)
    return [translated, *torch.autograd.grad(translated.pow(3).sum(), network.parameters())]


@pytest.mark.parametrize("noise_dim", [0, NOISE_DIM])
@pytest.mark.parametrize("residual", ["none", "identity", "mean-shift"])
def test_a_chosen_example_is_translated_as_one_that_was_repeated(residual, noise_dim):
    network = generator(noise_dim, residual=residual)
    torch.nn.init.normal_(network.last.weight, generator=new_rng(9))  # away from the start
    table, places = normals(4, 2, NUM_DIMS, seed=1), torch.arange(28).view(4, 7) % 3 % 2
    source, targets = normals(4, 1, NUM_DIMS, seed=2), normals(1, 7, NUM_DIMS, seed=3)
    noise = normals(4, 7, noise_dim, seed=4) if noise_dim else None
    repeated = torch.stack([table[novel, places[novel]] for novel in range(4)])

    ours = translate_and_learn(network, Chosen(table, places), source, targets, noise)

    expected = translate_and_learn(network, repeated, source, targets, noise)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_an_identity_residual_starts_as_the_identity():
    network = generator(residual="identity")
    examples, source, target = (normals(2, 7, NUM_DIMS, seed=seed) for seed in (1, 2, 3))

    assert torch.equal(network(examples, source, target), examples)


def test_a_mean_shift_residual_starts_as_the_mean_shift():
    network = generator(residual="mean-shift")
    examples, source, target = (normals(2, 7, NUM_DIMS, seed=seed) for seed in (1, 2, 3))

    assert torch.equal(network(examples, source, target), examples - source + target)


@pytest.mark.parametrize("residual", ["identity", "mean-shift"])
def test_a_residual_that_starts_with_zeros_learns(residual):
    network = generator(residual=residual)
    examples, source, target = (normals(2, 7, NUM_DIMS, seed=seed) for seed in (1, 2, 3))

    network(examples, source, target).square().sum().backward()

    assert network.last.weight.grad.any()


@pytest.mark.parametrize(
    ("output", "is_positive", "may_be_negative"),
    [
        ("match", True, False),
        ("match", False, True),
        ("linear", True, True),
        ("relu", False, False),
    ],
)
@pytest.mark.parametrize("residual", ["none", "mean-shift"])
def test_outputs_are_negative_only_where_features_may_be(
    output, is_positive, may_be_negative, residual
):
    network = generator(is_positive=is_positive, output=output, residual=residual)
    inputs = [normals(2, 25, NUM_DIMS, seed=seed).abs() for seed in (1, 2, 3)]

    translated = network(*inputs)

    assert (translated < 0).any() == may_be_negative
    assert (translated > 0).any()


@pytest.mark.parametrize(("noise_dim", "num_inputs"), [(0, 1536), (100, 1636)])
def test_generators_have_the_sizes_of_the_paper(noise_dim, num_inputs):
    network = Generator(512, noise_dim, TrainConfig(), True, new_rng(0))

    assert num_parameters(network) == (num_inputs + 1) * 512 + (512 + 1) * 512 + (512 + 1) * 512


def test_a_discriminator_of_fixed_classes_has_the_size_of_the_paper():
    config = TrainConfig(discriminator="fixed")

    network = Discriminator(512, 389, config, new_rng(0))

    assert num_parameters(network) == 2 * (512 + 1) * 512 + (512 + 1) * (389 + 1)


@pytest.mark.parametrize("kind", ["projection", "fixed"])
def test_probabilities_of_classes_and_fake_sum_to_one(kind):
    classes = torch.tensor([4, 0, 2])

    answers = log_probabilities(
        discriminator(kind), normals(2, 7, NUM_DIMS), classes, normals(3, NUM_DIMS, seed=1)
    )

    assert answers.shape == (2, 7, 4)
    torch.testing.assert_close(answers.exp().sum(dim=-1), torch.ones(2, 7))


@pytest.mark.parametrize("kind", ["projection", "fixed"])
def test_an_absent_class_is_never_the_answer(kind):
    network = discriminator(kind)
    examples, classes, prototypes = (
        normals(7, NUM_DIMS),
        torch.tensor([4, 0, 2]),
        normals(3, NUM_DIMS, seed=1),
    )
    is_present = torch.tensor([True, False, True])

    answers = log_probabilities(network, examples, classes, prototypes, is_present)
    likelihood = network.log_likelihood(
        examples,
        network.answers(classes, prototypes, is_present),
        torch.tensor([0, 2, 3, 0, 2, 3, 0]),
        torch.ones(7),
    )
    likelihood.backward()

    without = log_probabilities(network, examples, classes[is_present], prototypes[is_present])
    torch.testing.assert_close(answers[:, [0, 2, 3]], without)
    assert not answers[:, 1].exp().any()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


@pytest.mark.parametrize("kind", ["projection", "fixed"])
def test_permuting_the_classes_permutes_the_answers(kind):
    network, examples = discriminator(kind), normals(7, NUM_DIMS)
    classes, prototypes = torch.tensor([4, 0, 2]), normals(3, NUM_DIMS, seed=1)
    order = torch.tensor([2, 0, 1])

    answers = log_probabilities(network, examples, classes, prototypes)
    permuted = log_probabilities(network, examples, classes[order], prototypes[order])

    torch.testing.assert_close(permuted[:, :3], answers[:, order])
    torch.testing.assert_close(permuted[:, 3], answers[:, 3])


@pytest.mark.parametrize("kind", ["projection", "fixed"])
@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor([[1], [0]]),  # by class
        torch.tensor([[2, 0, 1, 3]]),  # by example
        torch.tensor([[2, 0, 1, 3], [1, 1, 0, 3]]),
        None,  # fake
    ],
    ids=["class", "example", "pair", "fake"],
)
def test_a_log_likelihood_is_the_weighted_sum_over_examples_of_their_answers(kind, targets):
    network, examples = discriminator(kind), normals(2, 4, NUM_DIMS)
    of_answers = torch.tensor([4, 0, 2]), normals(3, NUM_DIMS, seed=1)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])  # of examples, whatever the class

    found = network.log_likelihood(examples, network.answers(*of_answers), targets, weights)

    said = log_probabilities(network, examples, *of_answers)
    wanted = torch.full((2, 4), 3) if targets is None else targets.expand(2, 4)
    expected = sum(
        weights[example] * said[novel, example, wanted[novel, example]]
        for novel in range(2)
        for example in range(4)
    )
    torch.testing.assert_close(found, expected)


def hidden_layers(network: Discriminator, examples: Tensor) -> Tensor:
    hidden = leaky_relu(linear(examples, network.first.weight, network.first.bias), 0.1)
    return leaky_relu(linear(hidden, network.hidden.weight, network.hidden.bias), 0.1)


def test_a_projected_class_is_known_by_its_prototype():
    network, examples = discriminator("projection"), normals(7, NUM_DIMS)
    prototypes = normals(3, NUM_DIMS, seed=1)

    answers = log_probabilities(network, examples, torch.tensor([4, 0, 2]), prototypes)

    embedded = linear(hidden_layers(network, examples), network.embed.weight, network.embed.bias)
    of_classes = embedded @ (prototypes @ network.key.weight.T).T / math.sqrt(5)
    of_fake = linear(embedded, network.fake.weight, network.fake.bias)
    expected = log_softmax(torch.cat([of_classes, of_fake], dim=1), dim=1)
    torch.testing.assert_close(answers, expected)


def test_a_fixed_class_is_known_by_its_position():
    network, examples = discriminator("fixed"), normals(7, NUM_DIMS)
    classes = torch.tensor([4, 0, 2])

    answers = log_probabilities(network, examples, classes, normals(3, NUM_DIMS, seed=1))

    hidden = hidden_layers(network, examples)
    of_classes = linear(hidden, network.classes.weight[classes], network.classes.bias[classes])
    of_fake = linear(hidden, network.fake.weight, network.fake.bias)
    expected = log_softmax(torch.cat([of_classes, of_fake], dim=1), dim=1)
    torch.testing.assert_close(answers, expected)


def weights_of(network: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: generator(NOISE_DIM, residual="none", seed=seed),
        lambda seed: discriminator("projection", seed=seed),
        lambda seed: discriminator("fixed", seed=seed),
    ],
    ids=["generator", "projection", "fixed"],
)
def test_weights_come_from_the_rng_alone(make):
    global_state = torch.get_rng_state()

    first = weights_of(make(seed=3))
    torch.rand(1)  # another global state
    second, other = weights_of(make(seed=3)), weights_of(make(seed=4))

    assert torch.equal(first, second)
    assert not (first == other).any()
    torch.set_rng_state(global_state)
    make(seed=3)
    assert torch.equal(torch.get_rng_state(), global_state)

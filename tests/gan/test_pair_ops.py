"""Test operations on all pairs, and their gradients, against formulas row by row."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from cpaan.core.randomness import new_rng
from cpaan.gan.covariance import covariances
from cpaan.gan.fast.pair_ops import Shared, moments, squared_distance
from cpaan.gan.fast.perceptron import Layer, Question, perceptron

NUM_NOVEL, NUM_EXAMPLES, WIDTH, NUM_PLACES = 2, 3, 2, 4
SHAPE = (NUM_NOVEL, NUM_EXAMPLES)
NUM_ROWS = NUM_NOVEL * NUM_EXAMPLES
PLACES = torch.tensor([3, 0, 0, 1, 3, 0])  # place 2 is not used


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed), dtype=torch.float64).requires_grad_()


BIAS = normals(WIDTH, seed=1)
BY_EXAMPLE = normals(NUM_EXAMPLES, WIDTH, seed=2)
BY_NOVEL = normals(NUM_NOVEL, WIDTH, seed=3)
TABLE = normals(NUM_PLACES, WIDTH, seed=4)
ADDED = normals(NUM_ROWS, WIDTH, seed=5)
ONE_PRODUCT = [(normals(NUM_ROWS, 3, seed=6), normals(WIDTH, 3, seed=7))]
TWO_PRODUCTS = [*ONE_PRODUCT, (normals(NUM_ROWS, 5, seed=8), normals(WIDTH, 5, seed=9))]
NOTHING = Shared()

LAYERS = {
    "a product": (ONE_PRODUCT, NOTHING, None),
    "two products": (TWO_PRODUCTS, NOTHING, None),
    "bias": (ONE_PRODUCT, Shared(BIAS), None),
    "by example": (ONE_PRODUCT, Shared(by_example=BY_EXAMPLE), None),
    "by novel class": (ONE_PRODUCT, Shared(by_novel=BY_NOVEL), None),
    "by place": (ONE_PRODUCT, Shared(by_novel=TABLE, places=PLACES), None),
    "added": (ONE_PRODUCT, NOTHING, ADDED),
    "all": (TWO_PRODUCTS, Shared(BIAS, BY_EXAMPLE, BY_NOVEL), ADDED),
    "all by place": (TWO_PRODUCTS, Shared(BIAS, BY_EXAMPLE, TABLE, PLACES), ADDED),
    "shared alone": ([], Shared(BIAS, BY_EXAMPLE, BY_NOVEL), None),
    "by novel class alone": ([], Shared(by_novel=BY_NOVEL), None),
    "by place alone": ([], Shared(by_novel=TABLE, places=PLACES), None),
}
ACTIVATIONS = {
    "none": lambda number: number,
    "leaky": lambda number: number if number > 0 else 0.1 * number,
    "relu": lambda number: max(number, 0.0),
}


def summands_by_hand(shared: Shared, added: Tensor | None, row: int) -> list[Tensor]:
    """Return the shared summands of a row, and the one that was added to it."""
    summands = [] if shared.bias is None else [shared.bias]
    if shared.by_example is not None:
        summands.append(shared.by_example[row % NUM_EXAMPLES])
    if shared.by_novel is not None:
        place = row // NUM_EXAMPLES if shared.places is None else shared.places[row]
        summands.append(shared.by_novel[place])
    return summands if added is None else [*summands, added[row]]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("parts", LAYERS.values(), ids=LAYERS)
def test_a_layer_is_the_activation_of_a_sum_and_has_its_gradients(parts, activation):
    products, shared, added = parts
    present = [each is not None for each in (*shared[:3], added)]

    def compute(*leaves: Tensor) -> Tensor:
        left = iter(leaves)
        pairs = [(next(left), next(left)) for _ in products]
        bias, by_example, by_novel, own = (next(left) if has else None for has in present)
        sums = Shared(bias, by_example, by_novel, shared.places)
        return perceptron([Layer(pairs, sums, own, activation)], shape=SHAPE, dtype=torch.float64)

    leaves = [tensor for pair in products for tensor in pair]
    leaves += [each for each in (*shared[:3], added) if each is not None]
    outputs = compute(*leaves)

    assert outputs.shape == (NUM_ROWS, WIDTH)
    for row, column in itertools.product(range(NUM_ROWS), range(WIDTH)):
        total = sum((inputs[row] @ weight[column]).item() for inputs, weight in products)
        total += sum(each[column].item() for each in summands_by_hand(shared, added, row))
        assert outputs[row, column].item() == pytest.approx(ACTIVATIONS[activation](total))
    assert gradcheck(compute, leaves)


HIDDEN, KEYS = normals(4, 3, seed=10), normals(3, 3, seed=11)
BIASES = normals(3, seed=12)
TARGETS = torch.tensor([2, 0, 0, 2])
WEIGHTS = torch.tensor([0.5, 0.25, 0.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("possible", [(0, 1, 2), (0, 2)])
def test_a_log_likelihood_is_a_weighted_sum_of_log_probabilities(possible):
    biases = BIASES.detach().clone()
    biases[[number for number in range(3) if number not in possible]] = -math.inf
    biases.requires_grad_()

    found = perceptron([], Question(HIDDEN, KEYS, biases, TARGETS, WEIGHTS))

    expected = 0.0
    for row, target in enumerate(TARGETS.tolist()):
        logits = {each: (HIDDEN[row] @ KEYS[each] + BIASES[each]).item() for each in possible}
        total = sum(math.exp(logit) for logit in logits.values())
        expected += WEIGHTS[row].item() * math.log(math.exp(logits[target]) / total)
    assert found.item() == pytest.approx(expected)
    # Classes that cannot be the answer have zero gradients.
    of_keys, of_biases = torch.autograd.grad(found, [KEYS, biases])
    assert of_keys.any(dim=1).nonzero().flatten().tolist() == list(possible)
    assert of_biases.nonzero().flatten().tolist() == list(possible)


def test_a_log_likelihood_has_the_gradients_of_its_definition():
    assert gradcheck(
        lambda *parts: perceptron([], Question(*parts, TARGETS, WEIGHTS)), (HIDDEN, KEYS, BIASES)
    )


ORIGINALS = {
    "zero": (NOTHING, None),
    "by example": (Shared(by_example=BY_EXAMPLE), None),
    "by novel class": (Shared(by_novel=BY_NOVEL), None),
    "by place": (Shared(by_novel=TABLE, places=PLACES), None),
    "one each": (NOTHING, ADDED),
    "sum": (Shared(BIAS, BY_EXAMPLE, TABLE, PLACES), ADDED),
}
ROW_WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("originals", ORIGINALS.values(), ids=ORIGINALS)
def test_a_squared_distance_is_a_weighted_sum_over_rows_and_originals_are_constants(originals):
    rows, (shared, added) = normals(NUM_ROWS, WIDTH, seed=13), originals

    def compute(rows: Tensor) -> Tensor:
        return squared_distance(rows, shared, ROW_WEIGHTS, shape=SHAPE, added=added)

    found = compute(rows)

    expected = 0.0
    for row, weight in enumerate(ROW_WEIGHTS.tolist()):
        original = sum(summands_by_hand(shared, added, row), torch.zeros(WIDTH))
        expected += weight * (rows[row] - original).square().sum().item()
    assert found.item() == pytest.approx(expected)
    assert gradcheck(compute, (rows,))
    leaves = [BIAS, BY_EXAMPLE, BY_NOVEL, TABLE, ADDED]
    assert torch.autograd.grad(found, leaves, allow_unused=True) == (None,) * 5


SAMPLE_WEIGHTS = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)


def test_moments_are_the_means_and_covariances_of_classes():
    examples = normals(2, 4, 3, seed=14)

    means, squares = moments(examples, SAMPLE_WEIGHTS)

    torch.testing.assert_close(means, (SAMPLE_WEIGHTS.unsqueeze(-1) * examples).sum(dim=1))
    torch.testing.assert_close(squares, covariances(examples, SAMPLE_WEIGHTS))
    assert gradcheck(lambda leaf: moments(leaf, SAMPLE_WEIGHTS), (examples,))

    alone, nothing = moments(examples, SAMPLE_WEIGHTS, with_covariances=False)
    assert torch.equal(alone, means)
    assert nothing.numel() == 0

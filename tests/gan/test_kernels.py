"""Test the GPU kernels against plain definitions, in Triton's interpreter without a GPU."""

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan import covariance
from cpaan.gan.covariance import Spectra, covariance_distances, covariances, ky_fan_norm, spectra
from cpaan.gan.fast import pair_ops, perceptron, weights
from cpaan.gan.fast.answers import answer_keys
from cpaan.gan.fast.kernels import kernels_for
from cpaan.gan.fast.pair_ops import Shared
from cpaan.gan.fast.perceptron import Layer, Question
from cpaan.protocol.neighbours import PASSES, TEMPERATURES, soft_similarity

pairs = pytest.importorskip("cpaan.gan.fast.kernels.pairs", reason="Triton is not installed")
kernels = pytest.importorskip("cpaan.gan.fast.kernels.covariances")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_NOVEL, NUM_EXAMPLES, WIDTH = 3, 20, 37
SHAPE = (NUM_NOVEL, NUM_EXAMPLES)


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed)).to(DEVICE)


def test_tensors_of_a_cpu_have_no_kernels():
    for kind in ("pairs", "covariances"):
        assert kernels_for(kind, torch.zeros(1), None) is None


@pytest.fixture
def both(monkeypatch):
    """Return a function that computes with and without the kernels."""

    def compute(function):
        results = []
        for found in ({pair_ops: pairs, perceptron: pairs, covariance: kernels}, {}):
            for module in (pair_ops, perceptron, covariance):
                chosen = found.get(module)
                monkeypatch.setattr(module, "kernels_for", lambda *_, chosen=chosen: chosen)
            results.append(function())
        return results

    return compute


@pytest.mark.parametrize("activation", ["none", "leaky", "relu"])
@pytest.mark.parametrize("has_places", [False, True])
def test_layers_and_their_gradients_are_those_of_the_definition(both, activation, has_places):
    num_rows = NUM_NOVEL * NUM_EXAMPLES
    places = torch.arange(num_rows, device=DEVICE) % 5 if has_places else None
    inputs = [normals(num_rows, 11, seed=1), normals(WIDTH, 11, seed=2)]
    tables = [
        normals(NUM_EXAMPLES, WIDTH, seed=3),
        normals(5 if has_places else NUM_NOVEL, WIDTH, seed=4),
    ]
    added, upstream = normals(num_rows, WIDTH, seed=5), normals(num_rows, WIDTH, seed=6)

    def compute():
        leaves = [each.clone().requires_grad_() for each in (*inputs, *tables, added)]
        shared = Shared(leaves[4][0], leaves[2], leaves[3], places)
        layers = [Layer([(leaves[0], leaves[1])], shared, leaves[4], activation)]
        outputs = perceptron.perceptron(layers, shape=SHAPE)
        return outputs, *torch.autograd.grad((outputs * upstream).sum(), leaves)

    for ours, plain in zip(*both(compute), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [24, 136])
def test_perceptrons_and_their_gradients_are_those_of_the_definition(
    both, monkeypatch, dtype, width
):
    """Like a generator, with its inputs added to its outputs, and like a discriminator."""
    if DEVICE == "cpu":  # whose products have the type of their factors
        monkeypatch.setattr(perceptron, "product", lambda left, right: left.float() @ right.float())
    num_rows = NUM_NOVEL * NUM_EXAMPLES
    scale = width**-0.5
    weights = [scale * normals(width, width, seed=number) for number in range(3)]
    biases = [normals(width, seed=number) for number in range(3, 6)]
    rows, noise = normals(num_rows, width, seed=6), normals(num_rows, 11, seed=7)
    tables = [normals(NUM_EXAMPLES, width, seed=9), normals(5, width, seed=10)]
    places = torch.arange(num_rows, device=DEVICE) % 5
    keys, answer_biases = scale * normals(16, width, seed=11), normals(16, seed=12)
    targets, row_weights = places, torch.ones(num_rows, device=DEVICE)

    def compute():
        dtype_of_rows = dtype if perceptron.kernels_for("pairs") else torch.float32
        values = [*weights, *biases, 0.3 * normals(width, 11, seed=8), *tables, keys, answer_biases]
        leaves = [each.clone().requires_grad_() for each in values]
        inputs = rows.to(dtype_of_rows).requires_grad_()
        first, hidden, last, bias, hidden_bias, last_bias, of_noise, *others = leaves
        layers = [
            Layer(
                [(inputs, first), (noise.to(dtype_of_rows), of_noise)],
                Shared(bias, others[0], others[1], places),
            ),
            Layer([(None, hidden)], Shared(hidden_bias)),
            Layer([(None, last)], Shared(last_bias), inputs, "relu"),
        ]
        outputs = perceptron.perceptron(layers, shape=SHAPE, dtype=dtype_of_rows)
        question = Question(None, others[2], others[3], targets, row_weights)
        value = perceptron.perceptron(layers[:2], question, shape=SHAPE, dtype=dtype_of_rows)
        total = outputs.float().square().sum() + value
        return outputs, value, *torch.autograd.grad(total, [inputs, *leaves])

    tolerance = 1e-4 if dtype == torch.float32 else 5e-3
    for our_value, value in zip(*both(compute), strict=True):
        assert (our_value.float() - value).norm() < tolerance * value.norm()


def test_the_gradient_of_a_weight_is_laid_out_as_the_weight_is(both):
    # Rows of eleven inputs are padded. The fused Adam of a GPU does not accept a slice of that.
    inputs, weight = normals(6, 11, seed=1), normals(WIDTH, 11, seed=2).requires_grad_()

    def compute():
        outputs = perceptron.perceptron([Layer([(inputs, weight)])], shape=(2, 3))
        return torch.autograd.grad(outputs.sum(), weight)[0]

    for gradient in both(compute):
        assert gradient.stride() == weight.stride()


def test_log_likelihoods_and_their_gradients_are_those_of_the_definition(both):
    num_rows, num_answers = 50, 9
    biases = normals(num_answers, seed=1)
    biases[3] = -torch.inf
    targets = torch.arange(num_rows, device=DEVICE) % 3
    weights = normals(num_rows, seed=2).abs()

    def compute():
        leaves = [normals(num_rows, WIDTH, seed=3), normals(num_answers, WIDTH, seed=4), biases]
        leaves = [each.clone().requires_grad_() for each in leaves]
        value = perceptron.perceptron([], Question(*leaves, targets, weights))
        return value, *torch.autograd.grad(-2 * value, leaves)

    for ours, plain in zip(*both(compute), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_rows_beyond_the_last_have_no_share(both):
    """A program handles eight rows; missing rows would have the first class as target."""
    biases = torch.zeros(4, device=DEVICE)
    biases[0] = -torch.inf
    hidden, keys = normals(3, WIDTH, seed=1), normals(4, WIDTH, seed=2)
    targets, weights = torch.full((3,), 2, device=DEVICE), torch.ones(3, device=DEVICE)

    ours, plain = both(
        lambda: perceptron.perceptron([], Question(hidden, keys, biases, targets, weights))
    )

    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_novel", [1, NUM_NOVEL])
def test_rows_that_only_share_are_added_up(both, num_novel):
    def compute():
        table = normals(num_novel, WIDTH, seed=1).requires_grad_()
        shared, shape = Shared(normals(WIDTH, seed=2), by_novel=table), (num_novel, 5)
        outputs = perceptron.perceptron([Layer([], shared)], shape=shape)
        return outputs, *torch.autograd.grad(outputs.sum(), [table])

    for ours, plain in zip(*both(compute), strict=True):
        torch.testing.assert_close(ours, plain)


def test_distances_and_moments_are_those_of_the_definition(both):
    num_rows = NUM_NOVEL * NUM_EXAMPLES
    weights = normals(num_rows, seed=1).abs()
    sample_weights = normals(NUM_NOVEL, NUM_EXAMPLES, seed=2).softmax(dim=1)
    of_means, of_covariances = normals(WIDTH, seed=5), normals(WIDTH, WIDTH, seed=6)

    def compute():
        leaf = normals(num_rows, WIDTH, seed=3).requires_grad_()
        originals = Shared(by_example=normals(NUM_EXAMPLES, WIDTH, seed=4))
        distance = pair_ops.squared_distance(leaf, originals, weights, shape=SHAPE)
        means, squares = pair_ops.moments(leaf.view(*SHAPE, WIDTH), sample_weights)
        total = distance + (means @ of_means).sum() + (squares * of_covariances).sum()
        return distance, means, squares, *torch.autograd.grad(total, [leaf])

    for ours, plain in zip(*both(compute), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_orthonormal_columns_span_what_they_were_made_of():
    block = normals(2, 3, 40, 12, seed=1)
    block[..., 5] = block[..., 4] - 3 * block[..., 2]  # linearly dependent, so it becomes zero

    basis = kernels.orthonormal(block, torch.float32)

    gram = basis.mT @ basis
    expected = torch.eye(12, device=DEVICE)
    expected[5, 5] = 0
    torch.testing.assert_close(gram, expected.expand_as(gram), rtol=0, atol=1e-5)
    torch.testing.assert_close(basis @ (basis.mT @ block), block, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("count", "width"), [(4, 3), (1, 20), (1, 32)])
def test_small_eigenproblems_are_solved(count, width):
    matrices = normals(count, width, 2 * width, seed=1)
    matrices = matrices @ matrices.mT - 1.5 * width * torch.eye(width, device=DEVICE)

    values, vectors = kernels.eigh(matrices)

    exact = torch.linalg.eigvalsh(matrices.double()).float()
    order = exact.abs().argsort(dim=-1, descending=True)
    torch.testing.assert_close(values[..., :width], exact.gather(-1, order), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        matrices @ vectors, vectors * values.unsqueeze(-2), atol=2e-3, rtol=0
    )


def with_halves(base: Tensor, m: int) -> Spectra:
    """Return spectra with the data for products in half precision, on any device."""
    return spectra(base, m)._replace(halves=kernels.to_halves(base))


@pytest.mark.slow
def test_covariance_distances_are_ky_fan_norms(both):
    classes = torch.tensor([[2, 0], [1, 2]], device=DEVICE)
    examples = normals(3, 60, 48, seed=1) * torch.logspace(0, -1.5, 48, device=DEVICE)
    base = covariances(examples)
    other = covariances(normals(2, 60, 48, seed=2) * torch.logspace(0.1, -1.5, 48, device=DEVICE))
    exact = ky_fan_norm(base[classes].double() - other.double().unsqueeze(1), 4)

    def compute():
        leaf = other.clone().requires_grad_()
        distances = covariance_distances(with_halves(base, 4), classes, leaf, 4)
        large, small = (
            torch.autograd.grad(weight * distances.sum(), leaf, retain_graph=True)[0]
            for weight in (1.0, 1e-9)
        )
        return distances, large, small / 1e-9

    (ours, our_gradient, of_small_weight), (_, gradient, _) = both(compute)
    torch.testing.assert_close(ours.double(), exact, rtol=2e-3, atol=0)
    torch.testing.assert_close(our_gradient, gradient, rtol=0, atol=0.05)
    # Vectors are in half precision, whose smallest number is above 1e-8.
    torch.testing.assert_close(of_small_weight, our_gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_eigenproblems_are_solved_at_extreme_scales(both, scale):
    matrices = normals(2, 6, 6, seed=1)
    matrices = (matrices + matrices.mT) * scale

    (values, _), (plain, _) = both(lambda: covariance._eigh(matrices))

    torch.testing.assert_close(values[..., :6] / scale, plain / scale, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("beta1", [0.0, 0.5])
def test_weights_and_their_copies_follow_adam(monkeypatch, beta1):
    adam = pytest.importorskip("cpaan.gan.fast.kernels.adam")
    monkeypatch.setattr(weights, "kernels_for", lambda *_: adam)
    ours, plain = (
        [normals(40, 32, seed=1).requires_grad_(), normals(7, seed=2).requires_grad_()]
        for _ in range(2)
    )
    options = {"betas": (beta1, 0.999), "lr": torch.tensor(0.1, device=DEVICE)}
    optimiser = weights.RoundingAdam(ours, torch.float16, capturable=DEVICE == "cuda", **options)
    reference = torch.optim.Adam(plain, **options | {"lr": 0.1})

    for seed in (3, 4):
        for one, other in zip(ours, plain, strict=True):
            one.grad = other.grad = normals(*one.shape, seed=seed)
        optimiser.step()
        reference.step()

    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    with optimiser:
        assert torch.equal(weights.rounded(ours[0], torch.float16), ours[0].half())


@pytest.mark.parametrize("perplexity", [1.5, 6.0])
def test_soft_similarities_are_those_of_the_definition(perplexity):
    episodes = pytest.importorskip("cpaan.gan.fast.kernels.episodes")
    novel, base = normals(3, 70, seed=1), normals(9, 70, seed=2)

    found = episodes.soft_similarity(novel, base, perplexity, TEMPERATURES, PASSES)

    plain = soft_similarity(novel, base, perplexity)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)
    assert episodes.soft_similarity(normals(300, 2), normals(300, 2), 2.0, 33, 5) is None


def test_tensors_of_several_types_are_copied_at_once():
    episodes = pytest.importorskip("cpaan.gan.fast.kernels.episodes")
    sources = [normals(5, 300), torch.arange(7, device=DEVICE), normals(1)]
    targets = [torch.zeros_like(each) for each in sources]

    episodes.copy_all(targets, sources)

    assert all(map(torch.equal, targets, sources))


def test_keys_of_answers_have_the_gradients_of_their_definition():
    prototypes, possible = normals(3, 5, seed=1), torch.tensor([0, -torch.inf, 0, 0, -torch.inf])
    shapes = [(4, 5), (4, 4), (4,), (1, 4), (1,)]
    parts = [normals(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    key, embed, embed_bias, fake, fake_bias = parts
    upstream = normals(5, 4, seed=9)

    keys, biases = answer_keys(prototypes, possible.to(DEVICE), *parts)

    embedded = torch.cat([prototypes @ key.T / 2, fake, torch.zeros_like(fake)])
    offsets = torch.cat([torch.zeros(3, device=DEVICE), fake_bias, torch.zeros_like(fake_bias)])
    plain_biases = embedded @ embed_bias + offsets + possible.to(DEVICE)
    torch.testing.assert_close(keys, embedded @ embed)
    torch.testing.assert_close(biases, plain_biases)
    found, expected = (
        torch.autograd.grad((upstream * one).sum() + other[[0, 2, 3]].square().sum(), parts)
        for one, other in ((keys, biases), (embedded @ embed, plain_biases))
    )
    torch.testing.assert_close(found, expected)

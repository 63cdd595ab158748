"""Test the GPU kernels, in Triton's interpreter without a GPU."""

import pytest
import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.gan.covariance import Spectra, covariance_distances, covariances, ky_fan_norm
from cpaan.protocol.neighbours import PASSES, TEMPERATURES, soft_similarity

kernels = pytest.importorskip("cpaan.gan.fast.kernels.covariances", reason="needs Triton")
episodes = pytest.importorskip("cpaan.gan.fast.kernels.episodes")
fast = pytest.importorskip("cpaan.gan.fast.covariances")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normals(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=new_rng(seed)).to(DEVICE)


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


@pytest.mark.slow
@pytest.mark.parametrize(("num_dims", "m"), [(48, 4), (20, 3)])
def test_covariance_distances_are_ky_fan_norms(num_dims, m):
    """Blocks are narrower than the large space, and fill the small one."""
    classes = torch.tensor([[2, 0], [1, 2]], device=DEVICE)
    decay = torch.logspace(0, -1.5, num_dims, device=DEVICE)
    base = covariances(normals(3, 60, num_dims, seed=1) * decay)
    other = covariances(normals(2, 60, num_dims, seed=2) * 1.25 * decay)
    exact = ky_fan_norm(base[classes].double() - other.double().unsqueeze(1), m)

    def compute(kind: type[Spectra], weight: float = 1.0) -> tuple[Tensor, Tensor]:
        leaf = other.clone().requires_grad_()
        distances = covariance_distances(kind.prepare(base, m), classes, leaf, m)
        (gradient,) = torch.autograd.grad(weight * distances.sum(), leaf)
        return distances, gradient / weight

    distances, gradient = compute(fast.FastSpectra)
    torch.testing.assert_close(distances.double(), exact, rtol=2e-3, atol=0)
    torch.testing.assert_close(gradient, compute(Spectra)[1], rtol=0, atol=0.05)
    # Vectors are in half precision, whose smallest number is above 1e-8.
    of_small_weight = compute(fast.FastSpectra, weight=1e-9)[1]
    torch.testing.assert_close(of_small_weight, gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_spectra_of_small_spaces_are_exact_at_extreme_scales(scale):
    matrices = covariances(normals(2, 30, 6, seed=1))

    spectra = fast.FastSpectra.prepare(matrices * scale, m=3)

    exact = torch.linalg.eigvalsh(matrices).flip(-1)
    torch.testing.assert_close(spectra.values / scale, exact, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(spectra.norms / scale, exact[:, :3].sum(dim=1))


@pytest.mark.parametrize("perplexity", [1.5, 6.0])
def test_soft_similarities_are_those_of_the_definition(perplexity):
    novel, base = normals(3, 70, seed=1), normals(9, 70, seed=2)

    scores = episodes.soft_similarity(novel, base, perplexity, TEMPERATURES, PASSES)

    plain = soft_similarity(novel, base, perplexity)
    torch.testing.assert_close(scores, plain, rtol=1e-4, atol=1e-6)
    assert episodes.soft_similarity(normals(300, 2), normals(300, 2), 2.0, 33, 5) is None


def test_tensors_of_several_types_are_copied_at_once():
    sources = [normals(5, 300), torch.arange(7, device=DEVICE), normals(1)]
    targets = [torch.zeros_like(source) for source in sources]

    episodes.copy_all(targets, sources)

    assert all(map(torch.equal, targets, sources))

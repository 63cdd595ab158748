"""Test the Ky Fan norm against its definition and the theory of its subdifferential."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cpaan.gan.covariance import Spectra, covariance_distances, covariances, ky_fan_norm
from helpers.tasks import normals


def random_matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    return normals(rows, columns, seed=seed, dtype=torch.float64)


# Matrices at which a naive gradient of the SVD fails, and others.
MATRICES = {
    "generic": random_matrix(5, 5),
    "tall": random_matrix(6, 4),
    "wide": random_matrix(3, 6),
    "symmetric and indefinite": random_matrix(5, 5) + random_matrix(5, 5).T,
    "tied": torch.eye(4, dtype=torch.float64),
    "rank one": random_matrix(5, 1) @ random_matrix(1, 4, seed=1),
}
SCALES = [1e-9, 1.0, 1e9]


def sum_of_singular_values(matrix: Tensor, m: int) -> float:
    return float(np.linalg.svd(matrix.double().numpy(), compute_uv=False)[:m].sum())


def subgradient(matrices: Tensor, m: int) -> Tensor:
    matrices = matrices.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ky_fan_norm(matrices, m).sum(), matrices)
    return gradient


def dual_norm(matrix: Tensor, m: int) -> float:
    """Return the dual of the Ky Fan m-norm: max(spectral norm, nuclear norm / m)."""
    return max(sum_of_singular_values(matrix, 1), sum_of_singular_values(matrix, 10**9) / m)


def assert_norm_and_subgradient(
    norm: Tensor, gradient: Tensor, matrix: Tensor, m: int, tolerance: float, zero: float = 0
) -> None:
    """Check that dual_norm(G) <= 1 and <G, X> = norm(X), the conditions for a subgradient G."""
    expected = sum_of_singular_values(matrix, m)
    pairing = (gradient.double() * matrix.double()).sum().item()
    assert norm.item() == pytest.approx(expected, rel=tolerance, abs=zero), m
    assert gradient.isfinite().all(), m
    assert dual_norm(gradient, m) <= 1 + tolerance, m
    assert pairing == pytest.approx(expected, rel=tolerance, abs=zero), m


@pytest.mark.parametrize("name", MATRICES)
def test_norms_are_sums_of_singular_values_and_gradients_lie_in_the_subdifferential(name):
    """Where the norm is smooth, the subdifferential has one element, the gradient."""
    batch = torch.stack([scale * MATRICES[name] for scale in (*SCALES, 0.0)]).unflatten(0, (2, 2))

    for m in range(1, min(batch.shape[-2:]) + 1):
        parts = ky_fan_norm(batch, m), subgradient(batch, m), batch
        for norm, gradient, matrix in zip(*(part.flatten(0, 1) for part in parts), strict=True):
            assert_norm_and_subgradient(norm, gradient, matrix, m, 1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("name", ["tall", "symmetric and indefinite", "tied", "rank one"])
def test_squares_out_of_the_range_of_float32_do_no_harm(name, scale):
    matrix = (scale * MATRICES[name]).float()
    assert_norm_and_subgradient(ky_fan_norm(matrix, 3), subgradient(matrix, 3), matrix, 3, 1e-5)
    largest = torch.full((1, 1), torch.finfo(torch.float32).max)
    assert ky_fan_norm(largest, 1) == largest


@pytest.mark.parametrize("scale", SCALES)
def test_the_gradient_ignores_directions_of_zero_singular_value(scale):
    first, second = torch.linalg.qr(random_matrix(4, 2)).Q.T
    rank_one = torch.outer(first, second)

    gradient = subgradient(3 * scale * rank_one, m=4)

    torch.testing.assert_close(gradient, rank_one, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("matrices", "m", "message"),
    [
        *((torch.tensor([[[0.0]], [[bad]]]), 1, "finite") for bad in (math.nan, math.inf)),
        *((torch.zeros(3, 5), m, rf"between 1 and 3 .* \(3, 5\), got {m}") for m in (-1, 0, 4)),
    ],
)
def test_matrices_and_orders_without_a_norm_are_refused(matrices, m, message):
    with pytest.raises(ValueError, match=message):
        ky_fan_norm(matrices, m)


def test_a_covariance_is_about_the_mean_and_a_weighted_example_is_as_a_repeated_one():
    first, second = torch.tensor([[10.0, 0.0], [12.0, 4.0]])  # distances 1 and 2 from the mean
    weights = torch.tensor([0.75, 0.25])

    plain = covariances(torch.stack([first, second]))
    weighted = covariances(torch.stack([first, second]), weights)

    torch.testing.assert_close(plain, torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    repeated = covariances(torch.stack([first, first, first, second]))
    torch.testing.assert_close(weighted, repeated)


# The 2 (m + 6) directions span all of 5 dimensions, but a small part of 60 dimensions.
BRANCHES = pytest.mark.parametrize(("num_dims", "m"), [(5, 3), (60, 3)])


def decaying_covariances(count: int, num_dims: int, seed: int) -> Tensor:
    """Return covariances with eigenvalues 1, 1/2, 1/3, ... and random eigenvectors."""
    eigenvalues = 1 / torch.arange(1, num_dims + 1, dtype=torch.float64)
    bases = [
        torch.linalg.qr(random_matrix(num_dims, num_dims, seed=seed + number)).Q
        for number in range(count)
    ]
    return torch.stack([basis @ (eigenvalues[:, None] * basis.T) for basis in bases])


def distance_and_gradient(base: Tensor, other: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the distance of two covariances, and its gradient for the second one."""
    other = other.clone().requires_grad_()
    first = torch.zeros(1, 1, dtype=torch.long)
    distance = covariance_distances(
        Spectra.prepare(base.unsqueeze(0), m), first, other.unsqueeze(0), m
    )
    (gradient,) = torch.autograd.grad(distance.sum(), other)
    return distance.detach().squeeze(), gradient


@pytest.mark.parametrize(
    ("num_dims", "tolerance", "of_gradient"), [(5, 1e-9, 1e-9), (60, 1e-4, 0.05)]
)
def test_distances_are_norms_of_the_differences(num_dims, tolerance, of_gradient):
    """Small spaces are exact; large ones use the leading directions."""
    base = decaying_covariances(4, num_dims, seed=0)
    other = (1.5 * decaying_covariances(2, num_dims, seed=10)).requires_grad_()
    classes = torch.tensor([[3, 0, 1], [1, 2, 2]])
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.07, 0.03]], dtype=torch.float64)

    distances = covariance_distances(Spectra.prepare(base, 3), classes, other, 3)

    expected = ky_fan_norm(base[classes] - other.unsqueeze(1), 3)
    torch.testing.assert_close(distances, expected, atol=0, rtol=tolerance)
    ours, theirs = (
        torch.autograd.grad((weights * norms).sum(), other)[0] for norms in (distances, expected)
    )
    assert (ours - theirs).norm() <= of_gradient * theirs.norm()


@BRANCHES
def test_degenerate_covariances_have_a_distance_and_a_subgradient(num_dims, m):
    spread, _ = decaying_covariances(2, num_dims, seed=0)
    of_two, of_others = (covariances(random_matrix(2, num_dims, seed=seed)) for seed in (3, 4))

    for base, other in (
        (spread, spread),  # equal: distance zero
        (spread, torch.zeros_like(spread)),  # no spread: norm of the base covariance
        (spread, of_others),
        (of_two, of_others),
    ):
        distance, gradient = distance_and_gradient(base, other, m)
        assert_norm_and_subgradient(distance, -gradient, base - other, m, 1e-3, zero=1e-12)


def test_a_direction_that_no_base_class_has_counts():
    """This direction is orthogonal to the leading eigenvectors of the base class."""
    base = torch.zeros(60, 60, dtype=torch.float64)
    base.diagonal()[:20] = torch.arange(20, 0, -1)
    other = torch.zeros(60, 60, dtype=torch.float64)
    other[59, 59] = 500

    distance, _ = distance_and_gradient(base, other, m=3)

    assert distance.item() == pytest.approx(500 + 20 + 19)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20])
def test_distances_keep_their_digits_at_extreme_scales(scale):
    base, other = decaying_covariances(2, num_dims=60, seed=0).float()

    small, _ = distance_and_gradient(base, other, m=3)
    scaled, _ = distance_and_gradient(scale * base, scale * other, m=3)

    torch.testing.assert_close(scaled / scale, small, rtol=1e-4, atol=0)


@BRANCHES
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_distance_to_what_is_not_finite_is_no_number(num_dims, m, value):
    (base,) = decaying_covariances(1, num_dims, seed=0)

    distance, _ = distance_and_gradient(base, torch.full_like(base, value), m)

    assert distance.isnan()


@BRANCHES
def test_what_float32_gives_up_on_is_solved_in_float64(num_dims, m, monkeypatch):
    solve = torch.linalg.eigh

    def give_up(matrices: Tensor) -> tuple[Tensor, Tensor]:
        if matrices.dtype == torch.float32:
            raise torch.linalg.LinAlgError("linalg.eigh: the algorithm failed to converge")
        return solve(matrices)

    monkeypatch.setattr(torch.linalg, "eigh", give_up)
    base, other = decaying_covariances(2, num_dims, seed=0)

    distance, gradient = distance_and_gradient(base.float(), other.float(), m)

    assert distance.dtype == gradient.dtype == torch.float32
    assert_norm_and_subgradient(distance, -gradient, base - other, m, 1e-3)
    missing, _ = distance_and_gradient(base.float(), torch.full_like(other.float(), torch.nan), m)
    assert missing.isnan()

"""Covariances of classes, and the Ky Fan norm that compares them.

Shapes: N = novel classes, C = base classes, L = base classes that a novel class is compared with,
S = examples of a class, D = feature dimension, m = Ky Fan order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # exported, but not declared so

_EXTRA_DIRECTIONS = 6
"""Beyond m, for a start of subspace iteration: what is just below the m-th value must not be
mistaken for it."""
_NUM_ITERATIONS = 2
_WIDEST_ON_GPU = 32
"""Of matrices whose eigenvectors a GPU finds for a whole batch at once; wider ones it takes one by
one, ten times slower than a CPU does."""


class _KyFanNorm(torch.autograd.Function):
    """Sum of the m largest singular values, with the paper's subgradient ``U_m V_m^T``."""

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, m: int) -> Tensor:
        # A power of two, so that nothing is rounded: squares of entries, which factorisations
        # form on their way, would otherwise overflow or vanish at extreme scales.
        largest = matrices.abs().amax(dim=(-2, -1), keepdim=True)
        exponent = torch.frexp(largest).exponent - 1
        scale = exponent.to(largest.dtype).exp2().clamp(min=torch.finfo(largest.dtype).tiny)
        u, sigma, vh = torch.linalg.svd(matrices / scale, full_matrices=False)
        u, sigma, vh = u[..., :m], sigma[..., :m], vh[..., :m, :]

        # Few examples in many dimensions give covariances of low rank: the last singular values
        # are zero and their vectors arbitrary. Dropping these picks the subgradient of least
        # norm, so that training does not drift along directions of which the data says nothing.
        rank_tolerance = max(matrices.shape[-2:]) * torch.finfo(matrices.dtype).eps
        is_nonzero = sigma > rank_tolerance * sigma[..., :1]
        ctx.save_for_backward((u * is_nonzero.unsqueeze(-2)) @ vh)
        return sigma.sum(dim=-1) * scale[..., 0, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (subgradient,) = ctx.saved_tensors
        return grad_output[..., None, None] * subgradient, None


def ky_fan_norm(matrices: Tensor, m: int) -> Tensor:
    """Return Ky Fan m-norms: the sum of the m largest singular values of each matrix.

    ``m = 1`` is the spectral norm; ``m = min(rows, columns)`` is the nuclear norm. The gradient
    is the subgradient ``U_m V_m^T``, finite also where singular values tie or vanish; where
    they vanish, the one of least norm.

    Args:
        matrices: Real matrices, shape (..., rows, columns).
        m: Number of singular values to sum.

    Returns:
        Shape (...). Differentiable once.

    Raises:
        ValueError: If m is not between 1 and min(rows, columns), or an entry is not finite:
            some factorisations turn such matrices into ordinary numbers.
    """
    num_values = min(matrices.shape[-2:])
    if not 1 <= m <= num_values:
        raise ValueError(
            f"m must be between 1 and {num_values} for matrices of shape "
            f"{tuple(matrices.shape)}, got {m}"
        )
    if not matrices.isfinite().all():
        raise ValueError("the Ky Fan norm needs finite matrices, got NaN or infinity")
    result: Tensor = _KyFanNorm.apply(matrices, m)
    return result


def covariances(examples: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the covariance of each class about its mean, divided by the number of examples.

    Args:
        examples: Shape (..., S, D).
        weights: Of examples, shape (..., S), summing to one; by default all weigh the same.

    Returns:
        Shape (..., D, D).
    """
    if weights is None:
        weights = torch.full_like(examples[..., 0], 1 / examples.shape[-2])
    weights = weights.unsqueeze(-1)
    deviations = examples - (weights * examples).sum(dim=-2, keepdim=True)
    return deviations.transpose(-2, -1) @ (weights * deviations)


class Spectra(NamedTuple):
    """Covariances of base classes with their leading eigenvectors: constants of training."""

    matrices: Tensor  # (C, D, D)
    leading: Tensor  # (C, D, directions), orthonormal columns
    norms: Tensor  # (C,) Ky Fan m-norms


def spectra(matrices: Tensor, m: int) -> Spectra:
    """Return covariances, shape (C, D, D), with what `covariance_distances` needs of them."""
    num_directions = min(m + _EXTRA_DIRECTIONS, matrices.shape[-1])
    values, vectors = _eigh(matrices)
    return Spectra(
        matrices=matrices,
        leading=vectors[..., -num_directions:].contiguous(),
        norms=values[..., -m:].sum(dim=-1),
    )


def covariance_distances(base: Spectra, classes: Tensor, other: Tensor, m: int) -> Tensor:
    """Return Ky Fan m-norms of base covariances minus others, for many pairs that share them.

    Each difference X is symmetric and indefinite: its singular values are the sizes of its
    eigenvalues. What X does not nearly vanish on is close to the leading eigenvectors of the one
    covariance and of the other; two multiplications of these by X and a small eigenproblem give
    the norm with a relative error of about 1e-4 on covariances of real features. Where so many
    vectors would fill the space, the eigenproblem is the whole one.

    The gradient is the subgradient with respect to ``other``; it is summed over the pairs of a
    novel class before it is multiplied by anything large.

    Args:
        base: Covariances of base classes.
        classes: Which of them each novel class is compared with, shape (N, L).
        other: Covariances of novel classes, shape (N, D, D).
        m: Ky Fan order.

    Returns:
        Shape (N, L); NaN where a covariance is not finite.
    """
    result: Tensor = _CovarianceDistances.apply(other, base, classes, m)
    return result


class _CovarianceDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, other: Tensor, base: Spectra, classes: Tensor, m: int) -> Tensor:
        try:
            vectors, values = _leading_eigenpairs(other, base, classes)
        except LinAlgError:  # of NaN, there are no eigenvalues
            values = other.new_full((*classes.shape, m), torch.nan)
            vectors = other.new_zeros(*classes.shape, other.shape[-1], m)
        order = values.abs().argsort(dim=-1, descending=True)[..., :m]
        values = values.gather(-1, order)
        vectors = vectors.gather(-1, order.unsqueeze(-2).expand(*vectors.shape[:-1], -1))
        # As in the norm itself: where there is nothing, the subgradient of least norm.
        sizes = values.abs()
        rank_tolerance = other.shape[-1] * torch.finfo(other.dtype).eps
        is_nonzero = sizes > rank_tolerance * sizes[..., :1]
        ctx.save_for_backward(vectors, values.sign() * is_nonzero)
        return sizes.sum(dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        vectors, signs = ctx.saved_tensors  # (N, L, D, m), (N, L, m)
        scaled = vectors * (-grad_output.unsqueeze(-1) * signs).unsqueeze(-2)
        left = vectors.transpose(1, 2).flatten(2)  # (N, D, L * m)
        right = scaled.transpose(1, 2).flatten(2)
        return left @ right.transpose(-2, -1), None, None, None


def _leading_eigenpairs(other: Tensor, base: Spectra, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return approximate eigenvectors (N, L, D, directions) of the differences, and eigenvalues."""
    num_dims, num_directions = base.leading.shape[-2:]
    if 2 * num_directions >= num_dims:
        values, vectors = _eigh(base.matrices[classes] - other.unsqueeze(1))
        return vectors, values

    # The other covariances' leading eigenvectors, from those of the nearest base class, and from
    # the columns of their own largest variances: they may have what no base class has.
    largest = other.diagonal(dim1=-2, dim2=-1).topk(num_directions, dim=-1).indices
    own = other.gather(-1, largest.unsqueeze(-2).expand(-1, num_dims, -1))
    start = torch.cat([other @ base.leading[classes[:, 0]], own], dim=-1)
    vectors, _ = _eigenpairs_near(start, lambda block: other @ block)
    of_other = vectors[..., -num_directions:].unsqueeze(1).expand(-1, classes.shape[1], -1, -1)

    matrices = base.matrices[classes]
    return _eigenpairs_near(
        torch.cat([base.leading[classes], of_other], dim=-1),
        lambda block: _times_difference(matrices, other, block),
    )


def _eigenpairs_near(start: Tensor, times: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return eigenvectors and ascending eigenvalues of a symmetric matrix on a subspace.

    Args:
        start: Columns whose span is close to the wanted eigenvectors, shape (..., D, columns).
        times: Multiplies such a block by the matrix.
    """
    block = start
    for _ in range(_NUM_ITERATIONS):
        block = times(_orthonormal(block))
    block = _orthonormal(block)
    small = block.transpose(-2, -1) @ times(block)
    values, rotation = _eigh((small + small.transpose(-2, -1)) / 2)
    return block @ rotation, values


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of symmetric matrices.

    With many eigenvalues at zero, as few examples have, float32 at times does not converge, or
    gives NaN without a word; float64 then does.

    Raises:
        LinAlgError: If an entry is not finite.
    """
    device = matrices.device
    if matrices.is_cuda and matrices.shape[-1] > _WIDEST_ON_GPU:
        matrices = matrices.cpu()
    try:
        values, vectors = torch.linalg.eigh(matrices)
        is_solved = bool(values.isfinite().all() & vectors.isfinite().all())
    except LinAlgError:
        is_solved = False
    if not is_solved:
        if not matrices.isfinite().all():
            raise LinAlgError("of NaN or infinity, there are no eigenvalues")
        values, vectors = torch.linalg.eigh(matrices.double())
    return values.to(device, matrices.dtype), vectors.to(device, matrices.dtype)


def _times_difference(matrices: Tensor, other: Tensor, block: Tensor) -> Tensor:
    """Return (base covariance - other covariance) @ block, shape (N, L, D, directions)."""
    num_novel, num_pairs, num_dims, num_directions = block.shape
    together = block.transpose(1, 2).flatten(2)  # one product for all pairs of a novel class
    by_other = (other @ together).view(num_novel, num_dims, num_pairs, num_directions)
    return matrices @ block - by_other.transpose(1, 2)


def _orthonormal(block: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of columns, shape (..., D, directions).

    By the eigenvectors of the Gram matrix, which are far quicker to have than a QR
    factorisation for many narrow blocks. Columns that depend on others become zero.
    """
    tiny = torch.finfo(block.dtype).tiny
    # By the largest entry first: squares of large or small entries leave the range of numbers.
    block = block / block.abs().amax(dim=-2, keepdim=True).clamp(min=tiny)
    block = block / block.norm(dim=-2, keepdim=True).clamp(min=tiny)
    values, vectors = _eigh(block.transpose(-2, -1) @ block)
    limit = values[..., -1:] * block.shape[-2] * torch.finfo(block.dtype).eps
    factor = torch.where(values > limit, values.clamp(min=tiny).rsqrt(), 0.0)
    return (block @ vectors) * factor.unsqueeze(-2)

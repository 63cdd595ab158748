"""Covariances of classes, and the Ky Fan norm that compares them.

Shapes: N = novel classes, C = base classes, L = base classes that a novel class is compared with,
S = examples of a class, D = feature dimension, m = Ky Fan order.
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # exported, but not declared so

EXTRA_DIRECTIONS = 6
"""Directions beyond m in subspace iteration, to separate the m-th value from the next ones."""
_NUM_STEPS = 4
"""Number of multiplications of a covariance with estimates of its leading eigenvectors."""
_WIDEST_ON_GPU = 32
"""Largest width of matrices whose eigenvectors PyTorch computes in batches on a GPU. It computes
those of wider matrices one by one, ten times slower than a CPU."""


class _KyFanNorm(torch.autograd.Function):
    """Sum of the m largest singular values, with the paper's subgradient ``U_m V_m^T``."""

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, m: int) -> Tensor:
        # Factorisations square entries, which would overflow or underflow at extreme scales.
        # Division by a power of two is exact.
        exponent = torch.frexp(largest_entry(matrices)).exponent - 1
        scale = _nonzero(exponent.to(matrices.dtype).exp2())
        u, sigma, vh = torch.linalg.svd(matrices / scale, full_matrices=False)
        u, sigma, vh = u[..., :m], sigma[..., :m], vh[..., :m, :]

        # Few examples in many dimensions give covariances of low rank: the last singular values
        # are zero and their vectors arbitrary. Dropping these picks the subgradient of least
        # norm, so that training does not drift along directions that the data does not determine.
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
    """Compute the Ky Fan m-norm of matrices: the sum of the m largest singular values.

    ``m = 1`` is the spectral norm; ``m = min(rows, columns)`` is the nuclear norm. The gradient
    is the subgradient ``U_m V_m^T``. It is finite even if singular values tie or vanish; if they
    vanish, it is the subgradient of least norm.

    >>> ky_fan_norm(torch.diag(torch.tensor([1.0, -7.0, 3.0])), m=2)
    tensor(10.)

    Args:
        matrices: Real matrices, symmetric or not, shape (..., rows, columns).
        m: Number of singular values to sum.

    Returns:
        Norms, shape (...), differentiable once.

    Raises:
        ValueError: If m is not between 1 and min(rows, columns), or an entry is not finite.
    """
    num_values = min(matrices.shape[-2:])
    if not 1 <= m <= num_values:
        raise ValueError(
            f"m must be between 1 and {num_values} for matrices of shape "
            f"{tuple(matrices.shape)}, got {m}"
        )
    if not matrices.isfinite().all():
        raise ValueError("the Ky Fan norm needs finite matrices, got NaN or infinity")
    return _KyFanNorm.apply(matrices, m)


def covariances(examples: Tensor, weights: Tensor | None = None) -> Tensor:
    """Compute the covariances of classes about their means, shape (..., D, D).

    Examples have shape (..., S, D). Their weights, shape (..., S), sum to one. By default they are
    equal, so that sums are divided by S, not by S - 1.
    """
    if weights is None:
        weights = torch.full_like(examples[..., 0], 1 / examples.shape[-2])
    # Deviations sum to zero, so the gradient through the mean vanishes.
    deviations = examples - weighted_mean(examples, weights).detach()
    return deviations.transpose(-2, -1) @ (weights.unsqueeze(-1) * deviations)


def weighted_mean(examples: Tensor, weights: Tensor) -> Tensor:
    """Return the means of classes, shape (..., 1, D)."""
    return (weights.unsqueeze(-1) * examples).sum(dim=-2, keepdim=True)


@dataclass(frozen=True, eq=False)
class Spectra:
    """Covariances of base classes and their leading eigenvectors, constant during training."""

    matrices: Tensor  # (C, D, D)
    leading: Tensor  # (C, directions, D), orthonormal rows
    norms: Tensor  # (C,) Ky Fan m-norms

    @classmethod
    def prepare(cls, matrices: Tensor, m: int) -> Self:
        """Compute the eigenvectors of covariances, shape (C, D, D)."""
        values, vectors = eigh(matrices)
        count = min(m + EXTRA_DIRECTIONS, matrices.shape[-1])
        leading = vectors[..., :count].mT.contiguous()
        return cls(matrices, leading, values[..., :m].sum(dim=-1))

    def singular_vectors(
        self, classes: Tensor, other: Tensor, m: int, unit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute leading right singular vectors of the differences X, and their images under X.

        X is symmetric and indefinite. Its leading singular vectors are close to the span of the
        leading eigenvectors of both covariances, so X times these spans nearly its whole range. On
        covariances of real features, the relative error of singular values is about 1e-4. If the
        eigenvectors would fill the space, X is decomposed directly.

        Images are divided by ``unit``, shape (N, L, 1, 1). Both results have shape (N, L, m, D).
        """
        num_directions, num_dims = self.leading.shape[-2:]
        if 2 * num_directions >= num_dims:
            differences = self.matrices[classes] - other.unsqueeze(1)
            right = eigh(differences)[1][..., :m].mT
            return right, (right / unit) @ differences
        directions = leading_directions(other, self.leading[classes[:, 0]], num_directions)
        directions = orthonormal(directions).unsqueeze(1).expand(-1, classes.shape[1], -1, -1)
        start = torch.cat([self.leading[classes].mT, directions], dim=-1)
        block = orthonormal(_times_difference(self.matrices, classes, other, start))
        images = _times_difference(self.matrices, classes, other, block)
        scaled = images / largest_entry(images)
        rotation = eigh(scaled.mT @ scaled)[1][..., :m].mT
        return rotation @ block.mT, (rotation / unit) @ images.mT


def covariance_distances(base: Spectra, classes: Tensor, other: Tensor, m: int) -> Tensor:
    """Compute d_cov for many pairs of a base and a novel class that share them.

    It is the Ky Fan m-norm of the difference X of the base class's covariance and the other one.
    Gradients are subgradients with respect to ``other``, summed over the pairs of a novel class.

    Args:
        base: Covariances of base classes, prepared for ``m``.
        classes: Base classes to compare the novel classes with, shape (N, L), the nearest first.
        other: Covariances of novel classes, shape (N, D, D).
        m: Ky Fan order.

    Returns:
        Norms, shape (N, L); NaN where a covariance is not finite.
    """
    return _CovarianceDistances.apply(other, base, classes, m)


class _CovarianceDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, other: Tensor, base: Spectra, classes: Tensor, m: int) -> Tensor:
        try:
            # Divided by the size of the covariances, so that squares do not overflow.
            unit = torch.maximum(base.norms[classes], largest_entry(other).squeeze(-1))
            right, images = base.singular_vectors(classes, other, m, unit[..., None, None])
        except LinAlgError:  # a covariance is NaN or infinite
            right = other.new_zeros(*classes.shape, m, other.shape[-1])
            images = torch.full_like(right, torch.nan)
        values = torch.linalg.vector_norm(images, dim=-1)  # (N, L, m) singular values over unit
        # As in `_KyFanNorm`, use the subgradient of least norm if singular values vanish.
        precision = torch.finfo(right.dtype).eps
        rank_tolerance = max(precision, other.shape[-1] * torch.finfo(other.dtype).eps)
        is_nonzero = values > rank_tolerance * values.amax(dim=-1, keepdim=True)
        ctx.save_for_backward(right, images, torch.where(is_nonzero, 1 / values, 0.0))
        return values.sum(dim=-1) * unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        right, images, inverse = ctx.saved_tensors  # (N, L, m, D) twice, (N, L, m)
        left = images * (-grad_output.unsqueeze(-1) * inverse).unsqueeze(-1)
        # In the type of the weights, because some of them underflow in the type of the vectors.
        gradient = left.flatten(1, 2).mT @ right.to(left.dtype).flatten(1, 2)
        return gradient, None, None, None


def leading_directions(covariances: Tensor, near: Tensor, count: int) -> Tensor:
    """Iterate towards the leading eigenvectors of covariances (N, D, D), shape (N, D, count).

    Start from half as many directions of a base class that is ``near``, shape (N, directions, D).
    Add the columns of largest variance, because a covariance may have directions that no base class
    has.
    """
    num_near = count // 2
    columns = largest_columns(covariances, count - num_near)
    directions = torch.cat([near[:, :num_near].mT.to(columns.dtype), columns], dim=-1)
    # Divided by its largest entry, so that its powers do not overflow.
    scaled = covariances / largest_entry(covariances)
    for _ in range(_NUM_STEPS):
        directions = scaled @ directions
    return directions


def _times_difference(base: Tensor, classes: Tensor, other: Tensor, block: Tensor) -> Tensor:
    """Return (base covariance - other covariance) @ block, shape (N, L, D, columns)."""
    # One product for all pairs of a novel class, and one for all pairs of a base class, so that
    # every covariance is read once.
    together = block.transpose(1, 2)
    by_other = (other @ together.flatten(2)).view_as(together).transpose(1, 2)
    result = torch.empty_like(block).flatten(0, 1)
    base_classes, number = classes.flatten().unique(return_inverse=True)
    pairs_of_classes = number.argsort(stable=True).split(number.bincount().tolist())
    columns = block.flatten(0, 1)
    for base_class, pairs in zip(base_classes.tolist(), pairs_of_classes, strict=True):
        of_class = columns[pairs].transpose(0, 1)
        by_base = (base[base_class] @ of_class.flatten(1)).view_as(of_class)
        result[pairs] = by_base.transpose(0, 1)
    return result.view_as(block) - by_other


def eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues, by decreasing magnitude, and eigenvectors of symmetric matrices.

    Covariances of few examples have many zero eigenvalues. For them, float32 sometimes does not
    converge or silently returns NaN; float64 is then used instead.

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
            raise LinAlgError("matrices with NaN or infinity have no eigenvalues")
        values, vectors = torch.linalg.eigh(matrices.double())
    order = values.abs().argsort(dim=-1, descending=True)
    vectors = vectors.gather(-1, order.unsqueeze(-2).expand_as(vectors))
    values = values.gather(-1, order)
    return values.to(device, matrices.dtype), vectors.to(device, matrices.dtype)


def orthonormal(block: Tensor) -> Tensor:
    """Return an orthonormal basis of the span of columns, shape (..., D, directions).

    Columns that depend on others become an arbitrary vector orthogonal to all others.
    """
    # Divided by the largest entry, because squares may overflow or underflow.
    return torch.linalg.qr(block / _nonzero(block.abs().amax(dim=-2, keepdim=True)))[0]


def largest_entry(matrices: Tensor) -> Tensor:
    """Return the largest magnitude in every matrix, shape (..., 1, 1); never zero."""
    return _nonzero(matrices.abs().amax(dim=(-2, -1), keepdim=True))


def largest_columns(matrices: Tensor, count: int) -> Tensor:
    """Return the columns of the largest diagonal entries, divided by them, (..., D, count)."""
    diagonal = matrices.diagonal(dim1=-2, dim2=-1)
    largest = diagonal.topk(count, dim=-1)
    places = largest.indices.unsqueeze(-2).expand(*matrices.shape[:-1], -1)
    return matrices.gather(-1, places) / _nonzero(largest.values.unsqueeze(-2))


def _nonzero(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=torch.finfo(sizes.dtype).tiny)

"""Covariances of classes, and the Ky Fan norm that compares them.

Shapes: N = novel classes, C = base classes, L = base classes that a novel class is compared with,
S = examples of a class, D = feature dimension, m = Ky Fan order.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # exported, but not declared so
from torch.nn.functional import pad

from cpaan.gan.fast.kernels import kernels_for

_EXTRA_DIRECTIONS = 6
"""Directions beyond m in subspace iteration, to separate the m-th value from the next ones."""
_WIDTH_ON_GPU = 32
"""Columns of a block on a GPU for m up to `_LARGEST_ORDER_ON_GPU`; kernels are slow for 64."""
_LARGEST_ORDER_ON_GPU = 20
_NUM_STEPS = 4
"""Number of multiplications of a covariance with estimates of its leading eigenvectors."""
_NUM_STEPS_FOR_SPECTRA = 30
"""The same number for base classes on a GPU, which are prepared once per training run."""
_WIDEST_ON_GPU = 32
"""Largest width of matrices whose eigenvectors PyTorch computes in batches on a GPU. It computes
those of wider matrices one by one, ten times slower than a CPU."""


class _KyFanNorm(torch.autograd.Function):
    """Sum of the m largest singular values, with the paper's subgradient ``U_m V_m^T``."""

    @staticmethod
    def forward(ctx: Any, matrices: Tensor, m: int) -> Tensor:
        # Factorisations square entries, which would overflow or underflow at extreme scales.
        # Division by a power of two does not round.
        exponent = torch.frexp(_largest_entry(matrices)).exponent - 1
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
    """Compute the Ky Fan m-norm of each matrix: the sum of its m largest singular values.

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
    """Compute the covariance of each class about its mean, shape (..., D, D).

    Examples have shape (..., S, D). Their weights, shape (..., S), sum to one. By default they are
    equal, so that sums are divided by S, not by S - 1.
    """
    if weights is None:
        weights = torch.full_like(examples[..., 0], 1 / examples.shape[-2])
    weights = weights.unsqueeze(-1)
    deviations = examples - (weights * examples).sum(dim=-2, keepdim=True)
    return deviations.transpose(-2, -1) @ (weights * deviations)


class Spectra(NamedTuple):
    """Covariances of base classes and their leading eigenvectors, constant during training."""

    matrices: Tensor  # (C, D, D)
    leading: Tensor  # (C, directions, D), orthonormal rows; float16 if there are halves
    values: Tensor  # (C, directions), their eigenvalues
    norms: Tensor  # (C,) Ky Fan m-norms
    halves: tuple[Tensor, Tensor] | None  # for a GPU: see `fast.kernels.covariances.to_halves`


def spectra(matrices: Tensor, m: int) -> Spectra:
    """Prepare covariances, shape (C, D, D), for `covariance_distances`."""
    num_dims = matrices.shape[-1]
    num_directions, width = _num_directions(matrices, m)
    halves = None
    kernels = kernels_for("covariances", matrices)
    if kernels and kernels.fits(num_dims, width) and width < num_dims:
        halves = kernels.to_halves(matrices)
        block = _largest_columns(matrices, num_directions)
        for _ in range(_NUM_STEPS_FOR_SPECTRA):
            block = matrices @ _orthonormal(block)
        block = _orthonormal(block)
        values, rotation = _eigh(block.mT @ matrices @ block)
        vectors = block @ rotation[..., :num_directions]
    else:
        values, vectors = _eigh(matrices)
    leading = vectors[..., :num_directions].mT.contiguous()
    leading = leading.half() if halves else leading
    norms = values[..., :m].sum(dim=-1)
    return Spectra(matrices, leading, values[..., :num_directions].contiguous(), norms, halves)


def covariance_distances(base: Spectra, classes: Tensor, other: Tensor, m: int) -> Tensor:
    """Compute Ky Fan m-norms of base covariances minus others, for many pairs that share them.

    Each difference X is symmetric and indefinite. Its leading singular vectors are close to the
    span of the leading eigenvectors of the two covariances. An orthonormal basis of X times these
    eigenvectors spans nearly the whole range of X. On covariances of real features, X times this
    basis has the singular values of X, to a relative error of about 1e-4. If the basis would fill
    the space, X is decomposed directly.

    The gradient is the subgradient with respect to ``other``. It is summed over the pairs of a
    novel class before it is multiplied by a large matrix.

    Args:
        base: Covariances of base classes.
        classes: Base classes that each novel class is compared with, shape (N, L), the nearest
            first.
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
            unit = torch.maximum(base.norms[classes], _largest_variance(other).unsqueeze(1))
            right, images = _singular_vectors(other, base, classes, m, unit[..., None, None])
        except LinAlgError:  # a covariance is NaN or infinite
            right = other.new_zeros(*classes.shape, m, other.shape[-1])
            images = torch.full_like(right, torch.nan)
        sizes = torch.linalg.vector_norm(images, dim=-1)  # (N, L, m)
        # As in `_KyFanNorm`, use the subgradient of least norm if singular values vanish.
        precision = torch.finfo(right.dtype).eps
        rank_tolerance = max(precision, other.shape[-1] * torch.finfo(other.dtype).eps)
        is_nonzero = sizes > rank_tolerance * sizes.amax(dim=-1, keepdim=True)
        ctx.save_for_backward(right, images, torch.where(is_nonzero, 1 / sizes, 0.0))
        return sizes.sum(dim=-1) * unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None, None, None]:
        right, images, inverse = ctx.saved_tensors  # (N, L, m, D) twice, (N, L, m)
        left = images * (-grad_output.unsqueeze(-1) * inverse).unsqueeze(-1)
        # In float32 even for float16 vectors, because some weights underflow in float16.
        gradient = left.flatten(1, 2).mT @ right.to(left.dtype).flatten(1, 2)
        return gradient, None, None, None


def _singular_vectors(
    other: Tensor, base: Spectra, classes: Tensor, m: int, unit: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute leading right singular vectors of the differences, and their images.

    Images are X times the vectors, divided by ``unit`` of shape (N, L, 1, 1): left singular
    vectors times singular values. Both have shape (N, L, m, D), or are padded with zeros beyond m.
    """
    num_directions, num_dims = base.leading.shape[-2:]
    _, width = _num_directions(other, m)
    if width >= num_dims:
        differences = base.matrices[classes] - other.unsqueeze(1)
        _, vectors = _eigh(differences)
        right = vectors[..., :m].mT
        return right, (right / unit) @ differences

    # Iterate towards the leading directions of the other covariances. Start from those of the
    # nearest base class. Add their own columns of largest variance, because they may have
    # directions that no base class has.
    num_near = num_directions // 2
    near = base.leading[classes[:, 0], :num_near].mT.to(other.dtype)
    directions = torch.cat([near, _largest_columns(other, num_directions - num_near)], dim=-1)
    # Divided by its largest entry, so that its powers do not overflow.
    largest = _largest_variance(other)
    scaled = other / largest.view(-1, 1, 1)
    for _ in range(_NUM_STEPS):
        directions = scaled @ directions
    directions = _orthonormal(directions)

    kernels = kernels_for("covariances", other)
    halves = (scaled.half(), largest) if kernels and base.halves else None
    dtype = base.leading.dtype
    is_narrow = width < 2 * num_directions
    start = _start(base, classes, other, directions, width)

    def multiply(block: Tensor) -> Tensor:
        if kernels and halves and base.halves:
            return kernels.times_difference(*base.halves, classes, *halves, block)
        return _times_difference(base.matrices, classes, other, block)

    block = _orthonormal(multiply(start), dtype)
    if is_narrow:  # one more multiplication makes up for the missing columns
        block = _orthonormal(multiply(block), dtype)
    images = multiply(block)
    if kernels and halves:
        _, rotation = kernels.eigh(kernels.scaled_gram(images), tolerance=1e-5)
        # A GPU is slow for rows whose length is not a multiple of eight.
        rotation = pad(rotation[..., :m], (0, -m % 8))
    else:
        scaled = images / _largest_entry(images)
        _, rotation = _eigh(scaled.mT @ scaled)
        rotation = rotation[..., :m]
    rotation = rotation.mT
    return rotation.to(dtype) @ block.mT, (rotation / unit) @ images.mT


def _start(base: Spectra, classes: Tensor, other: Tensor, directions: Tensor, width: int) -> Tensor:
    """Return leading directions of both covariances of each pair, shape (N, L, D, width).

    If there are more than ``width``, choose those of largest variance: the larger covariance has
    more of them, and gets more columns.
    """
    (num_base, count, num_dims), num_pairs = base.leading.shape, classes.shape[1]
    novel = num_base + torch.arange(len(other), device=other.device).view(-1, 1, 1)
    # All directions are rows of one table; those of the other covariances are at its end.
    rows = torch.cat([base.leading, directions.mT.to(base.leading.dtype)])
    if width == 2 * count:
        chosen = torch.cat([classes.unsqueeze(-1), novel.expand(-1, num_pairs, -1)], dim=-1)
        rows = rows.flatten(1)
    else:
        variances = (directions * (other @ directions)).sum(dim=-2).unsqueeze(1)
        both = torch.cat([base.values[classes], variances.expand(-1, num_pairs, -1)], dim=-1)
        largest = both.topk(width, dim=-1).indices
        is_base = largest < count
        matrix = torch.where(is_base, classes.unsqueeze(-1), novel)
        chosen = matrix * count + torch.where(is_base, largest, largest - count)
        rows = rows.flatten(0, 1)
    return rows.index_select(0, chosen.flatten()).view(*classes.shape, width, num_dims).mT


def _largest_variance(covariances: Tensor) -> Tensor:
    """Return the largest entry of each covariance, which is on its diagonal; never zero."""
    return _nonzero(covariances.diagonal(dim1=-2, dim2=-1).amax(dim=-1))


def _largest_entry(matrices: Tensor) -> Tensor:
    """Return the largest magnitude in each matrix, shape (..., 1, 1); never zero."""
    return _nonzero(matrices.abs().amax(dim=(-2, -1), keepdim=True))


def _nonzero(sizes: Tensor) -> Tensor:
    return sizes.clamp(min=torch.finfo(sizes.dtype).tiny)


def _largest_columns(matrices: Tensor, count: int) -> Tensor:
    """Return the columns of the largest diagonal entries, divided by them, (..., D, count)."""
    diagonal = matrices.diagonal(dim1=-2, dim2=-1)
    largest = diagonal.topk(count, dim=-1)
    places = largest.indices.unsqueeze(-2).expand(*matrices.shape[:-1], -1)
    return matrices.gather(-1, places) / _nonzero(largest.values.unsqueeze(-2))


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues, by decreasing magnitude, and eigenvectors of symmetric matrices.

    Covariances of few examples have many zero eigenvalues. For them, float32 sometimes does not
    converge or silently returns NaN; float64 is then used instead.

    Raises:
        LinAlgError: If an entry is not finite.
    """
    device, width = matrices.device, matrices.shape[-1]
    kernels = kernels_for("covariances", matrices)
    if kernels and kernels.fits(width, width):
        # Divided by the largest entry, because the kernel squares entries.
        largest = _largest_entry(matrices)
        values, vectors = kernels.eigh(matrices / largest)
        return values * largest.squeeze(-1), vectors
    if matrices.is_cuda and width > _WIDEST_ON_GPU:
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


def _times_difference(base: Tensor, classes: Tensor, other: Tensor, block: Tensor) -> Tensor:
    """Return (base covariance - other covariance) @ block, shape (N, L, D, columns)."""
    # One product for all pairs of a novel class, and one for all pairs of a base class, so that
    # each covariance is read once.
    together = block.transpose(1, 2)
    by_other = (other @ together.flatten(2)).view_as(together).transpose(1, 2)
    result = torch.empty_like(block).flatten(0, 1)
    present, number = classes.unique(return_inverse=True)
    members = number.flatten().argsort(stable=True)
    counts = number.flatten().bincount().tolist()
    columns = block.flatten(0, 1)
    for each, pairs in zip(present.tolist(), members.split(counts), strict=True):
        chosen = columns[pairs].transpose(0, 1)
        by_base = (base[each] @ chosen.flatten(1)).view_as(chosen)
        result[pairs] = by_base.transpose(0, 1)
    return result.view_as(block) - by_other


def _orthonormal(block: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return an orthonormal basis of the span of columns, shape (..., D, directions).

    Columns that depend on others become zero, or an arbitrary vector orthogonal to all others.
    """
    kernels = kernels_for("covariances", block)
    if kernels and kernels.fits(*block.shape[-2:]):
        return kernels.orthonormal(block, dtype or block.dtype)
    # Divided by the largest entry, because squares may overflow or underflow.
    return torch.linalg.qr(block / _nonzero(block.abs().amax(dim=-2, keepdim=True)))[0]


def needs_processor(features: Tensor, m: int) -> bool:
    """Return whether `covariance_distances` of features, (..., D), makes a GPU wait for the CPU."""
    num_dims = features.shape[-1]
    width = min(_num_directions(features, m)[1], num_dims)
    kernels = kernels_for("covariances", features)
    return kernels is None or not kernels.fits(num_dims, width)


def _num_directions(features: Tensor, m: int) -> tuple[int, int]:
    """Return the number of leading directions per covariance, and the columns of a block."""
    num_dims, wanted = features.shape[-1], m + _EXTRA_DIRECTIONS
    is_fast = kernels_for("covariances", features) and m <= _LARGEST_ORDER_ON_GPU
    if is_fast and num_dims > _WIDTH_ON_GPU:
        return max(wanted, _WIDTH_ON_GPU // 2), _WIDTH_ON_GPU
    return min(wanted, num_dims), 2 * min(wanted, num_dims)

"""Kernels of `cpaan.gan.fast.covariances`: products with differences of covariances, eigenvectors.

Shapes: N = novel classes, L = base classes to compare one with, D = feature dimension,
W = columns of a block.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Arguments of Triton functions are pointers and numbers on a GPU, which have no Python types.

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_SWEEPS = 8
_NUMBERS_PER_WARP = 4096  # numbers that fit into its registers


@triton.jit
def _orthonormal_kernel(
    block,
    result,
    num_dims,
    width,
    tolerance,
    DIMS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * num_dims * width
    row, column = tl.arange(0, DIMS), tl.arange(0, WIDTH)
    is_there = (row[:, None] < num_dims) & (column[None, :] < width)
    place = first + row[:, None] * width + column[None, :]
    value = tl.load(block + place, mask=is_there, other=0.0).to(tl.float32)
    # Divided by the largest entry, because squares may overflow or underflow.
    largest = tl.max(tl.abs(value), axis=0)
    value = value / tl.where(largest > 0, largest, 1.0)[None, :]
    before = tl.sum(value * value, axis=0)
    for number in range(0, width):
        current = tl.sum(tl.where(column[None, :] == number, value, 0.0), axis=1)
        products = tl.sum(current[:, None] * value, axis=0)
        square = tl.sum(tl.where(column == number, products, 0.0), axis=0)
        square_before = tl.sum(tl.where(column == number, before, 0.0), axis=0)
        is_new = square > tolerance * square_before
        inverse = tl.where(is_new, 1 / tl.where(is_new, square, 1.0), 0.0)
        without = value - current[:, None] * (products * inverse)[None, :]
        value = tl.where(column[None, :] > number, without, value)
        value = tl.where(column[None, :] == number, value * tl.sqrt(inverse), value)
    tl.store(result + place, value.to(result.dtype.element_ty), mask=is_there)


def orthonormal(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Orthonormalise the columns of a block, shape (..., D, W), by modified Gram-Schmidt.

    The block must fit; see `fits`. Columns that depend on others become zero.
    """
    num_dims, width = block.shape[-2:]
    result = torch.empty(block.shape, dtype=dtype, device=block.device)
    size = _padded_size(num_dims, width)
    _orthonormal_kernel[(block.numel() // (num_dims * width),)](
        block.contiguous(),
        result,
        num_dims,
        width,
        1e-12,
        DIMS=triton.next_power_of_2(num_dims),
        WIDTH=triton.next_power_of_2(width),
        num_warps=min(max(size // _NUMBERS_PER_WARP, 1), 16),
    )
    return result


def fits(num_dims: int, width: int) -> bool:
    """Return whether a block of this size fits into a multiprocessor's registers."""
    return width <= 64 and _padded_size(num_dims, width) <= 16 * _NUMBERS_PER_WARP


def _padded_size(num_dims: int, width: int) -> int:
    return int(triton.next_power_of_2(num_dims) * triton.next_power_of_2(width))


@triton.jit
def _eigh_kernel(matrices, values, vectors, width, most_rounds, tolerance, WIDTH: tl.constexpr):
    number = tl.arange(0, WIDTH)
    half: tl.constexpr = WIDTH // 2
    place = number[:, None] * width + number[None, :]
    is_there = (number[:, None] < width) & (number[None, :] < width)
    first = tl.program_id(0) * width * width
    matrix = tl.load(matrices + first + place, mask=is_there, other=0.0)
    is_diagonal = number[:, None] == number[None, :]
    vector = tl.where(is_diagonal, 1.0, 0.0)
    # Apply Jacobi rotations to all pairs (i, i + half) at once. Then move all but the first by one
    # seat, as in a round-robin tournament, until every pair has been rotated.
    seat = tl.where(number < half, number - 1, number + 1)
    seat = tl.where(number == 0, 0, tl.where(number == 1, half, seat))
    seat = tl.where(number == WIDTH - 1, half - 1, seat)
    facing = (seat + half) % WIDTH
    is_upper = seat < half
    is_pair = number[None, :] == ((number + half) % WIDTH)[:, None]
    seats = tl.zeros((WIDTH, WIDTH), tl.int32) + seat[:, None]
    others = tl.zeros((WIDTH, WIDTH), tl.int32) + facing[:, None]
    whole = tl.sum(tl.sum(matrix * matrix, axis=1), axis=0)
    rest = tl.sum(tl.sum(tl.where(is_diagonal, 0.0, matrix * matrix), axis=1), axis=0)
    num_rounds = 0
    while (num_rounds < most_rounds) & (rest > tolerance * whole):
        for _ in range(8):  # a look after every round would cost more than it saves
            diagonal = tl.sum(tl.where(is_diagonal, matrix, 0.0), axis=0)
            shared = tl.sum(tl.where(is_pair, matrix, 0.0), axis=0)
            here, there = tl.gather(diagonal, seat, 0), tl.gather(diagonal, facing, 0)
            both = tl.gather(shared, seat, 0)
            gap = tl.where(is_upper, there - here, here - there)
            size = tl.abs(gap) + tl.sqrt(gap * gap + 4 * both * both)
            tangent = tl.where(size > 0, 2 * both / tl.where(size > 0, size, 1.0), 0.0)
            tangent = tl.where(gap < 0, -tangent, tangent)
            cosine = 1 / tl.sqrt(1 + tangent * tangent)
            sine = tl.where(is_upper, -tangent, tangent) * cosine
            for _side in tl.static_range(2):
                rotated = cosine[:, None] * tl.gather(matrix, seats, 0)
                rotated += sine[:, None] * tl.gather(matrix, others, 0)
                matrix = tl.trans(rotated)
            rotated = cosine[:, None] * tl.gather(vector, seats, 0)
            vector = rotated + sine[:, None] * tl.gather(vector, others, 0)
        rest = tl.sum(tl.sum(tl.where(is_diagonal, 0.0, matrix * matrix), axis=1), axis=0)
        num_rounds += 8
    # The rank of an eigenvalue is the number of larger ones; ties keep their order.
    size = tl.where(is_diagonal, tl.abs(matrix), 0.0)
    across, down = tl.sum(size, axis=0)[None, :], tl.sum(size, axis=1)[:, None]
    is_before = (across > down) | ((across == down) & (number[None, :] < number[:, None]))
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    diagonal = tl.sum(tl.where(is_diagonal, matrix, 0.0), axis=1)
    first = tl.program_id(0) * WIDTH
    tl.store(values + first + rank, diagonal)
    tl.store(vectors + (first + rank[:, None]) * WIDTH + number[None, :], vector)


def eigh(matrices: Tensor, tolerance: float = 1e-12) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues, by decreasing magnitude, and eigenvectors of small matrices.

    PyTorch's solver waits on the CPU for its status, which is impossible in a CUDA graph.

    Args:
        matrices: Symmetric, shape (..., W, W), W up to 64.
        tolerance: Share of the squared entries that may stay off the diagonal.

    Returns:
        Shapes (..., V) and (..., W, V), where V is the next power of two, padded with zeros.
    """
    *batch, width, _ = matrices.shape
    padded = max(4, triton.next_power_of_2(width))
    values = torch.empty((*batch, padded), dtype=torch.float32, device=matrices.device)
    vectors = torch.empty((*batch, padded, padded), dtype=torch.float32, device=matrices.device)
    _eigh_kernel[(values.numel() // padded,)](
        matrices.contiguous(),
        values,
        vectors,
        width,
        _MOST_SWEEPS * (padded - 1),
        tolerance,
        WIDTH=padded,
        num_warps=1,  # leaves room on a multiprocessor for products of other streams
    )
    return values, vectors.mT[..., :width, :]


@triton.jit
def _gram_kernel(block, result, num_dims, width, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    block += tl.program_id(0).to(tl.int64) * num_dims * width
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    largest = 0.0
    for start in range(0, num_dims, ROWS):
        is_there = (start + row < num_dims)[:, None] & (column[None, :] < width)
        place = (start + row)[:, None] * width + column[None, :]
        value = tl.load(block + place, mask=is_there, other=0.0)
        largest = tl.maximum(largest, tl.max(tl.max(tl.abs(value), axis=1), axis=0))
    scale = 1 / tl.where(largest > 0, largest, 1.0)
    total = tl.zeros((WIDTH, WIDTH), tl.float32)
    for start in range(0, num_dims, ROWS):
        is_there = (start + row < num_dims)[:, None] & (column[None, :] < width)
        place = (start + row)[:, None] * width + column[None, :]
        value = scale * tl.load(block + place, mask=is_there, other=0.0)
        total = tl.dot(tl.trans(value), value, total)
    place = column[:, None] * width + column[None, :]
    is_there = (column[:, None] < width) & (column[None, :] < width)
    tl.store(result + tl.program_id(0) * width * width + place, total, mask=is_there)


def scaled_gram(block: Tensor) -> Tensor:
    """Return blockᵀ @ block over the square of its largest entry, for blocks (..., D, W)."""
    *batch, num_dims, width = block.shape
    result = torch.empty((*batch, width, width), dtype=torch.float32, device=block.device)
    _gram_kernel[(result.numel() // width**2,)](
        block.contiguous(),
        result,
        num_dims,
        width,
        ROWS=64,
        WIDTH=max(16, triton.next_power_of_2(width)),
    )
    return result


@triton.jit
def _times_difference_kernel(
    base,
    base_scales,
    classes,
    other,
    other_scales,
    block,
    result,
    row_stride,
    column_stride,
    num_dims,
    width,
    num_pairs,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Two pairs of a novel class at once, so that its covariance is read half as often.
    novel, number = tl.program_id(1), 2 * tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inner, column = tl.arange(0, INNER), tl.arange(0, WIDTH)
    is_row, is_column = row[:, None] < num_dims, column[None, :] < width
    size = num_dims * num_dims
    one = novel * num_pairs + number
    # If the number of pairs is odd, the last one is computed twice, with the same result.
    two = novel * num_pairs + tl.minimum(number + 1, num_pairs - 1)
    one_class, two_class = tl.load(classes + one), tl.load(classes + two)
    one_base, two_base = base + one_class.to(tl.int64) * size, base + two_class.to(tl.int64) * size
    other += novel.to(tl.int64) * size
    one_block = one.to(tl.int64) * num_dims * width
    two_block = two.to(tl.int64) * num_dims * width
    one_by_base = tl.zeros((ROWS, WIDTH), tl.float32)
    two_by_base = tl.zeros((ROWS, WIDTH), tl.float32)
    one_by_other = tl.zeros((ROWS, WIDTH), tl.float32)
    two_by_other = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, num_dims, INNER):
        place = start + inner
        is_left = is_row & (place[None, :] < num_dims)
        is_right = (place[:, None] < num_dims) & is_column
        left = row[:, None] * num_dims + place[None, :]
        right = place[:, None] * row_stride + column[None, :] * column_stride
        one_columns = tl.load(block + one_block + right, mask=is_right, other=0.0)
        two_columns = tl.load(block + two_block + right, mask=is_right, other=0.0)
        shared = tl.load(other + left, mask=is_left, other=0.0)
        rows = tl.load(one_base + left, mask=is_left, other=0.0)
        one_by_base = tl.dot(rows, one_columns, one_by_base)
        one_by_other = tl.dot(shared, one_columns, one_by_other)
        rows = tl.load(two_base + left, mask=is_left, other=0.0)
        two_by_base = tl.dot(rows, two_columns, two_by_base)
        two_by_other = tl.dot(shared, two_columns, two_by_other)
    scale = tl.load(other_scales + novel)
    one_by_base = tl.load(base_scales + one_class) * one_by_base - scale * one_by_other
    two_by_base = tl.load(base_scales + two_class) * two_by_base - scale * two_by_other
    place = row[:, None] * width + column[None, :]
    tl.store(result + one_block + place, one_by_base, mask=is_row & is_column)
    tl.store(result + two_block + place, two_by_base, mask=is_row & is_column)


def times_difference(
    base: Tensor,
    base_scales: Tensor,
    classes: Tensor,
    other: Tensor,
    other_scales: Tensor,
    block: Tensor,
) -> Tensor:
    """Return (base covariance - other covariance) @ block for pairs that share covariances.

    Factors are float16: eleven bits of precision, as in TF32, in half the bytes.

    Args:
        base: Covariances as returned by `to_halves`, shape (C, D, D).
        base_scales: Scales of ``base``, shape (C,).
        classes: Positions of the first covariances of pairs in ``base``, shape (N, L).
        other: Second covariances, as returned by `to_halves`, shape (N, D, D).
        other_scales: Scales of ``other``, shape (N,).
        block: Orthonormal columns, float16, shape (N, L, D, W); the result is float32. It may
            have the memory layout of (N, L, W, D).
    """
    num_novel, num_pairs, num_dims, width = block.shape
    result = torch.empty(block.shape, dtype=torch.float32, device=block.device)
    rows = 128
    grid = (triton.cdiv(num_dims, rows), num_novel, triton.cdiv(num_pairs, 2))
    _times_difference_kernel[grid](
        base,
        base_scales,
        classes.contiguous(),
        other,
        other_scales,
        block,
        result,
        *block.stride()[2:],
        num_dims,
        width,
        num_pairs,
        ROWS=rows,
        INNER=64,
        WIDTH=max(16, triton.next_power_of_2(width)),
        num_warps=8,
        num_stages=2,
    )
    return result


def to_halves(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Return covariances in float16, divided by their largest entries, and these, (batch,).

    Without the division, float16 would overflow.
    """
    # The largest entry of a covariance is on its diagonal.
    largest = covariances.diagonal(dim1=-2, dim2=-1).amax(dim=-1)
    largest = largest.clamp(min=torch.finfo(covariances.dtype).tiny)
    return (covariances / largest.view(-1, 1, 1)).half(), largest

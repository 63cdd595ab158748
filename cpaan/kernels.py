"""What a GPU does in one pass and PyTorch in several: Triton kernels, and how they are called.

`cpaan.rows` and `cpaan.linalg` call them for tensors on a GPU and have the same functions in plain
PyTorch for all others; those are the definitions. Sums go over blocks of rows in a fixed order:
equal inputs have equal results, bit for bit.

Shapes: R = rows, W = numbers of a row; D = feature dimension; P = pairs of covariances.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Triton's functions are no Python: their arguments are pointers and numbers on a GPU.

import torch
import triton
import triton.language as tl
from torch import Tensor

_ACTIVATIONS = {"none": 0, "leaky": 1, "relu": 2}
_ROWS = 8  # that a program holds at once
_MOST_SWEEPS = 8
_NUMBERS_PER_WARP = 4096  # that it has registers for


@triton.jit
def _add_rows_kernel(
    rows,
    bias,
    by_example,
    by_novel,
    places,
    added,
    scales,
    result,
    num_rows,
    width,
    rows_per_class,
    sign,
    HAS_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_EXAMPLE: tl.constexpr,
    HAS_NOVEL: tl.constexpr,
    HAS_PLACES: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    ACTIVATION: tl.constexpr,
    NEGATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_row = row < num_rows
    is_there = is_row[:, None] & (column[None, :] < width)
    value = tl.zeros((ROWS, WIDTH), tl.float32)
    if HAS_BIAS:
        value += sign * tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    if HAS_EXAMPLE:
        place = (row % rows_per_class)[:, None] * width + column[None, :]
        value += sign * tl.load(by_example + place, mask=is_there, other=0.0).to(tl.float32)
    if HAS_NOVEL:
        number = row // rows_per_class
        if HAS_PLACES:
            number = tl.load(places + row, mask=is_row, other=0).to(tl.int32)
        place = number[:, None] * width + column[None, :]
        value += sign * tl.load(by_novel + place, mask=is_there, other=0.0).to(tl.float32)
    own = row[:, None] * width + column[None, :]
    if HAS_ROWS:
        value += tl.load(rows + own, mask=is_there, other=0.0).to(tl.float32)
    if HAS_ADDED:
        value += sign * tl.load(added + own, mask=is_there, other=0.0).to(tl.float32)
    if HAS_SCALES:
        value *= tl.load(scales + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
    if ACTIVATION == 1:
        value = tl.where(value > 0, value, NEGATIVE * value)
    if ACTIVATION == 2:
        value = tl.where(value < 0, 0.0, value)  # and not the maximum, which would hide NaN
    tl.store(result + own, value.to(result.dtype.element_ty), mask=is_there)


def add_rows(
    rows: Tensor | None,
    shared: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    shape: tuple[int, int],
    dtype: torch.dtype,
    *,
    added: Tensor | None = None,
    scales: Tensor | None = None,
    sign: float = 1.0,
    activation: str = "none",
    slope: float = 0.0,
) -> Tensor:
    """Return activation(scale · (row + sign · (what it shares + added))), shape (R, W).

    Args:
        rows: Shape (R, W); None: zeros.
        shared: Summands as in `cpaan.rows.Shared`.
        shape: Novel classes, and rows of each.
        dtype: Of the result.
        added: Shape (R, W).
        scales: Shape (R,).
        sign: One or minus one.
        activation: "none", "leaky" or "relu".
        slope: Of the leaky ReLU.
    """
    bias, by_example, by_novel, places = shared
    num_novel, rows_per_class = shape
    num_rows = num_novel * rows_per_class
    some = next(each for each in (rows, by_example, by_novel, bias) if each is not None)
    width = some.shape[-1]
    result = torch.empty((num_rows, width), dtype=dtype, device=some.device)

    def given(tensor: Tensor | None) -> Tensor:
        return result if tensor is None else tensor.contiguous()

    block = _ROWS if width > 64 else 8 * _ROWS
    _add_rows_kernel[(triton.cdiv(num_rows, block),)](
        given(rows),
        given(bias),
        given(by_example),
        given(by_novel),
        given(places),
        given(added),
        given(scales),
        result,
        num_rows,
        width,
        rows_per_class,
        sign,
        HAS_ROWS=rows is not None,
        HAS_BIAS=bias is not None,
        HAS_EXAMPLE=by_example is not None,
        HAS_NOVEL=by_novel is not None,
        HAS_PLACES=places is not None,
        HAS_ADDED=added is not None,
        HAS_SCALES=scales is not None,
        ACTIVATION=_ACTIVATIONS[activation],
        NEGATIVE=slope,
        ROWS=block,
        WIDTH=triton.next_power_of_2(width),
        num_warps=8,
    )
    return result


@triton.jit
def _deactivate_kernel(
    gradient,
    outputs,
    result,
    sums,
    width,
    rows_per_group,
    rows_per_program,
    ACTIVATION: tl.constexpr,
    NEGATIVE: tl.constexpr,
    HAS_SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    group, part = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, WIDTH)
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    first = part * rows_per_program
    last = tl.minimum(first + rows_per_program, rows_per_group)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        is_there = (row < last)[:, None] & (column[None, :] < width)
        place = (group * rows_per_group + row)[:, None] * width + column[None, :]
        value = tl.load(gradient + place, mask=is_there, other=0.0).to(tl.float32)
        if ACTIVATION != 0:
            output = tl.load(outputs + place, mask=is_there, other=0.0).to(tl.float32)
            if ACTIVATION == 1:
                value = tl.where(output > 0, value, NEGATIVE * value)
            else:
                value = tl.where(output > 0, value, 0.0)
            tl.store(result + place, value.to(result.dtype.element_ty), mask=is_there)
        total += value
    if HAS_SUMS:
        place = (group * tl.num_programs(1) + part) * width + column
        tl.store(sums + place, tl.sum(total, axis=0), mask=column < width)


def deactivate(
    gradient: Tensor,
    outputs: Tensor,
    activation: str,
    num_groups: int,
    *,
    slope: float,
    with_sums: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient before an activation, and its sums over groups of rows.

    Args:
        gradient: With respect to the outputs, shape (R, W).
        outputs: Of the activation, of the same shape.
        activation: "none", "leaky" or "relu".
        num_groups: Into how many groups of the same size the rows fall, one after the other.
        slope: Of the leaky ReLU.
        with_sums: Whether the sums are wanted.

    Returns:
        Shapes (R, W) and, in float32, (groups, W).
    """
    num_rows, width = gradient.shape
    gradient = gradient.contiguous()
    if activation == "none" and not with_sums:
        return gradient, None
    result = gradient if activation == "none" else torch.empty_like(outputs)
    rows_per_group = num_rows // num_groups
    rows_per_program = 32
    num_parts = triton.cdiv(rows_per_group, rows_per_program)
    sums = torch.empty((num_groups, num_parts, width), dtype=torch.float32, device=gradient.device)
    _deactivate_kernel[(num_groups, num_parts)](
        gradient,
        outputs,
        result,
        sums,
        width,
        rows_per_group,
        rows_per_program,
        ACTIVATION=_ACTIVATIONS[activation],
        NEGATIVE=slope,
        HAS_SUMS=with_sums,
        ROWS=8 if with_sums else 16,
        WIDTH=triton.next_power_of_2(width),
        # Two warps hold a row: a thread has the same columns of all rows, and adds them by itself.
        num_warps=2 if with_sums else 8,
    )
    return result, _sum_parts(sums) if with_sums else None


@triton.jit
def _sum_parts_kernel(parts, result, num_parts, width, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, PARTS)
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    first = tl.program_id(0) * num_parts * width
    for start in range(0, num_parts, PARTS):
        is_there = (start + part < num_parts)[:, None] & (column[None, :] < width)
        place = first + (start + part)[:, None] * width + column[None, :]
        total += tl.load(parts + place, mask=is_there, other=0.0)
    place = tl.program_id(0) * width + column
    tl.store(result + place, tl.sum(total, axis=0), mask=column < width)


def _sum_parts(parts: Tensor) -> Tensor:
    """Return sums over the second dimension, shape (groups, W)."""
    num_groups, num_parts, width = parts.shape
    result = torch.empty((num_groups, width), dtype=parts.dtype, device=parts.device)
    columns = 32
    _sum_parts_kernel[(num_groups, triton.cdiv(width, columns))](
        parts, result, num_parts, width, PARTS=128 if num_parts > 32 else 32, COLUMNS=columns
    )
    return result


@triton.jit
def _log_likelihood_kernel(
    logits,
    biases,
    targets,
    weights,
    values,
    totals,
    num_rows,
    width,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_row = row < num_rows
    is_there = is_row[:, None] & (column[None, :] < width)
    place = row[:, None] * width + column[None, :]
    bias = tl.load(biases + column, mask=column < width, other=float("-inf"))
    value = tl.load(logits + place, mask=is_there, other=0.0) + bias[None, :]
    largest = tl.max(value, axis=1)
    total = largest + tl.log(tl.sum(tl.exp(value - largest[:, None]), axis=1))
    target = tl.load(targets + row, mask=is_row, other=0).to(tl.int32)
    own = tl.sum(tl.where(column[None, :] == target[:, None], value, 0.0), axis=1)
    weight = tl.load(weights + row, mask=is_row, other=0.0)
    # Beyond the last row, the first class is read, and may be one that cannot be the answer.
    own = tl.where(is_row, own, total)
    tl.store(values + tl.program_id(0), tl.sum(weight * (own - total), axis=0))
    tl.store(totals + row, total, mask=is_row)


@triton.jit
def _log_likelihood_gradient_kernel(
    logits,
    biases,
    targets,
    weights,
    totals,
    factor,
    result,
    num_rows,
    width,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    is_row = row < num_rows
    is_there = is_row[:, None] & (column[None, :] < width)
    place = row[:, None] * width + column[None, :]
    bias = tl.load(biases + column, mask=column < width, other=float("-inf"))
    value = tl.load(logits + place, mask=is_there, other=0.0) + bias[None, :]
    total = tl.load(totals + row, mask=is_row, other=0.0)
    target = tl.load(targets + row, mask=is_row, other=0).to(tl.int32)
    weight = tl.load(weights + row, mask=is_row, other=0.0) * tl.load(factor)
    is_target = tl.where(column[None, :] == target[:, None], 1.0, 0.0)
    gradient = weight[:, None] * (is_target - tl.exp(value - total[:, None]))
    tl.store(result + place, gradient.to(result.dtype.element_ty), mask=is_there)


def log_likelihoods(
    logits: Tensor, biases: Tensor, targets: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """See `cpaan.rows.log_likelihood`; return summands of it, and each row's log of all classes."""
    num_rows, width = logits.shape
    num_programs = triton.cdiv(num_rows, _ROWS)
    values = torch.empty(num_programs, dtype=logits.dtype, device=logits.device)
    totals = torch.empty(num_rows, dtype=logits.dtype, device=logits.device)
    _log_likelihood_kernel[(num_programs,)](
        logits,
        biases,
        targets,
        weights,
        values,
        totals,
        num_rows,
        width,
        ROWS=_ROWS,
        WIDTH=triton.next_power_of_2(width),
    )
    return values, totals


def log_likelihood_gradient(
    logits: Tensor,
    biases: Tensor,
    targets: Tensor,
    weights: Tensor,
    totals: Tensor,
    factor: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Return ``factor`` times the gradient of the sum of shares with respect to logits."""
    num_rows, width = logits.shape
    result = torch.empty((num_rows, width), dtype=dtype, device=logits.device)
    _log_likelihood_gradient_kernel[(triton.cdiv(num_rows, _ROWS),)](
        logits,
        biases,
        targets,
        weights,
        totals,
        factor,
        result,
        num_rows,
        width,
        ROWS=_ROWS,
        WIDTH=triton.next_power_of_2(width),
    )
    return result


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
    first = tl.program_id(0) * num_dims * width
    row, column = tl.arange(0, DIMS), tl.arange(0, WIDTH)
    is_there = (row[:, None] < num_dims) & (column[None, :] < width)
    place = first + row[:, None] * width + column[None, :]
    value = tl.load(block + place, mask=is_there, other=0.0).to(tl.float32)
    # By the largest entry first: squares of large or small entries leave the range of numbers.
    largest = tl.max(tl.abs(value), axis=0)
    value = value / tl.where(largest > 0, largest, 1.0)[None, :]
    before = tl.sum(value * value, axis=0)
    for number in range(0, width):
        own = tl.sum(tl.where(column[None, :] == number, value, 0.0), axis=1)
        products = tl.sum(own[:, None] * value, axis=0)
        square = tl.sum(tl.where(column == number, products, 0.0), axis=0)
        square_before = tl.sum(tl.where(column == number, before, 0.0), axis=0)
        is_new = square > tolerance * square_before
        inverse = tl.where(is_new, 1 / tl.where(is_new, square, 1.0), 0.0)
        without = value - own[:, None] * (products * inverse)[None, :]
        value = tl.where(column[None, :] > number, without, value)
        value = tl.where(column[None, :] == number, value * tl.sqrt(inverse), value)
    tl.store(result + place, value.to(result.dtype.element_ty), mask=is_there)


def orthonormal(block: Tensor, dtype: torch.dtype) -> Tensor:
    """Return orthonormal columns that span those given; what depends on others becomes zero.

    Gram and Schmidt's way, each column taken off all that follow.

    Args:
        block: Shape (..., D, W); see `fits`.
        dtype: Of the result.
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
    """Return whether a multiprocessor's registers hold a block of so many columns."""
    return width <= 64 and _padded_size(num_dims, width) <= 16 * _NUMBERS_PER_WARP


def _padded_size(num_dims: int, width: int) -> int:
    return int(triton.next_power_of_2(num_dims) * triton.next_power_of_2(width))


@triton.jit
def _eigh_kernel(matrices, values, vectors, width, most_sweeps, tolerance, WIDTH: tl.constexpr):
    number = tl.arange(0, WIDTH)
    half: tl.constexpr = WIDTH // 2
    place = number[:, None] * width + number[None, :]
    is_there = (number[:, None] < width) & (number[None, :] < width)
    first = tl.program_id(0) * width * width
    matrix = tl.load(matrices + first + place, mask=is_there, other=0.0)
    is_diagonal = number[:, None] == number[None, :]
    vector = tl.where(is_diagonal, 1.0, 0.0)
    # Jacobi's rotations of all pairs (i, i + half) at once; then all but the first move on by one
    # seat, as in a tournament, until each has met each.
    seat = tl.where(number < half, number - 1, number + 1)
    seat = tl.where(number == 0, 0, tl.where(number == 1, half, seat))
    seat = tl.where(number == WIDTH - 1, half - 1, seat)
    facing = (seat + half) % WIDTH
    is_upper = seat < half
    is_pair = number[None, :] == ((number + half) % WIDTH)[:, None]
    own = tl.zeros((WIDTH, WIDTH), tl.int32) + seat[:, None]
    other = tl.zeros((WIDTH, WIDTH), tl.int32) + facing[:, None]
    whole = tl.sum(tl.sum(matrix * matrix, axis=1), axis=0)
    rest = tl.sum(tl.sum(tl.where(is_diagonal, 0.0, matrix * matrix), axis=1), axis=0)
    sweep = 0
    while (sweep < most_sweeps) & (rest > tolerance * whole):
        for _ in range(WIDTH - 1):
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
                rotated = cosine[:, None] * tl.gather(matrix, own, 0)
                rotated += sine[:, None] * tl.gather(matrix, other, 0)
                matrix = tl.trans(rotated)
            rotated = cosine[:, None] * tl.gather(vector, own, 0)
            vector = rotated + sine[:, None] * tl.gather(vector, other, 0)
        rest = tl.sum(tl.sum(tl.where(is_diagonal, 0.0, matrix * matrix), axis=1), axis=0)
        sweep += 1
    # Each goes to the place that the number of larger ones says; of equal ones, the first first.
    size = tl.where(is_diagonal, tl.abs(matrix), 0.0)
    across, down = tl.sum(size, axis=0)[None, :], tl.sum(size, axis=1)[:, None]
    is_before = (across > down) | ((across == down) & (number[None, :] < number[:, None]))
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    diagonal = tl.sum(tl.where(is_diagonal, matrix, 0.0), axis=1)
    first = tl.program_id(0) * WIDTH
    tl.store(values + first + rank, diagonal)
    tl.store(vectors + (first + rank[:, None]) * WIDTH + number[None, :], vector)


def eigh(matrices: Tensor, tolerance: float = 1e-12) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, the largest in size first, and eigenvectors of small matrices.

    A GPU's own solver makes the processor wait for its verdict, which a recorded step cannot.

    Args:
        matrices: Symmetric, shape (..., W, W), W up to 64.
        tolerance: What may be left beside the diagonal, as a share of all squares.

    Returns:
        Shapes (..., V) and (..., W, V), where V is the next power of two: zeros fill up.
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
        _MOST_SWEEPS,
        tolerance,
        WIDTH=padded,
        num_warps=4,
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
    num_dims,
    width,
    num_pairs,
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    WIDTH: tl.constexpr,
):
    # Two pairs of a novel class at once: its own covariance is then read half as often.
    novel, number = tl.program_id(1), 2 * tl.program_id(2)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inner, column = tl.arange(0, INNER), tl.arange(0, WIDTH)
    is_row, is_column = row[:, None] < num_dims, column[None, :] < width
    size = num_dims * num_dims
    one = novel * num_pairs + number
    # The last pair of an odd number is computed twice, to the same end.
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
        right = place[:, None] * width + column[None, :]
        one_columns = tl.load(block + one_block + right, mask=is_right, other=0.0)
        two_columns = tl.load(block + two_block + right, mask=is_right, other=0.0)
        shared = tl.load(other + left, mask=is_left, other=0.0)
        own = tl.load(one_base + left, mask=is_left, other=0.0)
        one_by_base = tl.dot(own, one_columns, one_by_base)
        one_by_other = tl.dot(shared, one_columns, one_by_other)
        own = tl.load(two_base + left, mask=is_left, other=0.0)
        two_by_base = tl.dot(own, two_columns, two_by_base)
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

    Products are of half-precision numbers: eleven bits each, as in TF32, at half the bytes.

    Args:
        base: Covariances as `to_halves` has them, shape (C, D, D).
        base_scales: Shape (C,).
        classes: The first covariance of each pair, shape (N, L).
        other: The second one, likewise, shape (N, D, D).
        other_scales: Shape (N,).
        block: Orthonormal columns, float16, shape (N, L, D, W).

    Returns:
        Float32, in the shape of the block.
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
        block.contiguous(),
        result,
        num_dims,
        width,
        num_pairs,
        ROWS=rows,
        INNER=64,
        WIDTH=max(16, triton.next_power_of_2(width)),
        num_warps=4,
        num_stages=4,
    )
    return result


def to_halves(covariances: Tensor) -> tuple[Tensor, Tensor]:
    """Return covariances in float16, each over its largest entry, and those, shape (batch,)."""
    # No covariance of two is larger than both variances.
    largest = covariances.diagonal(dim1=-2, dim2=-1).amax(dim=-1)
    largest = largest.clamp(min=torch.finfo(covariances.dtype).tiny)
    return (covariances / largest.view(-1, 1, 1)).half(), largest

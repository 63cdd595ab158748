"""Kernels of `pair_ops`: sums of rows, activations and likelihoods, and their gradients.

Shapes: R = rows, W = numbers per row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Arguments of Triton functions are pointers and numbers on a GPU, which have no Python types.

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cpaan.gan.fast.kernels import products

_ROWS = 8  # rows per program


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
    squares,
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
    HAS_SQUARES: tl.constexpr,
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
    if HAS_SQUARES:
        total = tl.sum(tl.where(is_there, value * value, 0.0), axis=1)
        tl.store(squares + tl.program_id(0), tl.sum(total, axis=0))
    if ACTIVATION == 1:
        value = tl.where(value > 0, value, NEGATIVE * value)
    if ACTIVATION == 2:
        value = tl.where(value < 0, 0.0, value)  # a maximum would hide NaN
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
    squares: Tensor | None = None,
    activation: str = "none",
    slope: float = 0.0,
) -> Tensor:
    """Compute activation(scale · (row + sign · (shared + added))), shape (R, W).

    ``rows`` and ``added`` have shape (R, W), or are None for zeros; ``scales`` have shape (R,).
    ``shared`` is a `pair_ops.Shared`; ``shape`` is the number of novel classes and of rows of each.
    ``squares``, from `new_sums`, are set to sums of squared results before the activation.
    """
    bias, by_example, by_novel, places = shared
    num_novel, rows_per_class = shape
    num_rows = num_novel * rows_per_class
    some = next(each for each in (rows, by_example, by_novel, bias) if each is not None)
    width = some.shape[-1]
    result = torch.empty((num_rows, width), dtype=dtype, device=some.device)

    def given(tensor: Tensor | None) -> Tensor:
        return result if tensor is None else tensor.contiguous()

    block = _rows_per_program(width)
    _add_rows_kernel[(triton.cdiv(num_rows, block),)](
        given(rows),
        given(bias),
        given(by_example),
        given(by_novel),
        given(places),
        given(added),
        given(scales),
        result,
        given(squares),
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
        HAS_SQUARES=squares is not None,
        ACTIVATION=products.ACTIVATIONS[activation],
        NEGATIVE=slope,
        ROWS=block,
        WIDTH=triton.next_power_of_2(width),
        num_warps=8,
    )
    return result


def new_sums(num_rows: int, width: int, device: torch.device) -> Tensor:
    """Return a tensor for the partial sums of `add_rows`."""
    return torch.empty(triton.cdiv(num_rows, _rows_per_program(width)), device=device)


def _rows_per_program(width: int) -> int:
    return _ROWS if width > 64 else 8 * _ROWS


@triton.jit
def _deactivate_kernel(
    gradients,
    outputs,
    result,
    sums,
    width,
    rows_per_group,
    rows_per_program,
    ACTIVATION: tl.constexpr,
    NEGATIVE: tl.constexpr,
    HAS_RESULT: tl.constexpr,
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
        value = tl.zeros((ROWS, WIDTH), tl.float32)
        for index in tl.static_range(len(gradients)):
            value += tl.load(gradients[index] + place, mask=is_there, other=0.0).to(tl.float32)
        if ACTIVATION != 0:
            output = tl.load(outputs + place, mask=is_there, other=0.0).to(tl.float32)
            if ACTIVATION == 1:
                value = tl.where(output > 0, value, NEGATIVE * value)
            else:
                value = tl.where(output > 0, value, 0.0)
        if HAS_RESULT:
            tl.store(result + place, value.to(result.dtype.element_ty), mask=is_there)
        total += value
    if HAS_SUMS:
        place = (group * tl.num_programs(1) + part) * width + column
        tl.store(sums + place, tl.sum(total, axis=0), mask=column < width)


def deactivate(
    gradients: Sequence[Tensor], outputs: Tensor, activation: str, *, slope: float, with_sums: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradient before an activation, (R, W), and its float32 sums over rows, (W,).

    The sum of ``gradients`` is with respect to ``outputs``; all have shape (R, W).
    """
    gradients = [each.contiguous() for each in gradients]
    result = gradients[0]
    if activation == "none" and len(gradients) == 1:
        return result, sum_groups(result, 1)[0] if with_sums else None
    result = torch.empty_like(outputs)
    sums = _deactivate(gradients, outputs, result, activation, 1, slope, with_sums)
    return result, products.sum_parts(sums)[0] if with_sums else None


def sum_groups(rows: Tensor, num_groups: int) -> Tensor:
    """Return float32 sums of R / num_groups consecutive rows of (R, W), shape (groups, W)."""
    rows = rows.contiguous()
    return products.sum_parts(_deactivate([rows], rows, rows, "none", num_groups, 0.0, True))


def _deactivate(
    gradients: Sequence[Tensor],
    outputs: Tensor,
    result: Tensor,
    activation: str,
    num_groups: int,
    slope: float,
    with_sums: bool,
) -> Tensor:
    num_rows, width = outputs.shape
    rows_per_group = num_rows // num_groups
    rows_per_program = 32
    num_parts = triton.cdiv(rows_per_group, rows_per_program)
    sums = torch.empty((num_groups, num_parts, width), dtype=torch.float32, device=outputs.device)
    _deactivate_kernel[(num_groups, num_parts)](
        tuple(gradients),
        outputs,
        result,
        sums,
        width,
        rows_per_group,
        rows_per_program,
        ACTIVATION=products.ACTIVATIONS[activation],
        NEGATIVE=slope,
        HAS_RESULT=result is not gradients[0],
        HAS_SUMS=with_sums,
        ROWS=8 if with_sums else 16,
        WIDTH=triton.next_power_of_2(width),
        # Two warps hold a row, so a thread has the same columns of all rows and sums them alone.
        num_warps=2 if with_sums else 8,
    )
    return sums


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
    # Rows beyond the last read the first class, whose bias may be minus infinity.
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
    """Compute partial sums of `pair_ops.log_likelihood`, and the log-sum-exp of each row."""
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
    """Compute ``factor`` times the gradient of the log-likelihood with respect to logits."""
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

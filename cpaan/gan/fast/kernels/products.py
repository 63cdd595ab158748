"""Products of `perceptron`, with what surrounds them in the same pass.

Shapes: R = rows, W = numbers per row.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Arguments of Triton functions are pointers and numbers on a GPU, which have no Python types.

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

ACTIVATIONS = {"none": 0, "leaky": 1, "relu": 2}


@triton.jit
def _multiply_kernel(
    inputs,
    weight,
    bias,
    by_example,
    by_novel,
    places,
    added,
    outputs,
    result,
    sums,
    num_rows,
    width,
    depth,
    rows_per_class,
    IS_TRANSPOSED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_EXAMPLE: tl.constexpr,
    HAS_NOVEL: tl.constexpr,
    HAS_PLACES: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
    HAS_SUMS: tl.constexpr,
    NEGATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    across = tl.cdiv(width, COLUMNS)
    part = tl.program_id(0) // across
    first_row, first_column = part * ROWS, tl.program_id(0) % across * COLUMNS
    value = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        left = inputs.load([first_row, start])
        if IS_TRANSPOSED:
            right = weight.load([first_column, start]).T
        else:
            right = weight.load([start, first_column])
        value = tl.dot(left, right, value)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    is_row, is_column = row < num_rows, column < width
    is_there = is_row[:, None] & is_column[None, :]
    if HAS_BIAS:
        value += tl.load(bias + column, mask=is_column, other=0.0)[None, :]
    if HAS_EXAMPLE:
        place = (row % rows_per_class)[:, None] * width + column[None, :]
        value += tl.load(by_example + place, mask=is_there, other=0.0).to(tl.float32)
    if HAS_NOVEL:
        number = row // rows_per_class
        if HAS_PLACES:
            number = tl.load(places + row, mask=is_row, other=0).to(tl.int32)
        place = number[:, None] * width + column[None, :]
        value += tl.load(by_novel + place, mask=is_there, other=0.0).to(tl.float32)
    if HAS_ADDED:
        value += added.load([first_row, first_column]).to(tl.float32)
    if ACTIVATION != 0:
        sign = value
        if IS_BACKWARD:
            sign = outputs.load([first_row, first_column]).to(tl.float32)
        if ACTIVATION == 1:
            value = tl.where(sign > 0, value, NEGATIVE * value)
        elif IS_BACKWARD:
            value = tl.where(sign > 0, value, 0.0)
        else:
            value = tl.where(value < 0, 0.0, value)  # a maximum would hide NaN
    if HAS_SUMS:
        tl.store(sums + part * width + column, tl.sum(value, axis=0), mask=is_column)
    result.store([first_row, first_column], value.to(result.dtype))


def is_fused(*matrices: Tensor) -> bool:
    """Return whether `multiply` takes these matrices: two-byte numbers in rows of 16 bytes."""
    return all(
        each.element_size() == 2
        and each.stride(1) == 1
        and each.stride(0) % 8 == each.data_ptr() % 16 == 0
        for each in matrices
    )


def multiply(
    inputs: Tensor,
    weight: Tensor,
    shared: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = (None,) * 4,
    rows_per_class: int = 1,
    *,
    is_transposed: bool = False,
    added: Tensor | None = None,
    activation: str = "none",
    slope: float = 0.0,
    outputs: Tensor | None = None,
    with_sums: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute activation(inputs @ weight + shared + added), shape (R, W), in one pass.

    ``weight`` has shape (any, W), or (W, any) if it is transposed. With the ``outputs`` of an
    activation, (R, W), computes the gradient before it from that after it, ``inputs @ weight``, and
    its float32 sums over rows, (W,), instead. The matrices must be fused; see `is_fused`.
    """
    num_rows, depth = inputs.shape
    width = weight.shape[0] if is_transposed else weight.shape[1]
    result = torch.empty((num_rows, width), dtype=inputs.dtype, device=inputs.device)
    rows, columns, inner = 128, 128, 64
    num_parts = triton.cdiv(num_rows, rows)
    sums = torch.empty((1, num_parts, width), dtype=torch.float32, device=inputs.device)

    def given(tensor: Tensor | None) -> Tensor:
        return sums if tensor is None else tensor.contiguous()

    def blocks(tensor: Tensor | None, shape: list[int]) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(result if tensor is None else tensor, shape)

    bias, by_example, by_novel, places = shared
    _multiply_kernel[(num_parts * triton.cdiv(width, columns),)](
        blocks(inputs, [rows, inner]),
        blocks(weight, [columns, inner] if is_transposed else [inner, columns]),
        given(bias),
        given(by_example),
        given(by_novel),
        given(places),
        blocks(added, [rows, columns]),
        blocks(outputs, [rows, columns]),
        blocks(result, [rows, columns]),
        sums,
        num_rows,
        width,
        depth,
        rows_per_class,
        IS_TRANSPOSED=is_transposed,
        HAS_BIAS=bias is not None,
        HAS_EXAMPLE=by_example is not None,
        HAS_NOVEL=by_novel is not None,
        HAS_PLACES=places is not None,
        HAS_ADDED=added is not None,
        ACTIVATION=ACTIVATIONS[activation],
        IS_BACKWARD=outputs is not None,
        HAS_SUMS=with_sums,
        NEGATIVE=slope,
        ROWS=rows,
        COLUMNS=columns,
        DEPTH=inner,
        num_warps=4,
        num_stages=3,
    )
    return result, sum_parts(sums)[0] if with_sums else None


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


def sum_parts(parts: Tensor) -> Tensor:
    """Return sums over the second dimension, shape (groups, W)."""
    num_groups, num_parts, width = parts.shape
    result = torch.empty((num_groups, width), dtype=parts.dtype, device=parts.device)
    columns = 32
    _sum_parts_kernel[(num_groups, triton.cdiv(width, columns))](
        parts, result, num_parts, width, PARTS=128 if num_parts > 32 else 32, COLUMNS=columns
    )
    return result

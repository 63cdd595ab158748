"""Kernel of `cpaan.gan.fast.weights`: a step of Adam for many weights at once."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Arguments of Triton functions are pointers and numbers on a GPU, which have no Python types.

import math
from collections.abc import Mapping, Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_SIZE = 1024  # weights per program


@triton.jit
def _update_kernel(
    weights,
    gradients,
    means,
    squares,
    copies,
    sizes,
    num_steps,
    rate,
    log1,
    log2,
    epsilon,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    SIZE: tl.constexpr,
):
    # In float64, because the powers of betas are close to one at first.
    count = tl.load(num_steps).to(tl.float64)
    correction1 = (1 - tl.exp(count * log1)).to(tl.float32)
    correction2 = (1 - tl.exp(count * log2)).to(tl.float32)
    step_size = tl.load(rate) / correction1
    number = tl.program_id(0)
    for index in tl.static_range(len(weights)):
        num_programs = tl.cdiv(sizes[index], SIZE)
        if (number >= 0) & (number < num_programs):
            place = number * SIZE + tl.arange(0, SIZE)
            is_there = place < sizes[index]
            gradient = tl.load(gradients[index] + place, mask=is_there, other=0.0)
            mean = tl.load(means[index] + place, mask=is_there, other=0.0)
            square = tl.load(squares[index] + place, mask=is_there, other=0.0)
            weight = tl.load(weights[index] + place, mask=is_there, other=0.0)
            mean += (1 - BETA1) * (gradient - mean)
            square = BETA2 * square + (1 - BETA2) * gradient * gradient
            weight -= step_size * mean / (tl.sqrt(square / correction2) + epsilon)
            tl.store(means[index] + place, mean, mask=is_there)
            tl.store(squares[index] + place, square, mask=is_there)
            tl.store(weights[index] + place, weight, mask=is_there)
            if copies[index].dtype.element_ty != tl.float32:
                copy = weight.to(copies[index].dtype.element_ty)
                tl.store(copies[index] + place, copy, mask=is_there)
        number -= num_programs


def update(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    copies: Sequence[Tensor],
    num_steps: Tensor,
    options: Mapping[str, Any],
) -> None:
    """Update float32 weights and Adam's moments, and set ``copies`` of narrower types to them.

    ``num_steps`` includes this step; the options are those of `torch.optim.Adam`.
    """
    sizes = [each.numel() for each in weights]
    _update_kernel[(sum(triton.cdiv(size, _SIZE) for size in sizes),)](
        tuple(weights),
        tuple(each.contiguous() for each in gradients),
        tuple(means),
        tuple(squares),
        tuple(copies),
        tuple(sizes),
        num_steps,
        options["lr"],
        *(math.log(beta) if beta else -math.inf for beta in options["betas"]),
        options["eps"],
        BETA1=options["betas"][0],
        BETA2=options["betas"][1],
        SIZE=_SIZE,
    )

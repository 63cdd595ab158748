"""Kernels that draw episodes: similarity of classes, and copies of many tensors at once.

A step draws the next episode on the side, in many short kernels, which wait for the long ones
beside them. So these kernels do the work of a hundred. Shapes: N = novel classes, C = base classes,
D = feature dimension.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# Arguments of Triton functions are pointers and numbers on a GPU, which have no Python types.

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_PAIRS = 2**14  # of padded classes, which fit into the registers of one program


@triton.jit
def _distances_kernel(novel, base, result, num_base, num_dims, BASE: tl.constexpr):
    number = tl.program_id(1) * BASE + tl.arange(0, BASE)
    total = tl.zeros((BASE, 64), tl.float64)
    for start in range(0, num_dims, 64):
        dim = start + tl.arange(0, 64)
        prototype = tl.load(
            novel + tl.program_id(0) * num_dims + dim, mask=dim < num_dims, other=0.0
        )
        is_there = (number < num_base)[:, None] & (dim < num_dims)[None, :]
        place = number[:, None] * num_dims + dim[None, :]
        other = tl.load(base + place, mask=is_there, other=0.0).to(tl.float64)
        gap = tl.where(is_there, other - prototype.to(tl.float64)[None, :], 0.0)
        total += gap * gap
    place = tl.program_id(0) * num_base + number
    tl.store(result + place, tl.sum(total, axis=1), mask=number < num_base)


@triton.jit
def _temperature_kernel(
    distances,
    lows,
    perplexities,
    scores,
    perplexity,
    step_before,
    step,
    num_novel,
    num_base,
    COUNT: tl.constexpr,
    IS_FIRST: tl.constexpr,
    IS_LAST: tl.constexpr,
    NOVEL: tl.constexpr,
    BASE: tl.constexpr,
):
    novel, number = tl.arange(0, NOVEL), tl.arange(0, BASE)
    is_novel = novel < num_novel
    is_there = is_novel[:, None] & (number < num_base)[None, :]
    place = novel[:, None] * num_base + number[None, :]
    distance = tl.load(distances + place, mask=is_there, other=float("inf"))
    nearest = tl.where(is_novel, tl.min(distance, axis=1), 0.0)
    # Only differences to the nearest matter. They are exact enough in float32, which is fast.
    distance = tl.where(is_there, distance - nearest[:, None], 0.0).to(tl.float32)
    scale = tl.sum(tl.sum(distance, axis=1), axis=0) / (num_novel * num_base)
    distance *= 1 / tl.where(scale > 0, scale, 1.0)
    low = tl.load(lows)
    if not IS_FIRST:
        # Perplexity grows with temperature, so continue from the last one that is too low.
        tried = tl.arange(0, 64)
        before = tl.load(perplexities - COUNT + tried, mask=tried < COUNT, other=float("inf"))
        num_low = tl.sum((before < perplexity).to(tl.int32), axis=0)
        low += step_before * tl.maximum(num_low - 1, 0)
    if not IS_LAST:
        tl.store(lows + 1, low)
        low += step * tl.program_id(0)
    inverse = tl.exp(-low).to(tl.float32)
    weight = tl.where(is_there, tl.exp(-distance * inverse), 0.0)
    total = tl.where(is_novel, tl.sum(weight, axis=1), 1.0)
    if IS_LAST:
        score = weight / total[:, None]
        tl.store(scores + place, score.to(scores.dtype.element_ty), mask=is_there)
    else:
        entropy = tl.log(total) + inverse * tl.sum(weight * distance, axis=1) / total
        mean = tl.sum(tl.where(is_novel, tl.exp(entropy), 0.0), axis=0) / num_novel
        tl.store(perplexities + tl.program_id(0), mean)


def soft_similarity(
    novel: Tensor, base: Tensor, perplexity: float, count: int, num_passes: int
) -> Tensor | None:
    """Compute `cpaan.protocol.neighbours.soft_similarity`; None for too many classes.

    Its search tests ``count`` temperatures at once, in every one of ``num_passes``.
    """
    num_novel, num_base = len(novel), len(base)
    padded = triton.next_power_of_2(num_novel), triton.next_power_of_2(num_base)
    if padded[0] * padded[1] > _MOST_PAIRS:
        return None
    numbers = torch.empty(num_novel, num_base, dtype=torch.float64, device=base.device)
    block = 32
    _distances_kernel[(num_novel, triton.cdiv(num_base, block))](
        novel.contiguous(), base.contiguous(), numbers, num_base, base.shape[1], BASE=block
    )
    # Rows of a pass have its lowest temperature and all perplexities; every pass writes the next.
    lows = torch.full((num_passes + 1,), -15.0, dtype=torch.float64, device=base.device)
    perplexities = torch.empty(num_passes + 1, count, device=base.device)
    scores = torch.empty(num_novel, num_base, dtype=novel.dtype, device=base.device)
    step = 30.0
    for number in range(num_passes + 1):
        is_last = number == num_passes
        before, step = step, step / (count - 1)
        _temperature_kernel[(1 if is_last else count,)](
            numbers,
            lows[number:],
            perplexities[number:],
            scores,
            perplexity,
            before,
            step,
            num_novel,
            num_base,
            COUNT=count,
            IS_FIRST=number == 0,
            IS_LAST=is_last,
            NOVEL=padded[0],
            BASE=padded[1],
            num_warps=16,
        )
    return scores


@triton.jit
def _copy_kernel(targets, sources, sizes, SIZE: tl.constexpr):
    number = tl.program_id(0)
    for index in tl.static_range(len(targets)):
        num_programs = tl.cdiv(sizes[index], SIZE)
        if (number >= 0) & (number < num_programs):
            place = number * SIZE + tl.arange(0, SIZE)
            is_there = place < sizes[index]
            value = tl.load(sources[index] + place, mask=is_there)
            tl.store(targets[index] + place, value, mask=is_there)
        number -= num_programs


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy contiguous tensors of equal types and sizes in one kernel."""
    sizes, block = [target.numel() for target in targets], 1024
    contiguous = tuple(source.contiguous() for source in sources)
    _copy_kernel[(sum(triton.cdiv(size, block) for size in sizes),)](
        tuple(targets), contiguous, tuple(sizes), SIZE=block
    )

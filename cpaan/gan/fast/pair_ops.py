"""Differentiable operations on all pairs of a novel class and an example.

Training spends most of its time here. An episode has thousands of pairs but only hundreds of
examples, prototypes and shots. So an operation takes values that pairs share as small tables, and
values of single pairs as rows. It adds both on the fly and sums gradients back into the
tables, so shared values are never copied.

Each function is defined by its PyTorch code. On a GPU, kernels compute the formula and its gradient
in fewer passes. There, rows may have a narrower type than weights and tables (bfloat16 and
float32): products are of narrow numbers, summed in float32.

Shapes: R = rows, one per pair, grouped by novel class; N = novel classes, M = R / N examples of
each, T = rows of a table, W = numbers per row, D = feature dimension.
"""

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cpaan.gan.fast.kernels import kernels_for


class Shared(NamedTuple):
    """Summands that many rows share. Row r belongs to novel class r // M and example r % M."""

    bias: Tensor | None = None  # (W,)
    by_example: Tensor | None = None  # (M, W)
    by_novel: Tensor | None = None  # (N, W), or (T, W) with places
    places: Tensor | None = None  # (R,) positions in by_novel

    def spread(self, shape: tuple[int, int]) -> list[Tensor]:
        """Return all summands in shapes that broadcast to (N, M, W)."""
        summands = [each for each in (self.bias, self.by_example) if each is not None]
        if self.by_novel is not None and self.places is None:
            summands.append(self.by_novel.unsqueeze(1))
        elif self.by_novel is not None:
            summands.append(self.by_novel[self.places].unflatten(0, shape))
        return summands


def squared_distance(
    rows: Tensor,
    originals: Shared,
    weights: Tensor,
    *,
    shape: tuple[int, int],
    added: Tensor | None = None,
) -> Tensor:
    """Compute Σ weight · ‖row - original‖², a number; originals are constants.

    Args:
        rows: Shape (R, D).
        originals: Summands of the originals that rows share.
        weights: Not negative, shape (R,).
        shape: N and M.
        added: Summands of the originals that rows do not share, shape (R, D).
    """
    if kernels := kernels_for("pairs", rows):
        return _SquaredDistance.apply(kernels, shape, rows, *originals, added, weights)
    gaps = rows.unflatten(0, shape)
    for each in originals.spread(shape):
        gaps = gaps - each.detach()
    if added is not None:
        gaps = gaps - added.detach().unflatten(0, shape)
    return (weights.view(shape) * gaps.square().sum(dim=-1)).sum()


def moments(
    examples: Tensor, weights: Tensor, *, with_covariances: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute the mean of each class, (N, D), and the covariance about it, (N, D, D) or empty.

    Examples have shape (N, M, D). Their weights, shape (N, M), are constants and sum to one for
    every class. The results have the type of the weights.
    """
    if kernels := kernels_for("pairs", examples):
        return _Moments.apply(kernels, examples, weights, with_covariances)
    means = (weights.unsqueeze(1) @ examples).squeeze(1)
    if not with_covariances:
        return means, weights.new_empty(0)
    deviations = examples - means.unsqueeze(1)
    return means, deviations.mT @ (weights.unsqueeze(-1) * deviations)


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: ModuleType,
        shape: tuple[int, int],
        rows: Tensor,
        bias: Tensor | None,
        by_example: Tensor | None,
        by_novel: Tensor | None,
        places: Tensor | None,
        added: Tensor | None,
        weights: Tensor,
    ) -> Tensor:
        root = weights.sqrt()
        originals = Shared(bias, by_example, by_novel, places)
        squares = kernels.new_sums(len(rows), rows.shape[1], rows.device)
        gaps = kernels.add_rows(
            rows, originals, shape, rows.dtype, added=added, scales=root, sign=-1.0, squares=squares
        )
        ctx.kernels = kernels
        ctx.save_for_backward(gaps, root)
        return squares.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        gaps, root = ctx.saved_tensors
        shape, scales = (1, len(gaps)), 2 * factor * root
        gradient = ctx.kernels.add_rows(gaps, Shared(), shape, gaps.dtype, scales=scales)
        return None, None, gradient, *[None] * 6


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: ModuleType, examples: Tensor, weights: Tensor, with_covariances: bool
    ) -> tuple[Tensor, Tensor]:
        shape, dtype = (examples.shape[0], examples.shape[1]), examples.dtype
        narrow = weights.to(dtype)
        means = product(narrow.unsqueeze(1), examples).squeeze(1)
        # Rounded weights of a narrow type do not sum to one.
        means = means / narrow.sum(dim=1, keepdim=True, dtype=weights.dtype)
        ctx.kernels, ctx.with_covariances = kernels, with_covariances
        if not with_covariances:
            ctx.save_for_backward(examples, weights)
            return means, weights.new_empty(0)
        rows, shared = examples.flatten(0, 1), Shared(by_novel=means)
        deviations = kernels.add_rows(rows, shared, shape, dtype, sign=-1.0)
        weighted = kernels.add_rows(deviations, Shared(), shape, dtype, scales=weights.flatten())
        deviations, weighted = deviations.view_as(examples), weighted.view_as(examples)
        ctx.save_for_backward(deviations, weights)
        return means, product(deviations.mT, weighted)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_means: Tensor, of_covariances: Tensor
    ) -> tuple[None, Tensor, None, None]:
        deviations, weights = ctx.saved_tensors
        dtype, rows = deviations.dtype, None
        if ctx.with_covariances:
            # Deviations sum to zero, so the gradient through the mean vanishes.
            narrow = of_covariances.to(dtype)
            rows = torch.baddbmm(deviations @ narrow, deviations, narrow.mT).flatten(0, 1)
        gradient = ctx.kernels.add_rows(
            rows,
            Shared(by_novel=of_means),
            (weights.shape[0], weights.shape[1]),
            dtype,
            scales=weights.flatten(),
        )
        return None, gradient.view_as(deviations), None, None


def product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left @ right in float32, for matrices or batches of them in a narrower type."""
    if left.dtype == torch.float32:
        return left @ right
    multiply = torch.mm if left.dim() == 2 else torch.bmm
    return multiply(left, right, out_dtype=torch.float32)

"""Weights in two precisions, and their optimiser.

Adam updates float32 weights. On a GPU, products may use copies of a narrower type, which are
rounded once per update instead of once per product.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cpaan.gan.fast.kernels import kernels_for

_ROUNDED: dict[int, Tensor] = {}
"""Rounded copies of the weights at these addresses."""


class RoundingAdam(torch.optim.Adam):
    """Adam that also rounds the weights it updates. Within its context, products use the copies."""

    def __init__(self, weights: Sequence[nn.Parameter], dtype: torch.dtype, **options: Any) -> None:
        """Optimise weights whose products have factors of type ``dtype``; others are not copied."""
        super().__init__(weights, **options)
        self._copies: dict[Tensor, Tensor] = {
            each: torch.empty_like(each, dtype=dtype, requires_grad=False)
            for each in weights
            if each.dim() == 2 and each.shape[1] % 8 == 0 and each.dtype != dtype
        }
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Round weights that were changed by others."""
        for weight, copy in self._copies.items():
            copy.copy_(weight)

    def __enter__(self) -> None:
        for weight, copy in self._copies.items():
            _ROUNDED[weight.data_ptr()] = copy

    def __exit__(self, *_: object) -> None:
        for weight in self._copies:
            _ROUNDED.pop(weight.data_ptr(), None)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all weights and their copies; a GPU does so in one kernel."""
        (group,) = self.param_groups
        kernels = kernels_for("adam", *group["params"])
        if kernels is None:
            return super().step(closure)
        lists: list[list[Tensor]] = [[] for _ in range(6)]
        self._init_group(group, *lists)
        weights, gradients, means, squares, _, steps = lists
        torch._foreach_add_(steps, 1)
        copies = [self._copies.get(each, each) for each in weights]
        return kernels.update(weights, gradients, means, squares, copies, steps[0], group)


def rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight in this type, with aligned rows."""
    copy = _ROUNDED.get(weight.data_ptr())
    return aligned(weight.to(dtype)) if copy is None or copy.dtype != dtype else copy


def aligned(matrix: Tensor) -> Tensor:
    """Start every row at a multiple of eight numbers, because a GPU is slow with other rows."""
    if matrix.stride(0) % 8 == 0 and matrix.stride(1) == 1:
        return matrix
    num_rows, width = matrix.shape
    return matrix.new_empty(num_rows, width + -width % 8)[:, :width].copy_(matrix)

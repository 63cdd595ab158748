"""Triton kernels that fuse several PyTorch operations into one pass.

`cpaan.gan.fast` and `cpaan.gan.covariance` call them for tensors on a GPU. Their plain
PyTorch code, for all other tensors, is the definition. Sums over blocks of rows have a fixed
order, so equal inputs give bitwise equal results.
"""

from importlib import import_module
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor


def kernels_for(
    kind: Literal["pairs", "covariances", "adam", "episodes"], *tensors: Tensor | None
) -> ModuleType | None:
    """Return the kernel module if all tensors are on a GPU and none is float64; else None."""
    given = [each for each in tensors if each is not None]
    if not all(each.is_cuda and each.dtype != torch.float64 for each in given):
        return None
    return import_module(f"{__name__}.{kind}")  # imported late: only PyTorch for GPUs has Triton

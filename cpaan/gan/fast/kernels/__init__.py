"""Triton kernels that do in one pass what PyTorch does in several, and when to use them.

`cpaan.gan.fast.pair_ops` and `cpaan.gan.covariance` call them for tensors on a GPU. Their plain
PyTorch code, for all other tensors, is the definition. Sums go over blocks of rows in a fixed
order: equal inputs have equal results, bit for bit.
"""

from importlib import import_module
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor


def kernels_for(
    kind: Literal["pairs", "covariances"], *tensors: Tensor | None
) -> ModuleType | None:
    """Return the module of kernels if it can take these tensors: on a GPU, and not in float64."""
    given = [each for each in tensors if each is not None]
    if not all(each.is_cuda and each.dtype != torch.float64 for each in given):
        return None
    return import_module(f"{__name__}.{kind}")  # only PyTorch for GPUs comes with Triton

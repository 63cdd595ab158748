"""Where the kernels of a GPU can be used."""

from types import ModuleType

import torch
from torch import Tensor


def kernels_for(*tensors: Tensor) -> ModuleType | None:
    """Return `cpaan.gan.fast.kernels` where they can take these tensors; else None."""
    if not all(each.is_cuda and each.dtype != torch.float64 for each in tensors):
        return None
    from cpaan.gan.fast import kernels  # Triton comes with PyTorch for GPUs alone

    return kernels

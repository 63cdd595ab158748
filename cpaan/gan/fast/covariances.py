"""Covariance distances on a GPU, with kernels for small eigenproblems and for shared products.

The algorithm is that of `cpaan.gan.covariance.Spectra`. Factors are float16, and
blocks have a width for which the kernels are fast. No result is awaited, so that a CUDA graph can
contain it.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from cpaan.gan.covariance import (
    EXTRA_DIRECTIONS,
    Spectra,
    largest_columns,
    largest_entry,
    leading_directions,
)
from cpaan.gan.fast.kernels import covariances as kernels

_WIDTH = 32
"""Columns of a block for m up to `_LARGEST_ORDER`; kernels are slow for 64."""
_LARGEST_ORDER = 20
_NUM_STEPS = 30
"""Multiplications of a base covariance, which is prepared once per training run."""


def fits(num_dims: int, m: int) -> bool:
    """Return whether the kernels can compare covariances of this size."""
    return kernels.fits(num_dims, min(_size_of(num_dims, m)[1], num_dims))


@dataclass(frozen=True, eq=False)
class FastSpectra(Spectra):
    """Covariances of base classes with eigenvectors in float16, prepared for kernels."""

    values: Tensor  # (C, directions) leading eigenvalues
    halves: tuple[Tensor, Tensor]  # the matrices in float16; see `kernels.to_halves`

    @classmethod
    def prepare(cls, matrices: Tensor, m: int) -> Self:
        """Compute the eigenvectors of covariances, shape (C, D, D)."""
        num_dims, dtype = matrices.shape[-1], matrices.dtype
        count, width = _size_of(num_dims, m)
        if width < num_dims:
            block = largest_columns(matrices, count)
            for _ in range(_NUM_STEPS):
                block = matrices @ kernels.orthonormal(block, dtype)
            block = kernels.orthonormal(block, dtype)
            values, rotation = _eigh(block.mT @ matrices @ block)
            vectors = block @ rotation[..., :count]
        else:
            values, vectors = _eigh(matrices)
        leading = vectors[..., :count].mT.half().contiguous()
        norms, values = values[..., :m].sum(dim=-1), values[..., :count].contiguous()
        return cls(matrices, leading, norms, values, kernels.to_halves(matrices))

    def singular_vectors(
        self, classes: Tensor, other: Tensor, m: int, unit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the same as `Spectra.singular_vectors`, padded with zeros beyond m."""
        num_dims = other.shape[-1]
        count, width = _size_of(num_dims, m)
        if width >= num_dims:
            differences = self.matrices[classes] - other.unsqueeze(1)
            right = _eigh(differences)[1][..., :m].mT
            return right, (right / unit) @ differences
        directions = leading_directions(other, self.leading[classes[:, 0]], count)
        directions = kernels.orthonormal(directions, other.dtype)
        halves = kernels.to_halves(other)

        def multiply(block: Tensor) -> Tensor:
            return kernels.times_difference(*self.halves, classes, *halves, block)

        start = self._start(classes, other, directions, width)
        block = kernels.orthonormal(multiply(start), torch.half)
        if width < 2 * count:  # one more multiplication makes up for the missing columns
            block = kernels.orthonormal(multiply(block), torch.half)
        images = multiply(block)
        _, rotation = kernels.eigh(kernels.scaled_gram(images), tolerance=1e-5)
        # A GPU is slow for rows whose length is not a multiple of eight.
        rotation = pad(rotation[..., :m], (0, -m % 8)).mT
        return rotation.half() @ block.mT, (rotation / unit) @ images.mT

    def _start(self, classes: Tensor, other: Tensor, directions: Tensor, width: int) -> Tensor:
        """Return leading directions of both covariances of each pair, shape (N, L, D, width).

        If there are more than ``width``, choose those of largest variance: the larger covariance
        has more of them, and gets more columns.
        """
        (num_base, count, num_dims), num_pairs = self.leading.shape, classes.shape[1]
        novel = num_base + torch.arange(len(other), device=other.device).view(-1, 1, 1)
        # All directions are rows of one table; those of the other covariances are at its end.
        rows = torch.cat([self.leading, directions.mT.half()])
        if width == 2 * count:
            chosen = torch.cat([classes.unsqueeze(-1), novel.expand(-1, num_pairs, -1)], dim=-1)
            rows = rows.flatten(1)
        else:
            variances = (directions * (other @ directions)).sum(dim=-2).unsqueeze(1)
            both = torch.cat([self.values[classes], variances.expand(-1, num_pairs, -1)], dim=-1)
            largest = both.topk(width, dim=-1).indices
            is_base = largest < count
            matrix = torch.where(is_base, classes.unsqueeze(-1), novel)
            chosen = matrix * count + torch.where(is_base, largest, largest - count)
            rows = rows.flatten(0, 1)
        return rows.index_select(0, chosen.flatten()).view(*classes.shape, width, num_dims).mT


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    # Divided by the largest entry, because the kernel squares entries.
    largest = largest_entry(matrices)
    values, vectors = kernels.eigh(matrices / largest)
    return values * largest.squeeze(-1), vectors


def _size_of(num_dims: int, m: int) -> tuple[int, int]:
    """Return the number of leading directions per covariance, and the columns of a block."""
    count = m + EXTRA_DIRECTIONS
    if m <= _LARGEST_ORDER and num_dims > _WIDTH:
        return max(count, _WIDTH // 2), _WIDTH
    return min(count, num_dims), 2 * min(count, num_dims)

"""Data-parallel training: processes with the same weights share the episodes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Workers:
    """Rank and number of processes; several need an initialised ``torch.distributed``."""

    rank: int = 0
    count: int = 1

    def check_shares(self, num_episodes: int) -> None:
        """Raise ValueError unless the workers can share the episodes evenly."""
        if num_episodes % self.count:
            raise ValueError(
                f"{num_episodes} episodes cannot be divided among {self.count} workers; use a "
                f"multiple of {self.count}"
            )

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this worker's consecutive items; the lengths of shares differ by at most one."""
        first, end = (len(items) * rank // self.count for rank in (self.rank, self.rank + 1))
        return items[first:end]

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over all workers, in place.

        All workers must call it at the same point, with tensors of the same shapes.
        """
        if self.count == 1 or not tensors:
            return
        # One message for all tensors: most are small, and every message costs a round trip.
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        torch.distributed.all_reduce(flat)
        flat /= self.count
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def is_capturable(self, device: torch.device) -> bool:
        """Return whether a CUDA graph can contain `average`: NCCL can be captured, but not Gloo."""
        is_cuda = device.type == "cuda"
        return self.count == 1 or (is_cuda and torch.distributed.get_backend() == "nccl")

    def gather(self, value: T) -> list[T]:
        """Return the values of all workers by rank, on every worker."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            torch.distributed.all_gather_object(values, value)
        return values

    def mean(self, value: float) -> float:
        """Return the mean of a number over all workers, equal on every worker."""
        return sum(self.gather(value)) / self.count

    def agree(self, content: bytes) -> bool:
        """Return whether all workers have the same content; the answer is the same for all."""
        return len(set(self.gather(hashlib.sha256(content).digest()))) == 1


ALONE = Workers()

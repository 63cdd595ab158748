"""Data-parallel training: processes with the same weights, each with its share of episodes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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

    def mean(self, value: float, device: torch.device) -> float:
        """Return the mean of a number over all workers, equal on each of them."""
        if self.count == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64, device=device)
        self.average([tensor])
        return float(tensor)

    def agree(self, content: bytes, device: torch.device) -> bool:
        """Return whether all workers have the same content; the answer is the same for all."""
        # 48 bits, so that the sum over workers is exact.
        word = int.from_bytes(hashlib.sha256(content).digest()[:6])
        differs = self.mean(word, device) != word
        return not self.mean(differs, device)


ALONE = Workers()

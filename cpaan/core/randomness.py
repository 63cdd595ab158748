"""Independent random streams."""

import hashlib

import numpy as np
import torch


def new_rng(*words: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Create a generator seeded with whole numbers; equal numbers give equal streams per device."""
    return reseed(torch.Generator(device), *words)


def reseed(rng: torch.Generator, *words: int) -> torch.Generator:
    """Seed an existing generator as `new_rng` would, and return it."""
    (state,) = np.random.SeedSequence(words).generate_state(1, np.uint64)
    return rng.manual_seed(int(state) % 2**63)


def word_of(name: str) -> int:
    """Return a whole number that stands for a name in the seed of a stream."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())


def draw_word(rng: torch.Generator) -> int:
    """Draw a whole number that seeds any number of streams through `new_rng`."""
    return int(torch.randint(2**62, (), generator=rng))


def spawn(rng: torch.Generator, count: int) -> list[torch.Generator]:
    """Create independent generators, so that no part of a task depends on the draws of another."""
    return [new_rng(int(word)) for word in torch.randint(2**62, (count,), generator=rng)]

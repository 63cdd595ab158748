"""Random streams that do not disturb each other."""

import numpy as np
import torch


def new_rng(*words: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator decided by whole numbers: equal words, equal streams on that device."""
    return reseed(torch.Generator(device), *words)


def reseed(rng: torch.Generator, *words: int) -> torch.Generator:
    """Start a generator anew, as `new_rng` would make it; return it."""
    (state,) = np.random.SeedSequence(words).generate_state(1, np.uint64)
    return rng.manual_seed(int(state) % 2**63)


def draw_word(rng: torch.Generator) -> int:
    """Draw a whole number for `new_rng`, which decides any number of streams."""
    return int(torch.randint(2**62, (), generator=rng))


def spawn(rng: torch.Generator, count: int) -> list[torch.Generator]:
    """Return generators for parts of a task, so that none depends on how much another draws."""
    return [new_rng(int(word)) for word in torch.randint(2**62, (count,), generator=rng)]

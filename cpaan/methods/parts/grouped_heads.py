"""Heads on problems that do not all have equally many synthetic examples.

Shapes: P = problems, N = novel classes, S = synthetic examples of a class, D = feature dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES, Head
from cpaan.protocol.tasks import LowShotTask


class GroupedHeads:
    """Heads of their own for the problems with each number of synthetic examples."""

    def __init__(self, config: EvaluationConfig) -> None:
        """Keep which heads are wanted, and their settings."""
        self._config = config
        self._names = [name for name in config.heads if name != OWN]
        self._groups: list[tuple[list[int], dict[str, Head]]] = []

    def fit(
        self,
        task: LowShotTask,
        synthetic: Sequence[Tensor],
        rng_of: Callable[[str, int], torch.Generator],
    ) -> None:
        """Fit every head to real and synthetic examples.

        Args:
            task: The problems.
            synthetic: Of every problem, P times shape (N, S, D); S may be zero.
            rng_of: A new stream for a head, by its name, and a number S.
        """
        counts = [each.shape[1] for each in synthetic]
        self._groups = []
        for count in sorted(set(counts)):
            members = [place for place, its_count in enumerate(counts) if its_count == count]
            part = replace(task, problems=tuple(task.problems[place] for place in members))
            examples = torch.stack([synthetic[place] for place in members]) if count else None
            heads = {name: HEAD_CLASSES[name](self._config) for name in self._names}
            for name, head in heads.items():
                head.fit(part, examples, rng_of(name, count))
            self._groups.append((members, heads))

    def scores(self, queries: Tensor) -> dict[str, Tensor]:
        """Return each head's scores, shape (P, Q, C), problems in the order of the task."""
        places = torch.tensor([place for members, _ in self._groups for place in members])
        order = places.argsort().to(queries.device)
        return {
            name: torch.cat([heads[name].scores(queries) for _, heads in self._groups])[order]
            for name in self._names
        }

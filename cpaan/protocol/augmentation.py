"""Meta-testing: translate base examples into synthetic examples of novel classes.

Shapes: P = problems, N = novel classes, S = synthetic examples per class, D = feature dimension.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng
from cpaan.protocol.config import EvaluationConfig, NeighbourSettings
from cpaan.protocol.neighbours import draw_by, similarity
from cpaan.protocol.tasks import LowShotTask

Translation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of base examples, prototypes of their classes and prototypes of novel classes. These
broadcast to (..., D), the shape of the translated examples that it returns."""

_MOST_NUMBERS = 2**22  # numbers in a block whose distances are computed together


def mean_shift(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Shift the mean of the base class to that of the novel class; keep the covariance."""
    return examples - base + novel


def half_mean_shift(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Shift by half the difference, because the mean of one or two shots is unreliable."""
    return examples + (novel - base) / 2


def copy(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Return base examples unchanged."""
    return examples


def synthesise(
    task: LowShotTask,
    translate: Translation,
    *,
    neighbours: NeighbourSettings,
    num_synthetic: int,
    rng: torch.Generator,
) -> Tensor:
    """Translate examples of related base classes into synthetic examples of novel classes.

    Base classes are drawn by similarity, and the examples of a class uniformly. Problems of the
    same draw share random numbers, whatever their number of shots, so that they are comparable.

    Returns:
        Synthetic examples, shape (P, N, S, D).
    """
    # One stream per draw, so that the examples of a draw do not depend on the other draws.
    word = draw_word(rng)
    uniforms = {
        draw: torch.rand(
            (2, task.num_novel, num_synthetic), generator=new_rng(word, draw), dtype=torch.float64
        ).to(task.device)
        for draw in {problem.draw for problem in task.problems}
    }
    # One tensor, filled problem by problem, because it may take most of a GPU's memory.
    shape = (len(task.problems), task.num_novel, num_synthetic)
    synthetic: Tensor | None = None
    for number, (problem, novel) in enumerate(
        zip(task.problems, task.novel_prototypes, strict=True)
    ):
        scores = similarity(novel, task.base.prototypes, neighbours)
        for_class, for_row = uniforms[problem.draw]
        classes = draw_by(scores, for_class)
        examples = task.base.pick(classes, for_row)
        translated = translate(examples, task.base.prototypes[classes], novel.unsqueeze(1))
        if synthetic is None:
            synthetic = translated.new_empty((*shape, translated.shape[-1]))
        synthetic[number] = translated
    assert synthetic is not None, "a task has problems"
    return synthetic


def num_synthetic_of(counts: Tensor, max_shots: int, config: EvaluationConfig) -> int:
    """Return S: the configured number, or the number that fills novel classes to capacity.

    The capacity is the mean of ``counts``, the numbers of examples of the base classes. All novel
    classes get the number that fills a class with ``max_shots`` shots.
    """
    if not config.fill_to_capacity:
        return config.num_synthetic
    capacity = round(float(counts.double().mean()))
    if capacity <= max_shots:
        raise ValueError(
            f"base classes have {capacity} examples on average, so novel classes with {max_shots} "
            "shots cannot be filled up to it; use fewer shots or --set fill_to_capacity=false"
        )
    return capacity - max_shots


def mean_pairwise_distance(examples: Tensor) -> Tensor:
    """Compute the mean distance between two examples (..., S, D), the paper's diversity.

    The result has shape (...), and is NaN for fewer than two examples.
    """
    *batch, num_examples, num_dims = examples.shape
    # In blocks, because all distances together may fill a GPU's memory.
    num_classes = max(1, _MOST_NUMBERS // max(1, num_examples * max(num_examples, num_dims)))
    totals = []
    for block in examples.view(math.prod(batch), num_examples, num_dims).split(num_classes):
        # Centred, because products of large coordinates lose precision.
        centred = block - block.mean(dim=1, keepdim=True)
        totals.append(torch.cdist(centred, centred).sum(dim=(1, 2)))
    pairs = num_examples * (num_examples - 1)
    return (torch.cat(totals) / (pairs or torch.nan)).view(batch).cpu()


def diversity_of(synthetic: Sequence[Tensor]) -> Tensor | None:
    """Compute the mean distance between synthetic examples of each class, (P, N), on the CPU.

    It is NaN where S is zero or one. Return None if no problem has synthetic examples.
    """
    if not any(each.shape[1] for each in synthetic):
        return None
    return torch.stack([mean_pairwise_distance(each) for each in synthetic])

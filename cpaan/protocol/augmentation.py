"""Meta-testing: base examples, translated, become synthetic examples of novel classes.

Shapes: P = problems, N = novel classes, S = synthetic examples a class, D = feature dimension.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.protocol.config import EvaluationConfig, NeighbourSettings
from cpaan.protocol.neighbours import draw_by, similarity
from cpaan.protocol.tasks import LowShotTask

Translation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From base examples, their classes' prototypes and the novel classes' prototypes, all of a
shape that broadcasts to (..., D), to translated examples of that shape."""

_MOST_NUMBERS = 2**22  # of a block whose distances are computed together


def mean_shift(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Move the base class's centroid onto the novel class's: the covariance stays as it is."""
    return examples - base + novel


def half_mean_shift(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Go half of the way only, where the mean of one or two shots is not to be trusted."""
    return examples + (novel - base) / 2


def copy(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Return related base examples as they are."""
    return examples


def synthesise(
    task: LowShotTask,
    translate: Translation,
    *,
    neighbours: NeighbourSettings,
    num_synthetic: int,
    rng: torch.Generator,
) -> Tensor:
    """Fill each novel class with translated examples of related base classes.

    Source classes are drawn by their similarity, examples of a class uniformly. Problems of
    one draw share the random numbers whatever their shots, so that they can be compared.

    Returns:
        Synthetic examples, shape (P, N, S, D).
    """
    # A stream for each draw, so that a draw's examples do not depend on which others there are.
    word = int(torch.randint(2**62, (), generator=rng))
    uniforms = {
        draw: torch.rand(
            (2, task.num_novel, num_synthetic), generator=new_rng(word, draw), dtype=torch.float64
        ).to(task.device)
        for draw in {problem.draw for problem in task.problems}
    }
    # One tensor, filled problem by problem: it may be most of a GPU's memory.
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
    """Return S: the configured number, or what fills novel classes to base classes' capacity.

    ``counts`` are examples of each base class. All novel classes get as many synthetic examples as
    the one with ``max_shots`` lacks.
    """
    if not config.fill_to_capacity:
        return config.num_synthetic
    capacity = round(float(counts.double().mean()))
    if capacity <= max_shots:
        raise ValueError(
            f"base classes have {capacity} examples on average: novel classes with {max_shots} "
            "shots cannot be filled up to that (--set fill_to_capacity=false)"
        )
    return capacity - max_shots


def mean_pairwise_distance(examples: Tensor) -> Tensor:
    """Return the mean distance of two different examples (..., S, D), the paper's diversity.

    It has the shape (...), and is NaN where there is only one example.
    """
    *batch, num_examples, num_dims = examples.shape
    # In blocks, because all of them may fill a GPU.
    num_classes = max(1, _MOST_NUMBERS // max(1, num_examples * max(num_examples, num_dims)))
    totals = []
    for block in examples.view(-1, num_examples, num_dims).split(num_classes):
        # From the middle of a class: products of coordinates that lie far out lose the digits.
        centred = block - block.mean(dim=1, keepdim=True)
        totals.append(torch.cdist(centred, centred).sum(dim=(1, 2)))
    pairs = num_examples * (num_examples - 1)
    return (torch.cat(totals) / (pairs or torch.nan)).view(batch).cpu()


def diversity_of(synthetic: Sequence[Tensor]) -> Tensor | None:
    """Return the mean distance of two synthetic examples of a class, shape (P, N), on the CPU.

    It is NaN where S is zero or one, and None if no problem has any synthetic examples.
    """
    if not any(each.shape[1] for each in synthetic):
        return None
    return torch.stack(
        [
            mean_pairwise_distance(each) if each.shape[1] else torch.full((len(each),), math.nan)
            for each in synthetic
        ]
    )

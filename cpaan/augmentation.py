"""Meta-testing: base examples, translated, become synthetic examples of novel classes.

Shapes: P = problems, N = novel classes, S = synthetic examples a class, D = feature dimension.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cpaan.neighbours import soft_similarity
from cpaan.randomness import new_rng
from cpaan.tasks import LowShotTask

Translation = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From base examples, their classes' prototypes and the novel classes' prototypes, all of a
shape that broadcasts to (..., D), to translated examples of that shape."""


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
    num_synthetic: int,
    perplexity: float,
    rng: torch.Generator,
) -> Tensor:
    """Fill each novel class with translated examples of related base classes.

    Source classes are drawn by their NBS-S score, examples of a class uniformly. Problems of
    one draw share the random numbers whatever their shots, so that they can be compared.

    Returns:
        Synthetic examples, shape (P, N, S, D).
    """
    alpha = soft_similarity(task.novel_prototypes, task.base.prototypes, perplexity)
    # A stream for each draw, so that a draw's examples do not depend on which others there are.
    word = int(torch.randint(2**62, (), generator=rng))
    uniforms = {
        draw: torch.rand(
            (2, task.num_novel, num_synthetic), generator=new_rng(word, draw), dtype=torch.float64
        ).to(task.device)
        for draw in {problem.draw for problem in task.problems}
    }
    synthetic = []
    for problem, scores, novel in zip(task.problems, alpha, task.novel_prototypes, strict=True):
        for_class, for_row = uniforms[problem.draw]
        cumulative = scores.double().cumsum(dim=-1)
        # The last entry may fall short of one by rounding.
        classes = torch.searchsorted(cumulative, for_class).clamp(max=scores.shape[-1] - 1)
        examples = task.base.pick(classes, for_row)
        synthetic.append(translate(examples, task.base.prototypes[classes], novel.unsqueeze(1)))
    return torch.stack(synthetic)

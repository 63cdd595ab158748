"""Supports of a task's problems for encoders that read them in sequence: equally many of a class.

Shapes: P = problems, B = base classes of the phase, N = novel classes, D = feature dimension.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng
from cpaan.protocol.tasks import LowShotTask

_ROWS_PER_BLOCK = 60_000
"""Supports that are encoded at once: at 512 dimensions, cuDNN then needs about a gigabyte."""


def encode_problems(
    task: LowShotTask,
    num_examples: int,
    rng: torch.Generator,
    encode: Callable[[Tensor, torch.Generator], Tensor],
) -> list[Tensor]:
    """Encode the supports of all problems of a task; see `balanced_supports` for which.

    Args:
        task: The problems.
        num_examples: Supports of a class.
        rng: Decides all that is random; on the CPU.
        encode: Of supports, shape (problems, B + N, supports of a class, D), and of a stream on
            their device that decides their order: anything of shape (problems, B + N, ...).

    Returns:
        What it makes of each problem, P times shape (B + N, ...); classes in the task's order.
    """
    for_order = new_rng(draw_word(rng), device=task.device)
    columns = task.columns_from(_base_order(task))
    encoded: dict[int, Tensor] = {}
    for block in balanced_supports(task, num_examples, rng):
        encoded |= zip(block.problems, encode(block.supports, for_order)[:, columns], strict=True)
    return [encoded[number] for number in range(len(task.problems))]


class SupportBlock(NamedTuple):
    """Supports of some problems of a task, equally many of every class."""

    problems: list[int]  # positions among the task's
    supports: Tensor  # (problems, B + N, supports of a class, D); base classes in order of names


def balanced_supports(
    task: LowShotTask, num_examples: int, rng: torch.Generator
) -> Iterator[SupportBlock]:
    """Give every class of a task's problems equally many supports, for sequences that are balanced.

    Shots are repeated until there are ``num_examples`` or more; base classes have as many rows, at
    even distances from a random start: each at most once where there are enough. Problems come in
    blocks, so that what an encoder makes of them fits into memory. Base classes are in the order of
    names, so that the order in which a phase has them decides nothing.

    Args:
        task: The problems.
        num_examples: Supports of a class.
        rng: Decides which base rows; on the CPU.
    """
    classes = torch.tensor(_base_order(task), device=task.device)
    start = torch.rand((len(classes), 1), generator=rng, dtype=torch.float64).to(task.device)
    for num_shots in dict.fromkeys(problem.num_shots for problem in task.problems):
        numbers = [n for n, each in enumerate(task.problems) if each.num_shots == num_shots]
        num_repeats = math.ceil(num_examples / num_shots)
        every_place = torch.arange(num_repeats * num_shots, device=task.device)
        places = (start + every_place) / len(every_place)
        base = task.base.pick(classes.unsqueeze(1).expand(places.shape), places)
        per_problem = (task.num_base + task.num_novel) * len(every_place)
        at_once = max(1, _ROWS_PER_BLOCK // per_problem)
        for first in range(0, len(numbers), at_once):
            block = numbers[first : first + at_once]
            shots = torch.stack([task.support(task.problems[number]) for number in block])
            novel = shots.repeat(1, 1, num_repeats, 1)
            yield SupportBlock(
                block, torch.cat([base.expand(len(block), -1, -1, -1), novel], dim=1)
            )


def _base_order(task: LowShotTask) -> list[int]:
    """Return the phase's own base classes in the order of names."""
    return [number for number in task.base.order if number < task.num_base]

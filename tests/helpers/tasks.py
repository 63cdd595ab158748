"""Small low-shot tasks."""

from collections.abc import Sequence

import torch

from cpaan.core.randomness import new_rng
from cpaan.data.splits import ShotRows, Split, draw_shots
from cpaan.data.table import FeatureTable
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem, Queries, read_phase
from helpers.gaussians import GaussianClasses


def shots_of(table: FeatureTable, split: Split, num_draws: int = 2, max_shots: int = 5) -> ShotRows:
    return draw_shots(table, split.validation, num_draws=num_draws, max_shots=max_shots, seed=0)


def small_task(
    base: list[list[list[float]]], shots: list[list[list[float]]], num_base: int | None = None
) -> LowShotTask:
    """Return a task of one problem with all shots, from base examples and shots by class."""
    classes = [torch.tensor(rows, dtype=torch.float32) for rows in base]
    counts = torch.tensor([len(rows) for rows in classes])
    return LowShotTask(
        base=BaseSet(torch.cat(classes), counts),
        num_base=len(base) if num_base is None else num_base,
        shots=torch.tensor([shots], dtype=torch.float32),
        problems=(Problem(num_shots=len(shots[0]), draw=0),),
    )


def numbered_rows(*counts: int, names: Sequence[str] | None = None) -> BaseSet:
    """Return base classes with these numbers of rows; a row is its class and its number."""
    rows = [[float(label), float(row)] for label, n in enumerate(counts) for row in range(n)]
    return BaseSet(torch.tensor(rows), torch.tensor(counts), names)


def read_problems(
    data: GaussianClasses,
    shots: Sequence[int] = (1, 5),
    phase: str = "validation",
    num_draws: int = 2,
) -> tuple[LowShotTask, Queries]:
    """Return a task and its queries, by default with two draws of one and five shots."""
    novel = data.split.phase(phase)
    rows = draw_shots(data.table, novel, num_draws=num_draws, max_shots=5, seed=0)
    device = torch.device("cpu")
    return read_phase(data.table, data.split, phase, rows, shots, device, is_noted=True)


def normals(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=new_rng(seed), dtype=dtype)

"""N-way K-shot tasks: N random novel classes, K shots of each, and queries of the same classes.

Base classes are not among the answers. Shapes: T = tasks, N = ways, K = most shots, Q = queries of
a class, P = problems, D = feature dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from cpaan.core.randomness import new_rng, word_of
from cpaan.core.settings import Settings
from cpaan.data.splits import Split, shuffled
from cpaan.data.table import TEST, TRAIN, FeatureTable
from cpaan.methods.base import LowShotMethod
from cpaan.protocol.tasks import LowShotTask, Problem, Queries, read_base
from cpaan.training.drive import Progress

_TASKS_AT_ONCE = 50  # bounds the memory of synthetic examples for any number of tasks
_TASKS_A_LINE = 200  # between two lines about progress


@dataclass(frozen=True, kw_only=True)
class FewShotConfig(Settings):
    """Size of the tasks."""

    num_ways: int = 5
    """Number N of novel classes in a task."""
    shots: tuple[int, ...] = (1, 5)
    """Numbers of shots of a class; a task's fewer shots are the first of its most."""
    num_queries: int = 15
    """Number Q of queries of a class."""
    num_tasks: int = 600
    seed: int = 0
    """Seed of the tasks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_queries", "num_tasks")
        self._refuse(["num_ways"], lambda count: count >= 2, "2 or more")
        are_positive = "positive whole numbers"
        self._refuse(["shots"], lambda shots: min(shots, default=0) > 0, are_positive)
        self._refuse_negative("seed")


class FewShotTasks(NamedTuple):
    """Rows of a table for each task."""

    shots: NDArray[np.int64]  # (T, N, K), train rows
    queries: NDArray[np.int64]  # (T, N, Q), test rows


def draw_tasks(table: FeatureTable, classes: Sequence[str], config: FewShotConfig) -> FewShotTasks:
    """Draw classes, shots from their train rows and queries from their test rows.

    A task depends only on the seed, its number and the classes, not on the number of tasks.

    Raises:
        ValueError: If there are too few classes, or a class has too few rows.
    """
    if len(classes) < config.num_ways:
        raise ValueError(f"{config.num_ways} ways need as many novel classes, got {len(classes)}")
    wanted = {TRAIN: max(config.shots), TEST: config.num_queries}
    rows = {partition: [table.rows_of(name, partition) for name in classes] for partition in wanted}
    for partition, count in wanted.items():
        fewest = min(range(len(classes)), key=lambda place: len(rows[partition][place]))
        if len(rows[partition][fewest]) < count:
            option = "--shots" if partition == TRAIN else "--num-queries"
            raise ValueError(
                f"class {classes[fewest]} has {len(rows[partition][fewest])} {partition} rows, but "
                f"{count} are needed; use a smaller {option}"
            )
    words = [word_of(name) for name in classes]
    drawn: dict[str, list[NDArray[np.int64]]] = {partition: [] for partition in wanted}
    for task in range(config.num_tasks):
        chosen = shuffled(len(classes), config.seed, task)[: config.num_ways]
        for number, (partition, count) in enumerate(wanted.items()):
            for place in chosen:
                of_class = rows[partition][place]
                order = shuffled(len(of_class), config.seed, task, words[place], number)
                drawn[partition].append(of_class[order[:count]])
    shape = config.num_tasks, config.num_ways, -1
    return FewShotTasks(*(np.stack(drawn[partition]).reshape(shape) for partition in wanted))


def read_tasks(
    table: FeatureTable,
    split: Split,
    tasks: FewShotTasks,
    shots: Sequence[int],
    device: torch.device,
) -> tuple[LowShotTask, Queries]:
    """Read all base classes and all tasks into memory; the draw of a problem is its task.

    The queries have shape (T, N * Q, D), and labels from 0 to N - 1.
    """
    problems = tuple(Problem(count, task) for count in shots for task in range(len(tasks.shots)))
    task = LowShotTask(
        base=read_base(table, sorted(split.base_classes()), device),
        num_base=0,
        shots=table.gather(tasks.shots).float().to(device),
        problems=problems,
    )
    _, num_ways, num_queries = tasks.queries.shape
    queries = Queries(
        features=table.gather(tasks.queries).float().flatten(1, 2).to(device),
        labels=torch.arange(num_ways, device=device).repeat_interleave(num_queries),
    )
    return task, queries


def score_tasks(
    name: str,
    method: LowShotMethod,
    seed: int,
    task: LowShotTask,
    queries: Queries,
    progress: Progress = lambda line: None,
) -> pd.DataFrame:
    """Score a method on the tasks of `read_tasks`, many at a time.

    Returns:
        Columns method, head, shots, seed, task, and top1: accuracy in percent.
    """
    rows, num_tasks = [], len(task.shots)
    for first in range(0, num_tasks, _TASKS_AT_ONCE):
        if first % _TASKS_A_LINE == 0:
            progress(f"{name}, seed {seed}: task {first + 1} of {num_tasks}")
        some = range(first, first + _TASKS_AT_ONCE)
        part = replace(task, problems=tuple(p for p in task.problems if p.draw in some))
        fitted = method.fit(part, new_rng(seed))
        # Each problem has its own queries.
        places = torch.tensor([problem.draw for problem in part.problems], device=task.device)
        for head, scores in fitted.predict(queries.features[places]).items():
            truth = queries.labels.expand(len(scores), -1).unsqueeze(-1)
            # Ties count as errors, as in the other protocol.
            num_rivals = (scores >= scores.gather(-1, truth)).sum(dim=-1) - 1
            accuracy = (100 * (num_rivals == 0).double().mean(dim=1)).tolist()
            rows += [
                (name, head, problem.num_shots, seed, problem.draw, top1)
                for problem, top1 in zip(part.problems, accuracy, strict=True)
            ]
    return pd.DataFrame(rows, columns=["method", "head", "shots", "seed", "task", "top1"])

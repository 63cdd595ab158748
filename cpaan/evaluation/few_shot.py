"""The other protocol of the field: N-way K-shot tasks, scored by their mean accuracy.

Every task has N random novel classes, K shots of each, and queries of the same classes. Base
classes are not among the answers. All methods are given the same tasks.

Shapes: T = tasks, N = ways, K = most shots, Q = queries of a class, D = feature dimension.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.core.provenance import record_test_read
from cpaan.core.randomness import new_rng, word_of
from cpaan.core.settings import Settings
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, Split, shuffled
from cpaan.data.table import TEST, TRAIN, FeatureTable
from cpaan.methods.base import LowShotMethod
from cpaan.methods.registry import ROWS, expand_methods, make_method
from cpaan.methods.table_row import FEATURES, PN
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.statistics import crossed_cells
from cpaan.protocol.tasks import LowShotTask, Problem, check_phase, read_base
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.drive import Progress

# Problems that are fitted together are also scored on each other's queries, which is wasted.
_TASKS_AT_ONCE = 8
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
                its_rows = rows[partition][place]
                order = shuffled(len(its_rows), config.seed, task, words[place], number)
                drawn[partition].append(its_rows[order[:count]])
    shape = config.num_tasks, config.num_ways, -1
    return FewShotTasks(*(np.stack(drawn[partition]).reshape(shape) for partition in wanted))


def evaluate_few_shot(
    table: FeatureTable,
    split: Split,
    *,
    methods: Sequence[str],
    phase: str = VALIDATION_PHASE,
    tasks: FewShotConfig | None = None,
    config: EvaluationConfig | None = None,
    settings: Mapping[str, Settings] | None = None,
    checkpoints: Path | None = None,
    device: torch.device | str = "cpu",
    allow_trained_novel: bool = False,
    progress: Progress = lambda message: None,
) -> pd.DataFrame:
    """Score methods on N-way K-shot tasks from the novel classes of a phase.

    Args:
        table: The features.
        split: Base and novel classes of the phases; methods are trained on all base classes.
        methods: Names of rows; see `cpaan.methods.registry`.
        phase: "validation", or "test", which is recorded in ``results/test-reads.jsonl``.
        tasks: Size and number of the tasks.
        config: Heads, training seeds, and settings of heads and controls.
        settings: Training settings by method; by default the recommended ones.
        checkpoints: Folder of training checkpoints to resume from.
        device: Device to compute on.
        allow_trained_novel: Whether the backbone may have been trained on novel classes.
        progress: Called with a line about the current work.

    Returns:
        Columns method, head, shots, seed, task, and top1: accuracy in percent.

    Raises:
        ValueError: If the data does not suit the phase or the tasks, or a method is unknown.
    """
    tasks, config, settings = tasks or FewShotConfig(), config or EvaluationConfig(), settings or {}
    config = config.with_overrides({"shots": tasks.shots})
    methods = expand_methods(methods, [FEATURES])
    check_phase(table, split, phase, allow_trained_novel=allow_trained_novel)
    drawn = draw_tasks(table, split.phase(phase).novel, tasks)
    base = read_base(table, sorted(split.base_classes()), torch.device(device))
    embedding = settings.get(PN, EmbeddingConfig())
    assert isinstance(embedding, EmbeddingConfig), "checked with the row of PN"
    num_rows = dict(zip(base.names, base.counts.tolist(), strict=True))
    used = {name: settings.get(name, ROWS[name].config) for name in methods}
    for name, training in used.items():
        ROWS[name].check(training, config, num_rows, table.num_dims, embedding)
    if phase == TEST_PHASE:
        record_test_read(table.fingerprint)
    frames = []
    for name, training in used.items():
        for seed in range(config.seed, config.seed + config.num_seeds):
            method = make_method(
                name,
                config,
                training,
                embedding=embedding if ROWS[name].is_embedded else None,
                folder=checkpoints,
                seed=seed,
                progress=progress,
            )
            for first in range(0, tasks.num_tasks, _TASKS_AT_ONCE):
                if first % _TASKS_A_LINE == 0:
                    progress(f"{name}, seed {seed}: task {first + 1} of {tasks.num_tasks}")
                part = FewShotTasks(*(rows[first : first + _TASKS_AT_ONCE] for rows in drawn))
                shots, queries = (table.gather(rows).float().to(device) for rows in part)
                problems = [Problem(k, place) for k in tasks.shots for place in range(len(shots))]
                method.fit(LowShotTask(base, 0, shots, tuple(problems)), new_rng(seed))
                for head, problem, accuracy in _accuracies(method, problems, queries):
                    frames.append(
                        (name, head, problem.num_shots, seed, first + problem.draw, accuracy)
                    )
    return pd.DataFrame(frames, columns=["method", "head", "shots", "seed", "task", "top1"])


def _accuracies(
    method: LowShotMethod, problems: Sequence[Problem], queries: Tensor
) -> Iterator[tuple[str, Problem, float]]:
    """Yield the accuracy in percent of every head and problem, on the queries (T, N, Q, D)."""
    num_tasks, num_ways, num_queries, _ = queries.shape
    truth = torch.arange(num_ways, device=queries.device).repeat_interleave(num_queries)
    for head, scores in method.predict(queries.flatten(0, 2)).items():
        by_task = scores.unflatten(1, (num_tasks, num_ways * num_queries))
        for number, problem in enumerate(problems):
            own = by_task[number, problem.draw]
            # Ties count as errors, as in the other protocol.
            rivals = (own >= own.gather(1, truth[:, None])).sum(dim=1) - 1
            yield head, problem, float(100 * (rivals == 0).double().mean())


def few_shot_table(scores: pd.DataFrame) -> str:
    """Return mean accuracy and its 95 % interval over tasks and training seeds as text."""
    keys, cells = ["method", "head", "shots"], {}
    for key, cell in crossed_cells(scores.rename(columns={"task": "draw"}), "top1", keys).items():
        estimate = cell.estimate()
        cells[key] = f"{estimate.mean:.2f}±{estimate.interval():.2f}"
    index = pd.MultiIndex.from_tuples([*cells], names=keys)
    table = pd.Series(list(cells.values()), index=index).unstack("shots")
    return table.rename(columns=lambda shots: f"{shots}-shot").reset_index().to_string(index=False)

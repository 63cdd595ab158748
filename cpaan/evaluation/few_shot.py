"""The other protocol of the field: N-way K-shot tasks, scored by their mean accuracy.

All methods are given the same tasks; see `cpaan.evaluation.few_shot_tasks`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import torch

from cpaan.core.provenance import record_test_read
from cpaan.core.settings import Settings
from cpaan.data.reference import DataReference
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, Split
from cpaan.data.table import FeatureTable
from cpaan.evaluation.few_shot_tasks import FewShotConfig, draw_tasks
from cpaan.evaluation.runner import check_settings, jobs_of, run_locally, settings_of
from cpaan.methods.registry import expand_methods
from cpaan.methods.table_row import FEATURES
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.statistics import crossed_cells
from cpaan.protocol.tasks import check_phase
from cpaan.training.drive import Progress


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
    num_processes: int = 1,
    locations: list[str] | None = None,
    cache: Path | None = None,
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
        num_processes: Number of processes that run methods and seeds in parallel.
        locations: Files of the features, from which other processes read the table.
        cache: Folder of finished parts, which are not computed again.

    Returns:
        Columns method, head, shots, seed, task, and top1: accuracy in percent.

    Raises:
        ValueError: If the data does not suit the phase or the tasks, or a method is unknown or
            fails.
    """
    tasks, config, settings = tasks or FewShotConfig(), config or EvaluationConfig(), settings or {}
    config = config.with_overrides({"shots": tasks.shots})
    used, embedding = settings_of(expand_methods(methods, [FEATURES]), settings)
    check_phase(table, split, phase, allow_trained_novel=allow_trained_novel)
    drawn = draw_tasks(table, split.phase(phase).novel, tasks)
    check_settings(used, embedding, config, table, split.base_classes())
    if phase == TEST_PHASE:
        record_test_read(table.fingerprint)
    data = {FEATURES: DataReference.of(table, split, locations)}
    jobs = jobs_of(
        used, config, embedding, data, checkpoints, phase=phase, draws=drawn, device=str(device)
    )
    outcomes, frames = run_locally(jobs, [table], checkpoints, cache, num_processes, progress), []
    for key, outcome in outcomes.items():
        if isinstance(outcome, ValueError):
            raise ValueError(f"{key.row}, seed {key.seed}: {outcome}")
        frames.append(outcome.scores)
    return pd.concat(frames, ignore_index=True)


def few_shot_table(scores: pd.DataFrame) -> str:
    """Return mean accuracy and its 95 % interval over tasks and training seeds as text."""
    keys, cells = ["method", "head", "shots"], {}
    for key, cell in crossed_cells(scores.rename(columns={"task": "draw"}), "top1", keys).items():
        estimate = cell.estimate()
        cells[key] = f"{estimate.mean:.2f}±{estimate.interval():.2f}"
    index = pd.MultiIndex.from_tuples([*cells], names=keys)
    table = pd.Series(list(cells.values()), index=index).unstack("shots")
    return table.rename(columns=lambda shots: f"{shots}-shot").reset_index().to_string(index=False)

"""The benchmark: from methods, draws and seeds to one table of scores."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from cpaan.core.files import write_whole
from cpaan.core.provenance import count_test_reads, describe_run, record_test_read
from cpaan.core.remote_paths import RemotePath
from cpaan.core.settings import Settings
from cpaan.data.reference import DataReference
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, ShotRows, Split, check_shots
from cpaan.data.table import TEST, TRAIN, FeatureTable, align_rows
from cpaan.evaluation.executors import LocalExecutor
from cpaan.evaluation.job import Job, Part, Reader
from cpaan.evaluation.parts import Outcome, PartCache, PartKey, run_parts
from cpaan.evaluation.scoring import draw_phase
from cpaan.methods.registry import METHODS, ROWS, expand_methods
from cpaan.methods.table_row import COSINE_FEATURES, FEATURES, PN
from cpaan.protocol.calibration import best_biases, best_heads, calibrate
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.statistics import summarise
from cpaan.protocol.tasks import check_phase
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.drive import Progress

RESULT_COLUMNS = ["method", "head", "phase", "column", "shots", "draw", "seed", "top1", "top5"]


@dataclass(frozen=True, eq=False)
class Results:
    """Scores of an evaluation, and everything needed to reproduce them."""

    scores: pd.DataFrame
    """One line for each method, head, column, number of shots, draw and seed; in percent."""
    diversity: pd.DataFrame
    """Mean distance of two synthetic examples of a class and its ratio to that of real ones, by
    method, number of shots, draw and seed. Methods that generate nothing are left out."""
    biases: pd.DataFrame
    """Bias of novel classes in all_calibrated, by method, head, number of shots and metric."""
    heads: pd.DataFrame | None
    """Validation score of every head of a method: columns method, head, score; None if the
    validation phase was not scored."""
    about: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write results.csv and results.json, each atomically."""
        write_whole(folder / "results.csv", self.scores.to_csv(index=False))
        content = {
            **self.about,
            "diversity": to_records(self.diversity),
            "biases": to_records(self.biases),
            "heads": None if self.heads is None else to_records(self.heads),
            "summary": to_records(summarise(self.scores)),
            "rows": to_records(self.scores),
        }
        write_whole(folder / "results.json", json.dumps(content, indent=1, allow_nan=False))


def evaluate(
    table: FeatureTable,
    split: Split,
    *,
    phase: str = VALIDATION_PHASE,
    methods: Sequence[str] = ("none",),
    config: EvaluationConfig | None = None,
    settings: Mapping[str, Settings] | None = None,
    cosine_table: FeatureTable | None = None,
    checkpoints: Path | None = None,
    shot_rows: ShotRows | None = None,
    device: str | torch.device = "cpu",
    allow_trained_novel: bool = False,
    progress: Progress = lambda message: None,
    num_processes: int = 1,
    locations: Mapping[str, list[str] | None] | None = None,
    cache: Path | None = None,
) -> Results:
    """Score methods on one phase of a feature table.

    Args:
        table: The features.
        split: Base and novel classes of the phases.
        phase: "validation", or "test", which is recorded in ``results/test-reads.jsonl``.
        methods: Names of rows; see `cpaan.methods.registry`.
        config: Shots, draws, seeds, heads and their settings.
        settings: Training settings by method; by default the recommended ones. The settings of PN
            apply to the embedding of all methods that work in one.
        cosine_table: The same examples from a backbone with a cosine classifier.
        checkpoints: Folder of training checkpoints to resume from.
        shot_rows: Explicit draws, shape (draws, novel classes, shots); by default seeded ones.
        device: Device to compute on.
        allow_trained_novel: Whether the backbone may have been trained on novel classes.
        progress: Called with a line about the current work.
        num_processes: Number of processes that run methods and seeds in parallel.
        locations: Files of "features" and "cosine-features", from which other processes read the
            tables.
        cache: Folder of finished parts, which are not computed again.

    Raises:
        ValueError: If the data does not suit the phase, or a method is unknown.
    """
    run, given = describe_run(), settings or {}
    tables = _align(table, cosine_table)
    methods = expand_methods(methods, tables)
    used, embedding = settings_of(methods, given)
    for features in tables.values():
        check_phase(features, split, phase, allow_trained_novel=allow_trained_novel)
    config = config or EvaluationConfig()
    if shot_rows is None:
        shot_rows = draw_phase(table, split, phase, config)
    else:
        check_shots(shot_rows, table, split.phase(phase), max(config.shots))
        config = config.with_overrides({"num_draws": len(shot_rows)})
    check_settings(used, embedding, config, table, split.base_classes(phase))
    scores_validation = phase == TEST_PHASE and config.novel_bias is None
    if phase == TEST_PHASE:
        count_test_reads(table.fingerprint)  # detects a damaged log before the work
        if scores_validation:
            _check_validation(table, split, config)
        record_test_read(table.fingerprint)
        if cosine_table is not None and any(ROWS[name].features != FEATURES for name in methods):
            record_test_read(cosine_table.fingerprint)
    jobs = jobs_of(
        used,
        config,
        embedding,
        _references(tables, split, locations or {}, table),
        checkpoints,
        phase=phase,
        draws=shot_rows,
        scores_validation=scores_validation,
        device=str(device),
    )
    opened = list(tables.values())
    outcomes = run_locally(jobs, opened, checkpoints, cache, num_processes, progress)
    failed = {
        key.row: f"seed {key.seed}: {outcome}"
        for key, outcome in outcomes.items()
        if isinstance(outcome, ValueError)
    }
    parts = {
        key: part
        for key, part in outcomes.items()
        if isinstance(part, Part) and key.row not in failed
    }
    if not parts:
        raise ValueError(
            "; ".join(f"{name} failed with {reason}" for name, reason in failed.items())
        )
    origins = {f"{key.row}, seed {key.seed}": part.origin for key, part in parts.items()}
    classes = split.phase(phase)
    about = {
        "run": {**run, "device": str(device)},
        "config": config.to_dict(),
        "settings": {name: training.to_dict() for name, training in used.items()},
        "embedding": embedding.to_dict() if any(ROWS[n].is_embedded for n in methods) else None,
        "went_on_from": {name: origin for name, origin in origins.items() if origin is not None},
        "phase": phase,
        "methods": [name for name in methods if name not in failed],
        "failed": failed,
        "features": {
            "fingerprint": table.fingerprint,
            "backbone": table.backbone,
            "rows": len(table.labels),
            "dimensions": table.num_dims,
            "cosine_fingerprint": None if cosine_table is None else cosine_table.fingerprint,
        },
        "classes": {"base": len(classes.base), "novel": len(classes.novel)},
        "queries": sum(len(table.rows_of(name, TEST)) for name in classes.base + classes.novel),
    }
    if phase == TEST_PHASE:
        about["test_reads"] = count_test_reads(table.fingerprint)
    return _combine(list(parts.values()), phase, scores_validation, about)


def settings_of(
    methods: Sequence[str], given: Mapping[str, Settings]
) -> tuple[dict[str, Settings], EmbeddingConfig]:
    """Return the settings of each method, given or recommended, and those of the embedding."""
    embedding = given.get(PN, EmbeddingConfig())
    assert isinstance(embedding, EmbeddingConfig), "the settings of PN are those of the embedding"
    return {name: given.get(name, METHODS[name].config) for name in methods}, embedding


def check_settings(
    used: Mapping[str, Settings],
    embedding: EmbeddingConfig,
    config: EvaluationConfig,
    table: FeatureTable,
    base_classes: Sequence[str],
) -> None:
    """Raise a ValueError if the settings of a method do not suit the base classes."""
    num_rows = {name: len(table.rows_of(name, TRAIN)) for name in base_classes}
    for name, training in used.items():
        with _explain(f"{name}: "):
            ROWS[name].check(training, config, num_rows, table.num_dims, embedding)


def jobs_of(
    used: Mapping[str, Settings],
    config: EvaluationConfig,
    embedding: EmbeddingConfig,
    data: Mapping[str, DataReference],
    checkpoints: Path | None,
    **options: Any,
) -> dict[PartKey, Job]:
    """Return a job for each method and seed; ``options`` are further fields of `Job`."""
    return {
        PartKey(name, seed): Job(
            row=name,
            method=name,
            training=training,
            embedding=embedding if ROWS[name].is_embedded else None,
            evaluation=config,
            seed=seed,
            data=data[ROWS[name].features],
            checkpoint=None if checkpoints is None else f"{checkpoints}/{name}-seed{seed}.pt",
            **options,
        )
        for name, training in used.items()
        for seed in range(config.seed, config.seed + config.num_seeds)
    }


def run_locally(
    jobs: Mapping[PartKey, Job],
    opened: Sequence[FeatureTable],
    checkpoints: Path | None,
    cache: Path | None,
    num_processes: int,
    progress: Progress,
) -> dict[PartKey, Outcome]:
    """Run the jobs that are not in the cache on this machine."""
    reader = Reader({table.fingerprint: table for table in opened})
    execute = LocalExecutor(checkpoints, progress, reader, num_processes)
    return run_parts(
        jobs, execute, None if cache is None else PartCache(RemotePath.at(cache)), progress
    )


def _align(table: FeatureTable, cosine_table: FeatureTable | None) -> dict[str, FeatureTable]:
    """Return the tables by the name that rows read them by, with rows in the same order."""
    if cosine_table is None:
        return {FEATURES: table}
    with _explain("the cosine-trained features have different rows: "):
        return {FEATURES: table, COSINE_FEATURES: align_rows(cosine_table, table)}


def _check_validation(table: FeatureTable, split: Split, config: EvaluationConfig) -> None:
    """Raise a ValueError if biases cannot be chosen on the validation phase."""
    without = "; use --set novel_bias=0 to skip the validation phase"
    with _explain("biases are chosen on the validation phase, but ", without):
        # No result is claimed for these scores, so allow a backbone trained on the classes.
        check_phase(table, split, VALIDATION_PHASE, allow_trained_novel=True)
        draw_phase(table, split, VALIDATION_PHASE, config)


def _references(
    tables: Mapping[str, FeatureTable],
    split: Split,
    locations: Mapping[str, list[str] | None],
    ordered_as: FeatureTable,
) -> dict[str, DataReference]:
    """Return references from which other processes open the tables, in the order of one."""
    return {
        name: DataReference.of(
            table,
            split,
            locations.get(name),
            None if table is ordered_as else locations.get(FEATURES),
        )
        for name, table in tables.items()
    }


def _combine(
    parts: Sequence[Part], phase: str, scores_validation: bool, about: dict[str, Any]
) -> Results:
    """Return the scores of all parts, with biases and heads chosen over all seeds."""

    def together(name: str) -> pd.DataFrame:
        return pd.concat([getattr(part, name) for part in parts], ignore_index=True)

    scores = together("scores")
    chosen = together("validation") if scores_validation else scores
    biases = best_biases(chosen)
    scores = calibrate(scores, biases)
    scores.insert(2, "phase", phase)
    heads = best_heads(chosen) if phase == VALIDATION_PHASE or scores_validation else None
    return Results(scores[RESULT_COLUMNS], together("diversity"), biases, heads, about)


@contextmanager
def _explain(before: str, after: str = "") -> Iterator[None]:
    """Add text before and after the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{before}{error}{after}") from error


def to_records(frame: pd.DataFrame) -> Any:
    """Return a dictionary for each row, with None instead of NaN, for JSON."""
    return json.loads(frame.to_json(orient="records", double_precision=12))

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
from cpaan.evaluation.executors import LocalExecutor, ProcessExecutor
from cpaan.evaluation.parts import Part, PartCache, PartJob, PartKey, run_parts
from cpaan.evaluation.scoring import draw_phase
from cpaan.methods.registry import ROWS, expand_methods
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
    config = config or EvaluationConfig()
    run = describe_run()
    tables = {FEATURES: table}
    if cosine_table is not None:
        tables[COSINE_FEATURES] = cosine_table
    methods = expand_methods(methods, tables)
    given, locations = settings or {}, locations or {}
    used = {name: given.get(name, ROWS[name].config) for name in methods}
    check_phase(table, split, phase, allow_trained_novel=allow_trained_novel)
    if cosine_table is not None:
        with _explain("the cosine-trained features have different rows: "):
            tables[COSINE_FEATURES] = align_rows(cosine_table, table)
        check_phase(tables[COSINE_FEATURES], split, phase, allow_trained_novel=allow_trained_novel)
    if shot_rows is None:
        shot_rows = draw_phase(table, split, phase, config)
    else:
        check_shots(shot_rows, table, split.phase(phase), max(config.shots))
        config = config.with_overrides({"num_draws": len(shot_rows)})
    embedding = given.get(PN, EmbeddingConfig())
    assert isinstance(embedding, EmbeddingConfig), "checked with the row of PN"
    num_rows = {name: len(table.rows_of(name, TRAIN)) for name in split.base_classes(phase)}
    for name in methods:
        with _explain(f"{name}: "):
            ROWS[name].check(used[name], config, num_rows, table.num_dims, embedding)
    scores_validation = phase == TEST_PHASE and config.novel_bias is None
    if phase == TEST_PHASE:
        count_test_reads(table.fingerprint)  # detects a damaged log before the work
        if scores_validation:
            without = "; use --set novel_bias=0 to skip the validation phase"
            with _explain("biases are chosen on the validation phase, but ", without):
                # No result is claimed for these scores, so allow a backbone trained on the classes.
                check_phase(table, split, VALIDATION_PHASE, allow_trained_novel=True)
                draw_phase(table, split, VALIDATION_PHASE, config)
        record_test_read(table.fingerprint)
        read = {ROWS[name].features for name in methods}
        if cosine_table is not None and COSINE_FEATURES in read:
            record_test_read(cosine_table.fingerprint)

    references = {
        name: DataReference.of(
            each,
            split,
            locations.get(name),
            None if each is table or each is cosine_table else locations.get(FEATURES),
        )
        for name, each in tables.items()
    }
    jobs = {
        PartKey(name, seed): PartJob(
            row=name,
            method=name,
            training=used[name],
            embedding=embedding if ROWS[name].is_embedded else None,
            evaluation=config,
            seed=seed,
            data=references[ROWS[name].features],
            phase=phase,
            shot_rows=shot_rows,
            scores_validation=scores_validation,
            device=str(device),
        )
        for name in methods
        for seed in range(config.seed, config.seed + config.num_seeds)
    }
    opened = {each.fingerprint: each for each in tables.values()}
    execute = ProcessExecutor(num_processes, LocalExecutor(checkpoints, progress, opened))
    part_cache = None if cache is None else PartCache(RemotePath.at(cache))
    outcomes = run_parts(jobs, execute, part_cache, progress)
    failed = {
        key.row: f"seed {key.seed}: {outcome}"
        for key, outcome in outcomes.items()
        if isinstance(outcome, ValueError)
    }
    found = {
        key: part
        for key, part in outcomes.items()
        if isinstance(part, Part) and key.row not in failed
    }
    if not found:
        raise ValueError(
            "; ".join(f"{name} failed with {reason}" for name, reason in failed.items())
        )

    def together(name: str) -> pd.DataFrame:
        frames = [getattr(part, name) for part in found.values()]
        return pd.concat(frames, ignore_index=True)

    everything = together("scores")
    chosen = together("validation") if scores_validation else everything
    biases = best_biases(chosen)
    scores = calibrate(everything, biases)
    scores.insert(2, "phase", phase)
    origins = {f"{key.row}, seed {key.seed}": part.origin for key, part in found.items()}
    classes = split.phase(phase)
    has_embedding = any(ROWS[name].is_embedded for name in methods)
    about = {
        "run": {**run, "device": str(device)},
        "config": config.to_dict(),
        "settings": {name: config.to_dict() for name, config in used.items()},
        "embedding": embedding.to_dict() if has_embedding else None,
        "went_on_from": {run: origin for run, origin in origins.items() if origin is not None},
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

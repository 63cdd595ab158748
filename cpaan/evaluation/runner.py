"""The whole benchmark: methods, draws and seeds in, one table of scores out."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from cpaan.core.files import write_whole
from cpaan.core.provenance import count_test_reads, describe_run, record_test_read
from cpaan.core.settings import Settings
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, ShotRows, Split, check_shots
from cpaan.data.table import TEST, TRAIN, FeatureTable, align_rows
from cpaan.evaluation.scoring import draw_phase, run_method
from cpaan.methods.base import Progress
from cpaan.methods.registry import ROWS, check_method, expand_methods, make_method
from cpaan.methods.table_row import COSINE_FEATURES, FEATURES, PN
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.priors import best_heads, best_priors, with_priors
from cpaan.protocol.statistics import summarise
from cpaan.protocol.tasks import LowShotTask, Queries, check_phase, read_phase
from cpaan.representation.config import EmbeddingConfig

RESULT_COLUMNS = ["method", "head", "phase", "column", "shots", "draw", "seed", "top1", "top5"]


@dataclass(frozen=True, eq=False)
class Results:
    """Scores of an evaluation, with all that is needed to trust and to repeat them."""

    scores: pd.DataFrame
    """A row for each method, head, column, number of shots, draw and seed; in percent."""
    diversity: pd.DataFrame
    """Mean distance of two synthetic examples of a class, and its ratio to that of real ones, by
    method, number of shots, draw and seed; without methods that synthesise nothing."""
    priors: pd.DataFrame
    """The share of novel queries in all_prior, by method, head, number of shots and metric."""
    heads: pd.DataFrame | None
    """How every head of a method did on the validation phase: columns method, head, score; None if
    that phase was not scored."""
    about: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write results.csv and results.json, each whole or not at all."""
        write_whole(folder / "results.csv", self.scores.to_csv(index=False))
        content = {
            **self.about,
            "diversity": to_records(self.diversity),
            "priors": to_records(self.priors),
            "heads": None if self.heads is None else to_records(self.heads),
            "summary": to_records(summarise(self.scores)),
            "rows": to_records(self.scores),
        }
        write_whole(folder / "results.json", json.dumps(content, indent=1, allow_nan=False))


class Key(NamedTuple):
    """A method with one seed: what an evaluation consists of."""

    method: str
    seed: int


class Part(NamedTuple):
    """What came of it."""

    scores: pd.DataFrame
    """With every prior there is."""
    diversity: pd.DataFrame
    validation: pd.DataFrame
    """Scores on the validation phase, likewise, if they were asked for; otherwise empty."""
    origin: dict[str, Any] | None


Outcome = Part | ValueError
"""Or why there is none."""


@dataclass(frozen=True, eq=False)
class Plan:
    """All that decides an evaluation, apart from the features; every process can be given it."""

    phase: str
    config: EvaluationConfig
    settings: Mapping[str, Settings]
    """How methods are trained, by name."""
    shot_rows: ShotRows
    """Shape (draws, novel classes, shots)."""
    device: str
    embedding: EmbeddingConfig
    """Of methods that work in one."""
    checkpoints: Path | None = None

    @property
    def keys(self) -> list[Key]:
        """Return every method with every seed."""
        seeds = range(self.config.seed, self.config.seed + self.config.num_seeds)
        return [Key(name, seed) for name in self.settings for seed in seeds]

    @property
    def chooses_on_validation(self) -> bool:
        """Return whether the validation phase is scored too, to choose priors and heads there."""
        return self.phase == TEST_PHASE and self.config.prior is None


@dataclass(eq=False)
class Evaluator:
    """Runs parts of a plan in this process; what they share is read once."""

    plan: Plan
    tables: Mapping[str, FeatureTable]
    """By the names that rows give to their features: the same rows in the same order."""
    split: Split
    progress: Progress = lambda message: None
    _phases: dict[tuple[str, str], tuple[LowShotTask, Queries]] = field(default_factory=dict)

    def run(self, key: Key) -> Part:
        """Train and score one method with one seed.

        On the test phase, priors and heads are chosen on the validation phase first.

        Raises:
            ValueError: If the validation phase is wanted for that and cannot serve.
        """
        plan = self.plan
        method = make_method(
            key.method,
            plan.config,
            plan.settings[key.method],
            embedding=plan.embedding,
            folder=plan.checkpoints,
            seed=key.seed,
            progress=self.progress,
        )
        validation = pd.DataFrame()
        if plan.chooses_on_validation:
            self.progress(f"{key.method}: choosing priors on the validation phase")
            task, queries = self._read(VALIDATION_PHASE, key)
            validation, _ = run_method(
                key.method, method, key.seed, task, queries, plan.config, self.progress
            )
        task, queries = self._read(plan.phase, key)
        scores, diversity = run_method(
            key.method, method, key.seed, task, queries, plan.config, self.progress
        )
        return Part(scores, diversity, validation, method.origin)

    def _read(self, phase: str, key: Key) -> tuple[LowShotTask, Queries]:
        """Return a phase in the features that a method reads."""
        plan, features = self.plan, ROWS[key.method].features
        if (phase, features) not in self._phases:
            shot_rows = plan.shot_rows
            if phase != plan.phase:
                shot_rows = draw_phase(self.tables[FEATURES], self.split, phase, plan.config)
            self._phases[phase, features] = read_phase(
                self.tables[features],
                self.split,
                phase,
                shot_rows,
                sorted(plan.config.shots),
                torch.device(plan.device),
                is_noted=True,
            )
        return self._phases[phase, features]


Run = Callable[[Plan, Evaluator], Iterable[tuple[Key, Outcome]]]
"""Runs all parts of a plan; the evaluator is the one of this process."""


def run_one_by_one(plan: Plan, evaluator: Evaluator) -> Iterable[tuple[Key, Outcome]]:
    """Run all parts here, one after the other; what cannot be done ends it."""
    for key in plan.keys:
        yield key, evaluator.run(key)


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
    run_all: Run = run_one_by_one,
) -> Results:
    """Score methods on one phase of a feature table.

    Args:
        table: The features.
        split: Base and novel classes of the phases.
        phase: "validation", or "test", which is written down in ``results/test-reads.jsonl``.
        methods: Names from `cpaan.methods.registry`.
        config: Shots, draws, seeds, heads and their settings.
        settings: How methods are trained, by name; by default as their rows recommend. That of PN
            is the embedding of all methods that work in one.
        cosine_table: The same rows by a backbone that was trained with a cosine classifier; their
            order is put right by `cpaan.data.table.align_rows`.
        checkpoints: A folder to keep trainings in, and to take them up again from.
        shot_rows: Explicit draws, shape (draws, novel classes, shots); otherwise seeded ones.
        device: Where to compute.
        allow_trained_novel: Whether novel classes may be among those of the backbone.
        progress: Called with a line about what is being done.
        run_all: How the parts are run; see `cpaan.evaluation.parallel` for several at a time.

    Raises:
        ValueError: If the data cannot serve the phase, or a method is unknown.
    """
    config = config or EvaluationConfig()
    run = describe_run()
    tables = {FEATURES: table}
    if cosine_table is not None:
        tables[COSINE_FEATURES] = _align_cosine(cosine_table, table)
    methods = expand_methods(methods, tables)
    given = settings or {}
    used = {name: given.get(name, ROWS[name].config) for name in methods}
    for each in tables.values():
        check_phase(each, split, phase, allow_trained_novel=allow_trained_novel)
    if shot_rows is None:
        shot_rows = draw_phase(table, split, phase, config)
    else:
        check_shots(shot_rows, table, split.phase(phase), max(config.shots))
        config = config.with_overrides({"num_draws": len(shot_rows)})
    embedding = given.get(PN, EmbeddingConfig())
    assert isinstance(embedding, EmbeddingConfig), "checked with the row of PN"
    plan = Plan(phase, config, used, shot_rows, str(device), embedding, checkpoints)
    num_rows = {name: len(table.rows_of(name, TRAIN)) for name in split.base_classes(phase)}
    for name in methods:
        try:
            check_method(name, used[name], config, num_rows, table.num_dims, plan.embedding)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if phase == TEST_PHASE:
        count_test_reads(table.fingerprint)  # a damaged log is found before the work, not after
        if plan.chooses_on_validation:
            _check_validation(table, split, config)
        record_test_read(table.fingerprint)
        if cosine_table is not None and any(
            ROWS[name].features == COSINE_FEATURES for name in methods
        ):
            record_test_read(cosine_table.fingerprint)

    outcomes = dict(run_all(plan, Evaluator(plan, tables, split, progress)))
    failed = {
        key.method: f"with seed {key.seed}, {outcome}"
        for key, outcome in outcomes.items()
        if isinstance(outcome, ValueError)
    }
    # In the order of the plan, whichever came first.
    found = {
        key: part
        for key in plan.keys
        if key.method not in failed and isinstance(part := outcomes[key], Part)
    }
    if not found:
        raise ValueError("; ".join(f"{name}: {reason}" for name, reason in failed.items()))
    parts = list(found.values())
    everything = pd.concat([part.scores for part in parts], ignore_index=True)
    chosen = everything
    if plan.chooses_on_validation:
        chosen = pd.concat([part.validation for part in parts], ignore_index=True)
    priors = best_priors(chosen)
    scores = with_priors(everything, priors)
    scores.insert(2, "phase", phase)
    has_embedding = any(ROWS[name].is_embedded for name in methods)
    origins = {f"{key.method}, seed {key.seed}": part.origin for key, part in found.items()}
    counts = [len(table.rows_of(name, TEST)) for name in split.phase(phase).base]
    novel_counts = [len(table.rows_of(name, TEST)) for name in split.phase(phase).novel]
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
        "classes": {"base": len(counts), "novel": len(novel_counts)},
        "queries": sum(counts) + sum(novel_counts),
    }
    if phase == TEST_PHASE:
        about["test_reads"] = count_test_reads(table.fingerprint)
    heads = best_heads(chosen) if phase == VALIDATION_PHASE or plan.chooses_on_validation else None
    diversity = pd.concat([part.diversity for part in parts], ignore_index=True)
    return Results(scores[RESULT_COLUMNS], diversity, priors, heads, about)


def _check_validation(table: FeatureTable, split: Split, config: EvaluationConfig) -> None:
    """Refuse data whose validation phase cannot serve to choose priors and heads."""
    try:
        # Nothing is claimed of these scores, so the backbone may know the classes.
        check_phase(table, split, VALIDATION_PHASE, allow_trained_novel=True)
        draw_phase(table, split, VALIDATION_PHASE, config)
    except ValueError as error:
        raise ValueError(
            f"priors are chosen on the validation phase, but {error} "
            "(--set prior=0.8 does without that phase)"
        ) from error


def _align_cosine(cosine_table: FeatureTable, table: FeatureTable) -> FeatureTable:
    """Return cosine-trained features in the order of the others; refuse those of other examples."""
    try:
        return align_rows(cosine_table, table)
    except ValueError as error:
        raise ValueError(f"the cosine-trained features are of other rows: {error}") from error


def to_records(frame: pd.DataFrame) -> Any:
    """Return a dictionary for each row, for JSON, which has None and no NaN."""
    return json.loads(frame.to_json(orient="records", double_precision=12))

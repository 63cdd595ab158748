"""The whole benchmark: methods, draws and seeds in, one table of scores out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from cpaan.augmentation import mean_pairwise_distance, num_synthetic_of
from cpaan.config import EvaluationConfig, TrainConfig
from cpaan.evaluation import PRIORS, score
from cpaan.features import TRAIN, FeatureTable
from cpaan.files import write_whole
from cpaan.gans import GANS, check_objective
from cpaan.methods import CONTROLS, Augmented, Progress, check_methods, make_method
from cpaan.neighbours import check_neighbours
from cpaan.priors import best_priors, in_order, with_priors
from cpaan.provenance import count_test_reads, describe_run
from cpaan.randomness import new_rng
from cpaan.splits import TEST_PHASE, VALIDATION_PHASE, ShotRows, Split, check_shots, draw_shots
from cpaan.summary import summarise
from cpaan.tasks import LowShotTask, Queries, check_phase, read_phase
from cpaan.training_data import check_training

RESULT_COLUMNS = ["method", "head", "phase", "column", "shots", "draw", "seed", "top1", "top5"]
DIVERSITY_COLUMNS = ["method", "shots", "draw", "seed", "distance", "ratio"]

_DRAWS_AT_ONCE = 5  # bounds the memory of synthetic examples, however many draws there are


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
    about: dict[str, Any]

    def write(self, folder: Path) -> None:
        """Write results.csv, results.json and accuracy.svg, each whole or not at all."""
        # Here, because matplotlib takes half a second, and every process of a study starts with us.
        from cpaan.figures import draw_accuracy

        write_whole(folder / "results.csv", self.scores.to_csv(index=False))
        write_whole(folder / "accuracy.svg", draw_accuracy(self.scores))
        content = {
            **self.about,
            "diversity": to_records(self.diversity),
            "priors": to_records(self.priors),
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
    training: TrainConfig | None = None,
    checkpoints: Path | None = None,
    shot_rows: ShotRows | None = None,
    device: str | torch.device = "cpu",
    allow_trained_novel: bool = False,
    progress: Progress = lambda message: None,
) -> Results:
    """Score methods on one phase of a feature table.

    Args:
        table: The features.
        split: Base and novel classes of the phases.
        phase: "validation", or "test", which is written down in ``results/test-reads.jsonl``.
        methods: Names from `cpaan.methods`.
        config: Shots, draws, seeds, heads and their settings.
        training: How GANs are trained.
        checkpoints: A folder to keep trained GANs in, and to take them up again from.
        shot_rows: Explicit draws, shape (draws, novel classes, shots); otherwise seeded ones.
        device: Where to compute.
        allow_trained_novel: Whether novel classes may be among those of the backbone.
        progress: Called with a line about what is being done.

    Raises:
        ValueError: If the data cannot serve the phase, or a method is unknown.
    """
    config = config or EvaluationConfig()
    training = training or TrainConfig()
    run = describe_run()
    check_methods(list(methods))
    check_phase(table, split, phase, allow_trained_novel=allow_trained_novel)
    _check_settings(table, split.base_classes(phase), methods, config, training)
    if shot_rows is None:
        shot_rows = draw_phase(table, split, phase, config)
    else:
        check_shots(shot_rows, table, split.phase(phase), max(config.shots))
        config = config.with_overrides({"num_draws": len(shot_rows)})
    runs = _make_methods(methods, config, training, checkpoints, progress)

    fixed_priors = None
    if phase == TEST_PHASE:
        count_test_reads(table.fingerprint)  # a damaged log is found before the work, not after
        if config.prior is None:
            progress("choosing priors on the validation phase")
            fixed_priors = _priors_of_validation(table, split, runs, config, device, progress)

    task, queries = read_phase(
        table, split, phase, shot_rows, sorted(config.shots), torch.device(device)
    )
    everything, diversity = _run_all(runs, task, queries, config, progress)
    if fixed_priors is None:
        fixed_priors = best_priors(everything)
    scores = with_priors(everything, fixed_priors)
    scores.insert(2, "phase", phase)
    origins = {f"{name}, seed {seed}": method.origin for (name, seed), method in runs.items()}
    about = {
        "run": {**run, "device": str(device)},
        "config": config.to_dict(),
        "training": training.to_dict() if any(name in GANS for name in methods) else None,
        "went_on_from": {run: origin for run, origin in origins.items() if origin is not None},
        "phase": phase,
        "methods": list(methods),
        "features": {
            "fingerprint": table.fingerprint,
            "backbone": table.backbone,
            "rows": len(table.labels),
            "dimensions": table.num_dims,
        },
        "classes": {"base": task.num_base, "novel": task.num_novel},
        "queries": len(queries.labels),
    }
    if phase == TEST_PHASE:
        about["test_reads"] = count_test_reads(table.fingerprint)
    return Results(scores[RESULT_COLUMNS], diversity, fixed_priors, about)


def _check_settings(
    table: FeatureTable,
    base_classes: Sequence[str],
    methods: Sequence[str],
    config: EvaluationConfig,
    training: TrainConfig,
) -> None:
    """Refuse settings that do not suit the base classes before any work is done."""
    counts = torch.tensor([len(table.rows_of(name, TRAIN)) for name in base_classes])
    gans = [GANS[name] for name in methods if name in GANS]
    for gan in gans:
        check_training(training, counts, table.num_dims, with_covariances=gan.has_covariance)
        check_objective(gan, training)
    translations = [CONTROLS[name] for name in methods if name in CONTROLS]
    if any(translations):
        check_neighbours(config, len(base_classes))
    if gans or any(translations):
        num_synthetic_of(counts, max(config.shots), config)


def _make_methods(
    names: Sequence[str],
    config: EvaluationConfig,
    training: TrainConfig,
    checkpoints: Path | None,
    progress: Progress,
) -> dict[tuple[str, int], Augmented]:
    """Return a method for each name and seed."""
    seeds = range(config.seed, config.seed + config.num_seeds)
    return {
        (name, seed): make_method(
            name,
            config,
            training,
            checkpoint=None if checkpoints is None else checkpoints / f"{name}-seed{seed}.pt",
            progress=progress,
        )
        for name in names
        for seed in seeds
    }


def draw_phase(table: FeatureTable, split: Split, phase: str, config: EvaluationConfig) -> ShotRows:
    """Draw the shots of a phase by the configured seed."""
    return draw_shots(
        table,
        split.phase(phase),
        num_draws=config.num_draws,
        max_shots=max(config.shots),
        seed=config.draw_seed,
    )


def _priors_of_validation(
    table: FeatureTable,
    split: Split,
    runs: Mapping[tuple[str, int], Augmented],
    config: EvaluationConfig,
    device: str | torch.device,
    progress: Progress,
) -> pd.DataFrame:
    """Run the same methods on the validation phase, for the priors alone."""
    try:
        # Nothing is claimed of these scores, so the backbone may know the classes.
        check_phase(table, split, VALIDATION_PHASE, allow_trained_novel=True)
        shot_rows = draw_phase(table, split, VALIDATION_PHASE, config)
    except ValueError as error:
        raise ValueError(
            f"priors are chosen on the validation phase, but {error} "
            "(--set prior=0.8 does without that phase)"
        ) from error
    task, queries = read_phase(
        table, split, VALIDATION_PHASE, shot_rows, sorted(config.shots), torch.device(device)
    )
    everything, _ = _run_all(runs, task, queries, config, lambda message: progress(f"  {message}"))
    return best_priors(everything)


def _run_all(
    runs: Mapping[tuple[str, int], Augmented],
    task: LowShotTask,
    queries: Queries,
    config: EvaluationConfig,
    progress: Progress,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fit and score every method; return scores with all priors, and diversities."""
    parts = [
        run_method(name, method, seed, task, queries, config, progress)
        for (name, seed), method in runs.items()
    ]
    scores, diversities = zip(*parts, strict=True)
    return pd.concat(scores, ignore_index=True), pd.concat(diversities, ignore_index=True)


def run_method(
    name: str,
    method: Augmented,
    seed: int,
    task: LowShotTask,
    queries: Queries,
    config: EvaluationConfig,
    progress: Progress = lambda message: None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Fit one method with one seed, some draws at a time, and score it.

    Args:
        name: Of the method, in the table.
        method: What to fit.
        seed: Of its training.
        task: All problems.
        queries: Of the same phase.
        config: The number of draws, and the prior if it is fixed.
        progress: Called with a line for some draws.

    Returns:
        Scores with every prior there is (see `cpaan.priors`), and diversities.
    """
    real_diversity = _real_diversity(task, queries)
    diversities = []
    priors = PRIORS if config.prior is None else (config.prior,)
    rows = []
    for first in range(0, config.num_draws, _DRAWS_AT_ONCE):
        draws = range(first, min(first + _DRAWS_AT_ONCE, config.num_draws))
        progress(f"{name}, seed {seed}: draws {first + 1} to {draws.stop} of {config.num_draws}")
        part = replace(task, problems=tuple(p for p in task.problems if p.draw in draws))
        # Every method gets the same stream: controls that draw alike then draw the same.
        method.fit(part, new_rng(seed))
        if method.diversity is not None:
            diversities += [
                {
                    "method": name,
                    "shots": problem.num_shots,
                    "draw": problem.draw,
                    "seed": seed,
                    "distance": float(distances.mean()),
                    "ratio": float((distances / real_diversity).mean()),
                }
                for problem, distances in zip(part.problems, method.diversity, strict=True)
            ]
        rows += [
            {
                "method": name,
                "head": entry.head,
                "column": entry.column,
                "shots": entry.problem.num_shots,
                "draw": entry.problem.draw,
                "seed": seed,
                "prior": entry.prior,
                "top1": entry.top1,
                "top5": entry.top5,
            }
            for entry in score(method, part, queries, priors)
        ]
    frame = pd.DataFrame(rows)
    frame = frame.sort_values(["head", "column", "prior", "shots", "draw"], key=in_order)
    return frame, pd.DataFrame(diversities, columns=DIVERSITY_COLUMNS)


def _real_diversity(task: LowShotTask, queries: Queries) -> Tensor:
    """Return the mean distance of two queries of each novel class, shape (N,)."""
    labels = range(task.num_base, task.num_base + task.num_novel)
    return torch.stack(
        [mean_pairwise_distance(queries.features[queries.labels == label]) for label in labels]
    )


def to_records(frame: pd.DataFrame) -> Any:
    """Return a dictionary for each row, for JSON, which has None and no NaN."""
    return json.loads(frame.to_json(orient="records", double_precision=12))

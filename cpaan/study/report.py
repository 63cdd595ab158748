"""The report: the best configuration, trained anew, on the classes that the search never saw."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import ray
import torch

from cpaan.benchmark import draw_phase, run_method, to_records
from cpaan.config import EvaluationConfig, TrainConfig
from cpaan.methods import CONTROLS, Augmented, make_method
from cpaan.priors import best_priors, with_priors
from cpaan.provenance import count_test_reads, describe_run, record_test_read
from cpaan.splits import TEST_PHASE, ShotRows
from cpaan.study.cluster import Cluster
from cpaan.study.fleet import JobFailedError, collect, start
from cpaan.study.folder import Study
from cpaan.study.job import NUM_THREADS, load_method, read_validation
from cpaan.study.machines import check_machines
from cpaan.study.records import BEST, OPTUNA, read_json
from cpaan.study.searcher import open_study, settled_of
from cpaan.study.space import Settled
from cpaan.study.tables import Tables, make_tables
from cpaan.study.trial import Trial
from cpaan.tasks import check_phase, read_phase

FOLDER = "report"
_FEWEST_SEEDS = 3
_SEEDED_DRAWS = 1  # what is added to the seed of the fixed draws


@dataclass(frozen=True)
class Row:
    """A row of the table: a method, its settings, and the seeds that it is trained with."""

    name: str
    method: str
    settled: Settled
    seeds: tuple[int, ...]
    trial: int | None = None
    """Whose settings these are; None where nothing is trained."""

    @property
    def is_control(self) -> bool:
        """Whether nothing is trained."""
        return self.trial is None

    def describe(self) -> dict[str, Any]:
        """Return it for JSON."""
        training = None if self.is_control else self.settled.training.to_dict()
        return {
            "name": self.name,
            "method": self.method,
            "trial": self.trial,
            "seeds": list(self.seeds),
            "training": training,
            "evaluation": self.settled.evaluation.to_dict(),
        }


@dataclass(frozen=True)
class ReportSettings:
    """What a report does beyond the study's own settings."""

    num_seeds: int = 3
    """Trainings of a configuration, none of which the search has seen."""
    num_fixed_draws: int = 5
    num_seeded_draws: int = 50
    heads: tuple[str, ...] = ()
    """Classifiers; none: the one of the search."""

    def __post_init__(self) -> None:
        if self.num_seeds < _FEWEST_SEEDS:
            raise ValueError(f"a report needs {_FEWEST_SEEDS} seeds at least, got {self.num_seeds}")


def rows_of(study: Study, best: dict[str, Any], settings: ReportSettings) -> list[Row]:
    """Return what the report compares: the controls, the paper's point of the search, the best.

    A method of a later study is another row here; nothing below asks which methods there are.
    """
    config = study.config
    first = config.seed + config.num_final_seeds  # after those that chose the best
    seeds = tuple(range(first, first + settings.num_seeds))
    default = Settled(study.training, study.evaluation)
    rows = [Row(name, name, default, seeds[:1]) for name in CONTROLS]
    chosen = Settled(TrainConfig(**best["training"]), EvaluationConfig(**best["evaluation"]))
    if best["trial"] != 0:
        trials = open_study(study.folder / OPTUNA, config).get_trials(deepcopy=False)
        paper = settled_of(trials[0])
        rows.append(Row(f"{config.method}, trial 0", config.method, paper, seeds, 0))
    number = best["trial"]
    rows.append(Row(f"{config.method}, best", config.method, chosen, seeds, number))
    return rows


def make_report(
    study: Study,
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings | None = None,
    fixed_rows: ShotRows | None = None,
) -> tuple[Tables, dict[str, str]]:
    """Train and evaluate every row on the test phase, and write what was found.

    Args:
        study: With a ``best.json``.
        cluster: Where the work is done.
        say: Called with a line about it.
        settings: How much of it.
        fixed_rows: The fixed draws, shape (draws, novel classes, shots); by default seeded.

    Returns:
        The tables; and for each row that they lack, why it could not be trained.

    Raises:
        ValueError: If the study has no result, the data cannot serve the test phase, or the best
            itself could not be trained.
    """
    settings = settings or ReportSettings()
    best = read_json(study.folder, BEST)
    table, split = study.data.open(), study.data.split
    check_phase(table, split, TEST_PHASE)
    cluster.check(study.config)
    check_machines(study.storage, say)
    heads = settings.heads or (study.config.head,)
    rows = rows_of(study, best, settings)
    draws = _draw(study, settings, fixed_rows)
    num_fixed = len(draws) - settings.num_seeded_draws
    run = describe_run()
    count_test_reads(table.fingerprint)  # a damaged log is found before the work, not after
    record_test_read(table.fingerprint)

    say(
        f"test phase: {len(rows)} rows, {num_fixed} fixed and {settings.num_seeded_draws} seeded "
        f"draws, {settings.num_seeds} new seeds for each trained row"
    )
    work = {
        (row.name, seed): partial(_start, study, row, seed, heads, draws)
        for row in rows
        for seed in row.seeds
    }
    found, failed = {}, {}
    results = collect(work, cluster.most_trials_at_once(study.config))
    for done, (key, frames) in enumerate(results, start=1):
        name, seed = key
        if isinstance(frames, JobFailedError):
            failed[name] = f"{name} has no scores: with seed {seed}, {frames}"
            say(f"{failed[name]} ({done} of {len(work)})")
        else:
            found[key] = frames
            say(f"{name}, seed {seed} ({done} of {len(work)})")
    if rows[-1].name in failed:
        raise ValueError(failed[rows[-1].name])
    rows = [row for row in rows if row.name not in failed]
    scores, diversity, priors = (
        pd.concat([found[key][part] for key in work if key[0] not in failed], ignore_index=True)
        for part in range(3)
    )
    tables = make_tables(
        scores,
        num_fixed=num_fixed,
        best=rows[-1].name,
        paper=next((row.name for row in rows[:-1] if row.trial == 0), None),
        is_best_paper=rows[-1].trial == 0,
    )
    about = {
        "run": run,
        "study": study.describe(),
        "settings": {**vars(settings), "heads": list(heads)},
        "phase": TEST_PHASE,
        "best": best,
        "rows": [row.describe() for row in rows],
        "failed": failed,
        "best_minus_trial_0": tables.gains,
        "test_reads": count_test_reads(table.fingerprint),
        "nodes": list(cluster.nodes),
    }
    _write(study, tables, about, scores, diversity, priors)
    return tables, failed


def _start(
    study: Study, row: Row, seed: int, heads: tuple[str, ...], draws: ShotRows
) -> "ray.ObjectRef[Any]":
    number = row.trial or 0  # a control is nobody's trial
    job = study.job(number, row.settled, seed)
    wanted = {"heads": heads, "prior": row.settled.evaluation.prior}
    job = replace(job, evaluation=job.evaluation.with_overrides(wanted))
    trial = Trial(number, job, study.config)
    return start(_evaluate, trial, row, draws, retrains=not row.is_control)


def _draw(study: Study, settings: ReportSettings, fixed_rows: ShotRows | None) -> ShotRows:
    """Return fixed draws, then seeded ones."""
    config, table = study.evaluation, study.data.open()

    def draw(count: int, seed: int) -> ShotRows:
        wanted = config.with_overrides({"num_draws": count, "draw_seed": seed})
        return draw_phase(table, study.data.split, TEST_PHASE, wanted)

    if fixed_rows is None:
        fixed_rows = draw(settings.num_fixed_draws, config.draw_seed)
    seeded = draw(settings.num_seeded_draws, config.draw_seed + _SEEDED_DRAWS)
    return np.concatenate([fixed_rows[..., : max(config.shots)], seeded])


def _evaluate(
    trial: Trial, device: torch.device, row: Row, draws: ShotRows
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return scores, diversities and priors of one row with one seed, on the test phase."""
    torch.set_num_threads(NUM_THREADS)
    job, config = trial.job, trial.job.evaluation
    task, queries = read_validation(job, device)
    method: Augmented
    if row.is_control:
        method = make_method(row.method, config, job.training)
    else:
        method = load_method(job, task)
    everything, _ = run_method(row.name, method, job.seed, task, queries, config)
    priors = best_priors(everything)

    task, queries = read_phase(
        job.data.open(),
        job.data.split,
        TEST_PHASE,
        draws,
        sorted(config.shots),
        device,
        is_noted=True,
    )
    of_test = config.with_overrides({"num_draws": len(draws)})
    everything, diversity = run_method(row.name, method, job.seed, task, queries, of_test)
    return with_priors(everything, priors), diversity, priors.assign(seed=job.seed)


def _write(
    study: Study,
    tables: Tables,
    about: dict[str, Any],
    scores: pd.DataFrame,
    diversity: pd.DataFrame,
    priors: pd.DataFrame,
) -> None:
    """Write the tables and all that they were made of."""
    records = study.records
    records.write(f"{FOLDER}/report.md", tables.markdown(about))
    records.write(f"{FOLDER}/table.csv", tables.cells.to_csv(index=False))
    records.write(f"{FOLDER}/table.tex", tables.latex())
    buffer = io.BytesIO()
    scores.to_parquet(buffer, index=False)
    records.write(f"{FOLDER}/scores.parquet", buffer.getvalue())
    content = {
        **about,
        "cells": to_records(tables.cells),
        "diversity": to_records(diversity),
        "priors": to_records(priors),
    }
    records.write_json(f"{FOLDER}/report.json", content)

"""Make the report: retrain the best configuration of each row and score it on the test classes."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import ray
import torch

from cpaan.core.provenance import count_test_reads, describe_run, record_test_read
from cpaan.data.splits import TEST_PHASE, ShotRows
from cpaan.evaluation.parts import Outcome, Part, PartKey
from cpaan.evaluation.runner import to_records
from cpaan.evaluation.scoring import draw_phase
from cpaan.gan.config import TrainConfig
from cpaan.gan.gans import GANS
from cpaan.gan.spiral import SPIRAL_CONFIG, draw_points, run_spiral, to_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN
from cpaan.protocol.config import HEADS, OWN
from cpaan.protocol.priors import best_heads, best_priors
from cpaan.protocol.tasks import check_phase
from cpaan.report.page.contents import DEFAULT, REPORT
from cpaan.report.page.page import FIGURES, FINDINGS, INDEX, write_page
from cpaan.report.study_tables import Tables, make_cells, make_tables, table_page
from cpaan.report.table_one import TableOne, tables_of
from cpaan.study.ablations import ablations_of_best, ablations_of_table
from cpaan.study.cluster import Cluster, check_machines
from cpaan.study.job import NUM_THREADS
from cpaan.study.report_rows import MeasuredRow, ReportSettings, rows_of
from cpaan.study.study import Study
from cpaan.study.worker_pool import PoolJob, measure, part_cache

_SEEDED_DRAWS = 1  # added to the seed of the fixed draws
_MOST_LETTERS = 300  # shown of an error message of Ray, which ends with the cause


class Measured(NamedTuple):
    """The results of all rows."""

    frames: dict[str, pd.DataFrame]
    """Tables by name: scores, diversity, priors, heads, spectra and projections."""
    failed: dict[str, str]
    """Reasons why rows have no scores, by name."""
    earlier: list[dict[str, Any]]
    """Interrupted commands, and the parts that each has measured."""
    seconds: float


def make_report(
    study: Study,
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings | None = None,
    fixed_rows: ShotRows | None = None,
) -> tuple[str, dict[str, str]]:
    """Train and evaluate the rows of a study on the test phase, and write the report.

    Args:
        study: A study whose searches all have a result.
        cluster: The Ray cluster to use.
        say: Called with a line about the current work.
        settings: The size of the report.
        fixed_rows: The fixed draws, shape (draws, novel classes, shots); seeded by default.

    Returns:
        The headline, and the reason for each row without scores.

    Raises:
        ValueError: If a search has no result, the data does not suit the test phase, or no row
            could be trained.
        WorkLostError: If machines or processes failed too often; finished parts stay cached.
    """
    settings = settings or ReportSettings()
    rows = rows_of(study, settings)
    is_single = not study.has_row_folders
    heads = settings.heads or _default_heads(study)
    missing = {ROWS[row.method].head for row in rows} - {*heads, OWN}
    if missing and not is_single:
        raise ValueError(f"the paper's table also needs --heads {','.join(sorted(missing))}")
    extra: list[MeasuredRow] = []
    spiral = None
    if not settings.is_table_only:
        seeds = settings.num_ablation_seeds
        extra = ablations_of_best(rows[-1], seeds) if is_single else ablations_of_table(rows, seeds)
        # The spiral runs in parallel with the rows, because it is small and needs no GPU.
        spiral = ray.remote(num_cpus=1)(_spiral).remote(SPIRAL_CONFIG)
    draws = _draw(study, settings, fixed_rows)
    num_fixed = len(draws) - settings.num_seeded_draws
    jobs = {job.part.key: job for job in _jobs(study, [*rows, *extra], heads, settings, draws)}
    say(
        f"evaluating {len(rows) + len(extra)} rows on the test phase: {num_fixed} fixed and "
        f"{settings.num_seeded_draws} seeded draws, {settings.num_seeds} new seeds for each "
        "trained row"
    )
    found = _measure(study, jobs, [*rows, *extra], cluster, say)
    if is_single and rows[-1].name in found.failed:
        raise ValueError(found.failed[rows[-1].name])
    rows = [row for row in rows if row.name not in found.failed]
    if not rows:
        raise ValueError("; ".join(found.failed.values()))
    drawn = None if spiral is None else _result_of(spiral, say)
    about: dict[str, Any] = {
        "run": describe_run(),
        "settings": {**vars(settings), "heads": list(heads)},
        "phase": TEST_PHASE,
        "rows": [row.describe() for row in [*rows, *extra] if row.measured_as not in found.failed],
        "num_fixed": num_fixed,
        "failed": found.failed,
        "earlier": found.earlier,
        "test_reads": count_test_reads(study.rows[0].data.fingerprint),
        "nodes": list(cluster.nodes),
        "cost": {"seconds": found.seconds, "gpu_seconds": found.seconds * cluster.num_gpus},
    }
    say("writing the tables and drawing the page")
    layouts = _layouts(rows, found, num_fixed)
    if is_single:
        tables = _tables_of(rows, found, layouts, num_fixed)
        about |= {
            "study": study.rows[0].describe(),
            "best": study.read_best(study.rows[0]),
            "best_minus_trial_0": tables.gains,
        }
        page, latex, headline = tables.markdown(about), tables.latex(), tables.headline
        cells = tables.cells
    else:
        about |= {
            "studies": {row.method: row.describe() for row in study.rows},
            "best": {row.name: study.read_best(row.source) for row in rows},
        }
        num_seeded = settings.num_seeded_draws
        page = table_page(layouts, about, num_fixed=num_fixed, num_seeded=num_seeded)
        latex = "\n".join(layout.latex for layout in layouts)
        cells, headline = make_cells(found.frames["scores"], num_fixed=num_fixed), ""
    _write(study, page, latex, cells, about, found.frames, drawn)
    cache = part_cache(study.storage)
    for job in jobs.values():
        cache.delete(job.part)
    return headline, found.failed


def _default_heads(study: Study) -> tuple[str, ...]:
    if study.has_row_folders:
        return (*HEADS, OWN)
    head = study.config.head
    # The controls need the other heads, because they have no classifier of their own.
    return (OWN, *HEADS) if head == OWN else (head,)


def _jobs(
    study: Study,
    rows: Sequence[MeasuredRow],
    heads: tuple[str, ...],
    settings: ReportSettings,
    draws: ShotRows,
) -> Iterator[PoolJob]:
    """Yield a job for each row and seed; skip rows that are equal to another row."""
    for row in rows:
        if not ROWS[row.method].heads_among(heads):
            known = ", ".join(ROWS[row.method].heads)
            raise ValueError(f"{row.name} has the heads {known}, got {', '.join(heads)}")
        if row.same_as is not None:
            continue
        head, number, ablation = row.source.config.head, row.trial or 0, row.ablation
        # One head is enough for an ablation.
        own_heads = (head,) if ablation is not None and head in heads else heads
        resolved = row.resolved.with_overrides({"heads": own_heads})
        file = ""
        if ablation is not None:
            label = re.sub("[^a-z0-9]+", "-", ablation.label.lower())
            file = f"trials/{number:04d}-{ablation.family}-{label}"
        for seed in row.seeds:
            job = study.job(row.source, number, resolved, seed, file)
            job = replace(job, method=row.method)
            is_of_table = ablation is None and not settings.is_table_only
            yield PoolJob.of(
                row.name,
                job,
                phase=TEST_PHASE,
                shot_rows=draws,
                scores_validation=True,
                is_illustrated=is_of_table and seed == row.seeds[0],
            )


def _draw(study: Study, settings: ReportSettings, fixed_rows: ShotRows | None) -> ShotRows:
    """Return the fixed draws, followed by the seeded draws."""
    row = study.rows[0]
    config, table = row.evaluation, row.data.open()

    def draw(count: int, seed: int) -> ShotRows:
        wanted = config.with_overrides({"num_draws": count, "draw_seed": seed})
        return draw_phase(table, row.data.split, TEST_PHASE, wanted)

    if fixed_rows is None:
        fixed_rows = draw(settings.num_fixed_draws, config.draw_seed)
    seeded = draw(settings.num_seeded_draws, config.draw_seed + _SEEDED_DRAWS)
    return np.concatenate([fixed_rows[..., : max(config.shots)], seeded])


def _measure(
    study: Study,
    jobs: Mapping[PartKey, PoolJob],
    rows: Sequence[MeasuredRow],
    cluster: Cluster,
    say: Callable[[str], None],
) -> Measured:
    """Run all parts on the cluster, and concatenate their results."""
    started = time.monotonic()
    references = {row.data.fingerprint: row.data for row in study.rows}
    for reference in references.values():
        check_phase(reference.open(), reference.split, TEST_PHASE)
    cluster.check(study.config)
    check_machines(study.storage, say)
    for fingerprint in references:
        count_test_reads(fingerprint)  # refuses a damaged log before the work
        record_test_read(fingerprint)
    outcomes = measure(jobs, study.storage, cluster.most_trials_at_once(study.config), say)
    failed = {
        key.row: f"{key.row} failed with seed {key.seed}: {outcome}"
        for key, outcome in outcomes.items()
        if isinstance(outcome, ValueError)
    }
    parts = [
        _renamed(row, part)
        for row in rows
        for seed in row.seeds
        if row.measured_as not in failed
        and isinstance(part := outcomes[PartKey(row.measured_as, seed)], Part)
    ]
    if not parts:
        raise ValueError("; ".join(failed.values()))
    frames = {
        name: _together([getattr(part, name) for part in parts])
        for name in ("scores", "diversity", "validation", "spectra", "projections")
    }
    frames["heads"] = best_heads(frames.pop("validation"))
    frames["priors"] = _together(
        [best_priors(part.validation).assign(seed=part.scores["seed"][0]) for part in parts]
    )
    return Measured(frames, failed, _earlier(outcomes), time.monotonic() - started)


def _renamed(row: MeasuredRow, part: Part) -> Part:
    """Return the result of a row; if an equal row was measured, under the name of this row."""
    if row.same_as is None:
        return part
    frames = {
        name: getattr(part, name).assign(method=row.name)
        for name in ("scores", "diversity", "validation")
    }
    return part._replace(**frames, spectra=part.spectra[:0], projections=part.projections[:0])


def _together(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    # Leave out empty frames, because their columns have no types.
    return pd.concat([each for each in frames if len(each)] or frames[:1], ignore_index=True)


def _earlier(outcomes: Mapping[PartKey, Outcome]) -> list[dict[str, Any]]:
    """Return the earlier commands that measured parts of this report, with their parts."""
    now = describe_run()["command"]
    found: dict[str, dict[str, Any]] = {}
    for key, part in outcomes.items():
        if isinstance(part, Part) and part.run["command"] != now:
            entry = found.setdefault(part.run["command"], {**part.run, "pieces": {}})
            entry["time"] = max(entry["time"], part.run["time"])
            entry["pieces"].setdefault(key.row, []).append(key.seed)
    return list(found.values())


def _spiral(config: TrainConfig) -> dict[str, Any]:
    """Run the paper's toy experiment with one seed, and return JSON-compatible data."""
    torch.set_num_threads(NUM_THREADS)
    points = draw_points(0)
    outcomes = {name: run_spiral(name, points, config, 0) for name in GANS}
    return to_plain(points, outcomes)


def _result_of(spiral: "ray.ObjectRef[Any]", say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the result of the spiral; None if it failed, because the report can do without."""
    try:
        result: dict[str, Any] = ray.get(spiral)
        json.dumps(result, allow_nan=False)
    except (ray.exceptions.RayError, ValueError) as error:
        say(f"spiral left out, it failed: {' '.join(str(error).split())[-_MOST_LETTERS:]}")
        return None
    return result


def _layouts(rows: Sequence[MeasuredRow], found: Measured, num_fixed: int) -> list[TableOne]:
    """Return Table 1 on the fixed draws, for each rule of heads whose heads were scored."""
    scores, heads = found.frames["scores"], found.frames["heads"]
    methods = {row.name: row.method for row in rows}
    heads = heads[heads["method"].isin(methods)]
    return tables_of(scores[scores["draw"] < num_fixed], methods, heads)


def _tables_of(
    rows: Sequence[MeasuredRow], found: Measured, layouts: list[TableOne], num_fixed: int
) -> Tables:
    """Return the tables of a study with one row: its best, its default, the controls."""
    names, scores = [row.name for row in rows], found.frames["scores"]
    best = rows[-1]
    return make_tables(
        scores[scores["method"].isin(names)],
        num_fixed=num_fixed,
        best=best.name,
        paper=next((row.name for row in rows[:-1] if row.trial == 0), None),
        is_best_paper=best.trial == 0,
        none=next((name for name in names if name in ("none", f"none{IN_PN}")), best.name),
        layouts=layouts,
        trial_0=f"{best.method}, {DEFAULT}",
    )


def _write(
    study: Study,
    page: str,
    latex: str,
    cells: pd.DataFrame,
    about: dict[str, Any],
    frames: dict[str, pd.DataFrame],
    spiral: dict[str, Any] | None,
) -> None:
    """Write the tables, their data and the page."""
    _delete_earlier(study)
    study.write_file(f"{REPORT}/report.md", page)
    study.write_file(f"{REPORT}/table.csv", cells.to_csv(index=False))
    study.write_file(f"{REPORT}/table.tex", latex)
    for name in ("scores", "spectra", "projections"):
        if len(frames[name]):
            study.write_file(f"{REPORT}/{name}.parquet", frames[name].to_parquet(index=False))
    if spiral is not None:
        study.write_json(f"{REPORT}/spiral.json", spiral)
    records = {"cells": cells, **{name: frames[name] for name in ("diversity", "priors", "heads")}}
    records = {name: to_records(frame) for name, frame in records.items()}
    study.write_json(f"{REPORT}/report.json", {**about, **records})
    write_page(study.folder, study.write_file)


def _delete_earlier(study: Study) -> None:
    """Delete optional files of an earlier report, so that the page does not mix two reports.

    ``report.json`` goes first, because it marks the folder as a report.
    """
    figures = (study.folder / FIGURES).glob("*")
    optional = ("report.json", "spectra.parquet", "projections.parquet", "spiral.json")
    names = [*(f"{REPORT}/{name}" for name in optional), FINDINGS, INDEX]
    for name in (*names, *(f"{FIGURES}/{path.name}" for path in figures)):
        study.delete_file(name)

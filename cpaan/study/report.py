"""The report: the best configuration, trained anew, on the classes that the search never saw."""

import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import ray
import torch

from cpaan.core.provenance import count_test_reads, describe_run
from cpaan.data.splits import TEST_PHASE, ShotRows
from cpaan.evaluation.runner import to_records
from cpaan.gan.config import TrainConfig
from cpaan.gan.gans import GANS
from cpaan.gan.spiral import SPIRAL_CONFIG, draw_points, run_spiral, to_plain
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN
from cpaan.protocol.config import HEADS, OWN
from cpaan.report.page.contents import REPORT
from cpaan.report.page.page import FIGURES, FINDINGS, INDEX, write_page
from cpaan.report.study_tables import Tables, make_cells, make_tables, table_page
from cpaan.report.table_one import (
    BY_PAPER,
    BY_VALIDATION,
    TableOne,
    heads_by_paper,
    heads_by_validation,
    make_table_one,
)
from cpaan.study.ablations import ablations_of_best, ablations_of_table
from cpaan.study.cluster import Cluster
from cpaan.study.folder import Study
from cpaan.study.job import NUM_THREADS
from cpaan.study.records import BEST, Records, read_json
from cpaan.study.report_jobs import Found, evaluate_rows
from cpaan.study.report_rows import ReportSettings, Row, rows_of, rows_of_table
from cpaan.study.storage import Storage

FOLDER = REPORT

_DRAWING = "writing the tables and drawing the page"
_MOST_LETTERS = 300  # of an error that Ray tells with all of its circumstances: the cause is last


def make_report(
    study: Study,
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings | None = None,
    fixed_rows: ShotRows | None = None,
) -> tuple[Tables, dict[str, str]]:
    """Train and evaluate every row of a study on the test phase, and write what was found.

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
    rows = rows_of(study, best, settings)
    extra = (
        [] if settings.is_table_only else ablations_of_best(rows[-1], settings.num_ablation_seeds)
    )
    # The controls have no classifier of their own.
    own = study.config.head == OWN
    heads = settings.heads or ((OWN, *HEADS) if own else (study.config.head,))
    found, cost, spiral = _measure([*rows, *extra], heads, cluster, say, settings, fixed_rows)
    if rows[-1].name in found.failed:
        raise ValueError(found.failed[rows[-1].name])
    rows = [row for row in rows if row.name not in found.failed]
    names = [row.name for row in rows]
    tables = make_tables(
        found.scores[found.scores["method"].isin(names)],
        num_fixed=found.num_fixed,
        best=rows[-1].name,
        paper=next((row.name for row in rows[:-1] if row.trial == 0), None),
        is_best_paper=rows[-1].trial == 0,
        none=next((name for name in names if name in ("none", f"none{IN_PN}")), rows[-1].name),
        layouts=_layouts(rows, found),
    )
    if ROWS[study.config.method].gan is None:
        tables = replace(tables, trial_0="the recommended settings")
    about = {
        **_about([*rows, *extra], found, settings, heads, cluster),
        "cost": cost,
        "study": study.describe(),
        "best": best,
        "best_minus_trial_0": tables.gains,
    }
    say(_DRAWING)
    _write(
        study.records, tables.markdown(about), tables.latex(), tables.cells, about, found, spiral
    )
    return tables, found.failed


def make_table_report(
    folder: Path,
    studies: Sequence[Study],
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings | None = None,
    fixed_rows: ShotRows | None = None,
) -> dict[str, str]:
    """Train and evaluate the best of every row on the test phase, and write the paper's table.

    Args:
        folder: Where the table is written.
        studies: One for each row, all of the same data.
        cluster: Where the work is done.
        say: Called with a line about it.
        settings: How much of it.
        fixed_rows: The fixed draws, shape (draws, novel classes, shots); by default seeded.

    Returns:
        For each row that the table lacks, why it could not be trained.

    Raises:
        ValueError: If the data cannot serve the test phase, or no row could be trained.
    """
    settings = settings or ReportSettings()
    rows = rows_of_table(studies, settings)
    heads = settings.heads or (*HEADS, OWN)
    missing = {ROWS[row.method].head for row in rows} - {*heads, OWN}
    if missing:
        raise ValueError(f"the paper's table needs the heads {', '.join(sorted(missing))} too")
    extra = [] if settings.is_table_only else ablations_of_table(rows, settings.num_ablation_seeds)
    found, cost, spiral = _measure([*rows, *extra], heads, cluster, say, settings, fixed_rows)
    rows = [row for row in rows if row.name not in found.failed]
    if not rows:
        raise ValueError("; ".join(found.failed.values()))
    about = {
        **_about([*rows, *extra], found, settings, heads, cluster),
        "cost": cost,
        "studies": {study.config.method: study.describe() for study in studies},
        "best": {row.name: read_json(row.study.folder, BEST) for row in rows},
    }
    layouts = _layouts(rows, found)
    num_seeded = settings.num_seeded_draws
    page = table_page(layouts, about, num_fixed=found.num_fixed, num_seeded=num_seeded)
    cells = make_cells(found.scores, num_fixed=found.num_fixed)
    latex = "\n".join(layout.latex() for layout in layouts)
    say(_DRAWING)
    _write(Records(folder, Storage(str(folder))), page, latex, cells, about, found, spiral)
    return found.failed


def _measure(
    rows: Sequence[Row],
    heads: tuple[str, ...],
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings,
    fixed_rows: ShotRows | None,
) -> tuple[Found, dict[str, float], dict[str, Any] | None]:
    """Return what came of all rows, what it cost, and the spiral unless it is left out."""
    began = time.monotonic()
    # Beside the rows: it is small, and needs no GPU.
    draw_spiral = ray.remote(num_cpus=1)(_spiral)
    spiral = None if settings.is_table_only else draw_spiral.remote(SPIRAL_CONFIG)
    found = evaluate_rows(rows, heads, cluster, say, settings, fixed_rows)
    drawn = None if spiral is None else _result_of(spiral, say)
    seconds = time.monotonic() - began
    num_gpus = sum(node.get("GPU", 0.0) for node in cluster.nodes)
    return found, {"seconds": seconds, "gpu_seconds": seconds * num_gpus}, drawn


def _result_of(spiral: "ray.ObjectRef[Any]", say: Callable[[str], None]) -> dict[str, Any] | None:
    """Return the spiral; None if it came to nothing, which is no reason to lose the rest."""
    try:
        result: dict[str, Any] = ray.get(spiral)
        json.dumps(result, allow_nan=False)
    except (ray.exceptions.RayError, ValueError) as error:
        say(f"the spiral is left out: {' '.join(str(error).split())[-_MOST_LETTERS:]}")
        return None
    return result


def _spiral(config: TrainConfig) -> dict[str, Any]:
    """Return the paper's toy experiment with one seed, for JSON."""
    torch.set_num_threads(NUM_THREADS)
    points = draw_points(0)
    outcomes = {name: run_spiral(name, points, config, 0) for name in GANS}
    return to_plain(points, outcomes)


def _layouts(rows: Sequence[Row], found: Found) -> list[TableOne]:
    """Return the paper's layout by both rules, as far as their heads were scored, fixed draws.

    Ablations have no place there.
    """
    fixed = found.scores[found.scores["draw"] < found.num_fixed]
    methods = {row.name: row.method for row in rows}
    known = set(fixed[["method", "head"]].itertuples(index=False, name=None))
    by_paper = heads_by_paper(methods)
    layouts = []
    if known.issuperset(by_paper.items()):
        layouts.append(make_table_one(fixed, by_paper, methods, BY_PAPER))
    by_validation = heads_by_validation(found.heads[found.heads["method"].isin(methods)])
    layouts.append(make_table_one(fixed, by_validation, methods, BY_VALIDATION))
    return layouts


def _about(
    rows: Sequence[Row],
    found: Found,
    settings: ReportSettings,
    heads: tuple[str, ...],
    cluster: Cluster,
) -> dict[str, Any]:
    return {
        "run": describe_run(),
        "settings": {**vars(settings), "heads": list(heads)},
        "phase": TEST_PHASE,
        "rows": [row.describe() for row in rows if (row.same_as or row.name) not in found.failed],
        "num_fixed": found.num_fixed,
        "failed": found.failed,
        "earlier": found.earlier,
        "test_reads": count_test_reads(rows[0].study.data.fingerprint),
        "nodes": list(cluster.nodes),
    }


def _write(
    records: Records,
    page: str,
    latex: str,
    cells: pd.DataFrame,
    about: dict[str, Any],
    found: Found,
    spiral: dict[str, Any] | None,
) -> None:
    """Write the tables, all that they were made of, and the page to look at."""
    _delete_earlier(records)
    records.write(f"{FOLDER}/report.md", page)
    records.write(f"{FOLDER}/table.csv", cells.to_csv(index=False))
    records.write(f"{FOLDER}/table.tex", latex)
    frames = {"scores": found.scores, "spectra": found.spectra, "projections": found.projections}
    for name, frame in frames.items():
        if len(frame):
            buffer = io.BytesIO()
            frame.to_parquet(buffer, index=False)
            records.write(f"{FOLDER}/{name}.parquet", buffer.getvalue())
    if spiral is not None:
        records.write_json(f"{FOLDER}/spiral.json", spiral)
    content = {
        **about,
        "cells": to_records(cells),
        "diversity": to_records(found.diversity),
        "priors": to_records(found.priors),
        "heads": to_records(found.heads),
    }
    records.write_json(f"{FOLDER}/report.json", content)
    found.parts.delete()
    write_page(records.folder, records.write)


def _delete_earlier(records: Records) -> None:
    """Remove what an earlier report has and this one may not have: a page would mix the two.

    What makes a folder a report goes first.
    """
    figures = (records.folder / FIGURES).glob("*")
    optional = ("report.json", "spectra.parquet", "projections.parquet", "spiral.json")
    names = [*(f"{FOLDER}/{name}" for name in optional), FINDINGS, INDEX]
    for name in (*names, *(f"{FIGURES}/{path.name}" for path in figures)):
        records.delete(name)

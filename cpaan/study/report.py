"""Make the report: retrain the best configuration of each row and score it on the test classes."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import ray
import torch

from cpaan.core.provenance import (
    TEST_READS,
    count_test_reads,
    describe_run,
    record_test_read,
    take_over_test_reads,
)
from cpaan.data.splits import TEST_PHASE, ShotRows
from cpaan.evaluation.job import Job, Part
from cpaan.evaluation.parts import Outcome, PartKey
from cpaan.evaluation.runner import to_records
from cpaan.evaluation.scoring import class_means, draw_phase
from cpaan.gan.config import TrainConfig
from cpaan.gan.gans import GANS
from cpaan.gan.spiral import SPIRAL_CONFIG, draw_points, run_spiral, to_plain
from cpaan.methods.registry import ROWS
from cpaan.protocol.calibration import best_biases, best_heads
from cpaan.protocol.config import HEADS, OWN
from cpaan.protocol.tasks import check_phase
from cpaan.report.ablations import TERMS, WHOLE
from cpaan.report.page.contents import REPORT
from cpaan.report.page.page import FIGURES, FINDINGS, INDEX, write_page
from cpaan.report.study_tables import make_cells, report_page
from cpaan.report.table_one import tables_of
from cpaan.study.cluster import Cluster, check_machines
from cpaan.study.job import NUM_THREADS
from cpaan.study.report_rows import MeasuredRow, ReportSettings, ablations_of, rows_of
from cpaan.study.study import Study
from cpaan.study.worker_pool import cost_of, measure, part_cache

_SEEDED_DRAWS = 1  # added to the seed of the fixed draws
_NUM_DIVERSITY_DRAWS = 5  # of the seeded draws
_ILLUSTRATIONS = ("spectra", "projections")
_MOST_LETTERS = 300  # shown of an error message of Ray, which ends with the cause


def make_report(
    study: Study,
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings | None = None,
    fixed_rows: ShotRows | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Train and evaluate the rows of a study on the test phase, and write the report.

    Args:
        study: A study whose searches all have a result.
        cluster: The Ray cluster to use.
        say: Called with a line about the current work.
        settings: The size of the report.
        fixed_rows: The fixed draws, shape (draws, novel classes, shots); seeded by default.

    Returns:
        The lines of `write_page`, and the reason for each row without scores.

    Raises:
        ValueError: If a search has no result, the data does not suit the test phase, or no
            searched row could be trained.
        WorkLostError: If machines or processes failed too often; finished parts stay cached.
    """
    settings, started = settings or ReportSettings(), time.monotonic()
    table_rows, heads = rows_of(study, settings), settings.heads or _default_heads(study)
    searched = table_rows[-len(study.rows) :]
    rows = [*table_rows, *ablations_of(searched, settings.num_ablation_seeds)]
    spiral = None
    if not settings.is_table_only:
        # The spiral runs in parallel with the rows, because it is small and needs no GPU.
        spiral = ray.remote(num_cpus=1)(_spiral).remote(SPIRAL_CONFIG)
    draws = _draw(study, settings, fixed_rows)
    num_fixed = len(draws) - settings.num_seeded_draws
    jobs = {PartKey(job.row, job.seed): job for job in _jobs(study, rows, heads, settings, draws)}
    say(
        f"evaluating {len(rows)} rows on the test phase: {num_fixed} fixed and "
        f"{settings.num_seeded_draws} seeded draws, {settings.num_seeds} new seeds for each "
        "trained row"
    )
    outcomes = _measure(study, jobs, cluster, say)
    failed = {
        key.row: f"{key.row} failed with seed {key.seed}: {outcome}"
        for key, outcome in outcomes.items()
        if isinstance(outcome, ValueError)
    }
    if all(row.name in failed for row in searched):
        raise ValueError("; ".join(failed.values()))
    measured = [row for row in rows if row.measured_as not in failed]
    frames = _frames_of(outcomes, measured, num_fixed)
    about: dict[str, Any] = {
        "run": describe_run(),
        "settings": {**vars(settings), "heads": list(heads)},
        "phase": TEST_PHASE,
        "rows": [row.describe() for row in measured],
        "num_fixed": num_fixed,
        "backbone": study.rows[0].data.open().backbone,
        "failed": failed,
        "earlier": _earlier(outcomes),
        "test_reads": count_test_reads(study.rows[0].data.fingerprint),
        "nodes": list(cluster.nodes),
        # Seconds of this command, and the work of all parts, by whichever command.
        "cost": {"seconds": time.monotonic() - started, **cost_of(jobs, outcomes, study.config)},
        "studies": {row.method: row.describe() for row in study.rows},
        "best": {row.method: study.read_best(row) for row in study.rows},
    }
    spiral_data = None if spiral is None else _result_of(spiral, say)
    say("writing the tables and drawing the page")
    lines = _write(study, about, frames, spiral_data)
    cache = part_cache(study.storage)
    for job in jobs.values():
        cache.delete(job)
    return lines, failed


def _default_heads(study: Study) -> tuple[str, ...]:
    head = study.config.head
    if len(study.rows) > 1 or head == OWN:  # controls have none
        return (*HEADS, OWN)
    return (head,)


def _jobs(
    study: Study,
    rows: Sequence[MeasuredRow],
    heads: tuple[str, ...],
    settings: ReportSettings,
    draws: ShotRows,
) -> Iterator[Job]:
    """Yield a job for each row and seed; skip rows that are equal to another row.

    Ablations follow their row, because some have the same training, and a resumed report may have
    lost its checkpoint. Searched rows come before all others, which are less important.
    """
    place = {row.name: number for number, row in enumerate(rows)}

    def order(row: MeasuredRow) -> tuple[bool, int]:
        return row.trial is None, place[row.ablation.of if row.ablation else row.name]

    rows = sorted(rows, key=order)
    # Only claims about a table need the diversity of all draws, which takes a third of the time.
    first = len(draws) - settings.num_seeded_draws
    few = range(first, first + _NUM_DIVERSITY_DRAWS) if len(study.rows) == 1 else None
    for row in rows:
        if not ROWS[row.method].heads_among(heads):
            known = ", ".join(ROWS[row.method].heads)
            raise ValueError(f"{row.name} has the heads {known}, got {', '.join(heads)}")
        if row.same_as is not None:
            continue
        head, number, ablation = row.source.config.head, row.trial or 0, row.ablation
        # One head is enough for an ablation, unless a claim is about it.
        is_brief = ablation is not None and ablation.family != TERMS
        own_heads = (head,) if is_brief and head in heads else heads
        resolved = row.resolved.with_overrides({"heads": own_heads})
        file = "" if row.trial is not None else "trials/published"
        if ablation is not None and ablation.key != WHOLE:
            file = f"trials/{number:04d}-{ablation.family}-{ablation.key}"
        for seed in row.seeds:
            is_of_table = ablation is None and not settings.is_table_only
            yield replace(
                study.job(row.source, number, resolved, seed, file),
                row=row.name,
                method=row.method,
                phase=TEST_PHASE,
                draws=draws,
                scores_validation=True,
                is_illustrated=is_of_table and seed == row.seeds[0],
                diversity_draws=few,
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
    jobs: Mapping[PartKey, Job],
    cluster: Cluster,
    say: Callable[[str], None],
) -> dict[PartKey, Outcome]:
    """Run all parts on the cluster, after checks, and record the read of the test phase."""
    references = {row.data.fingerprint: row.data for row in study.rows}
    for reference in references.values():
        check_phase(reference.open(), reference.split, TEST_PHASE)
    cluster.check(study.config)
    check_machines(study.storage, say)
    copy = None if study.copy is None else study.copy / TEST_READS.name
    if copy is not None and copy.is_file():  # of a machine that was replaced
        take_over_test_reads(copy)
    for fingerprint in references:
        count_test_reads(fingerprint)  # refuses a damaged log before the work
        record_test_read(fingerprint)
    if copy is not None:
        copy.write(TEST_READS.read_bytes())
    return measure(jobs, study, cluster.most_trials_at_once(study.config), say)


def _frames_of(
    outcomes: Mapping[PartKey, Outcome], rows: Sequence[MeasuredRow], num_fixed: int
) -> dict[str, pd.DataFrame]:
    """Concatenate the results of rows; those of classes are means over the seeded draws."""
    parts = [
        (row, part)
        for row in rows
        for seed in row.seeds
        if isinstance(part := outcomes[PartKey(row.measured_as, seed)], Part)
    ]
    # An ablation that changes nothing has the results of its row under its own name.
    frames = {
        name: _together([getattr(part, name).assign(method=row.name) for row, part in parts])
        for name in ("scores", "diversity", "validation")
    }
    frames["heads"] = best_heads(frames.pop("validation"))
    biases = [
        best_biases(part.validation).assign(method=row.name, seed=part.scores["seed"][0])
        for row, part in parts
    ]
    of_table = [part for row, part in parts if row.ablation is None]
    scores, novel = frames["scores"], rows[0].source.data.split.phase(TEST_PHASE).novel
    return {
        **frames,
        "scores": scores.drop(columns="by_class"),
        "classes": class_means(scores[scores["draw"] >= num_fixed], novel),
        "biases": _together(biases),
        **{name: _together([getattr(part, name) for part in of_table]) for name in _ILLUSTRATIONS},
    }


def _together(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    # Leave out empty frames, because their columns have no types.
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)


def _earlier(outcomes: Mapping[PartKey, Outcome]) -> list[dict[str, Any]]:
    """Return the earlier commands that measured parts of this report, with their parts."""
    now = describe_run()["command"]
    commands: dict[str, dict[str, Any]] = {}
    for key, part in outcomes.items():
        if isinstance(part, Part) and part.run["command"] != now:
            run = {name: part.run[name] for name in ("command", "commit", "time")}
            entry = commands.setdefault(part.run["command"], {**run, "pieces": {}})
            entry["time"] = max(entry["time"], part.run["time"])
            entry["pieces"].setdefault(key.row, []).append(key.seed)
    return list(commands.values())


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


def _write(
    study: Study,
    about: dict[str, Any],
    frames: dict[str, pd.DataFrame],
    spiral: dict[str, Any] | None,
) -> list[str]:
    """Write the tables, their data and the page; return the lines of `write_page`."""
    _delete_earlier(study)
    # Table 1 is of the fixed draws, by each rule of heads whose heads were scored.
    methods = {row["name"]: row["method"] for row in about["rows"] if row["ablation"] is None}
    fixed = frames["scores"][frames["scores"]["draw"] < about["num_fixed"]]
    layouts = tables_of(fixed, methods, frames["heads"])
    study.write_file(f"{REPORT}/report.md", report_page(study.folder.name, layouts, about))
    cells = make_cells(frames["scores"], about["num_fixed"])
    study.write_file(f"{REPORT}/table.csv", cells.to_csv(index=False))
    study.write_file(f"{REPORT}/table.tex", "\n".join(layout.latex for layout in layouts))
    for name in ("scores", "classes", *_ILLUSTRATIONS):
        if len(frames[name]):
            study.write_file(f"{REPORT}/{name}.parquet", frames[name].to_parquet(index=False))
    if spiral is not None:
        study.write_json(f"{REPORT}/spiral.json", spiral)
    records = {name: to_records(frames[name]) for name in ("diversity", "biases", "heads")}
    study.write_json(f"{REPORT}/report.json", {**about, **records})
    return write_page(study.folder, study.write_file)


def _delete_earlier(study: Study) -> None:
    """Delete optional files of an earlier report, so that the page does not mix two reports.

    ``report.json`` goes first, because it marks the folder as a report.
    """
    figures = [f"{FIGURES}/{path.name}" for path in (study.folder / FIGURES).glob("*")]
    files = ["report.json", "spiral.json"]
    files += [f"{name}.parquet" for name in ("classes", *_ILLUSTRATIONS)]
    for name in (*(f"{REPORT}/{file}" for file in files), FINDINGS, INDEX, *figures):
        study.delete_file(name)

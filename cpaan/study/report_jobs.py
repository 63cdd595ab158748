"""The rows of a report, trained anew and scored on the test phase, on Ray."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import ray
import torch

from cpaan.core.provenance import count_test_reads, record_test_read
from cpaan.data.splits import TEST_PHASE, ShotRows
from cpaan.evaluation.scoring import draw_phase, run_method
from cpaan.methods.registry import ROWS, num_episodes_of
from cpaan.protocol.priors import best_heads, best_priors, with_priors
from cpaan.protocol.tasks import check_phase, read_phase
from cpaan.report.illustration import Illustration, illustrate
from cpaan.report.page.contents import Ablation
from cpaan.study.cluster import Cluster
from cpaan.study.fleet import JobFailedError, WorkLostError, collect, start
from cpaan.study.folder import Study
from cpaan.study.job import NUM_THREADS, load_method, new_method, read_validation
from cpaan.study.machines import check_machines
from cpaan.study.report_parts import Parts, Piece, RowResult, describe_earlier
from cpaan.study.report_rows import ReportSettings, Row
from cpaan.study.trial import Trial

_SEEDED_DRAWS = 1  # what is added to the seed of the fixed draws


class Found(NamedTuple):
    """What came of all rows."""

    scores: pd.DataFrame
    diversity: pd.DataFrame
    priors: pd.DataFrame
    heads: pd.DataFrame
    spectra: pd.DataFrame
    projections: pd.DataFrame
    failed: dict[str, str]
    num_fixed: int
    """The first so many draws are the fixed ones."""
    earlier: list[dict[str, Any]]
    """Commands that were stopped, and what of this they have measured."""
    parts: Parts
    """The same, row by row; to be deleted when the report is written."""


def evaluate_rows(
    rows: Sequence[Row],
    heads: tuple[str, ...],
    cluster: Cluster,
    say: Callable[[str], None],
    settings: ReportSettings,
    fixed_rows: ShotRows | None,
) -> Found:
    """Train and evaluate rows on the test phase, as many at a time as there is room for.

    What an earlier call has measured before it was stopped is not measured again.

    Raises:
        ValueError: If the data cannot serve the test phase.
        WorkLostError: If machines or processes failed more often than is forgiven; after all else
            was measured.
    """
    for row in rows:
        if not ROWS[row.method].heads_among(heads):
            known = ", ".join(ROWS[row.method].heads)
            raise ValueError(f"{row.name} has the heads {known}, got {', '.join(heads)}")
    study = rows[0].study
    tables = {data.fingerprint: data.open() for data in (row.study.data for row in rows)}
    for table in tables.values():
        check_phase(table, study.data.split, TEST_PHASE)
    cluster.check(study.config)
    for storage in dict.fromkeys(row.study.storage for row in rows):
        check_machines(storage, say)
    draws = _draw(study, settings, fixed_rows)
    num_fixed = len(draws) - settings.num_seeded_draws
    for fingerprint in tables:
        count_test_reads(fingerprint)  # a damaged log is found before the work, not after
        record_test_read(fingerprint)
    say(
        f"test phase: {len(rows)} rows, {num_fixed} fixed and {settings.num_seeded_draws} seeded "
        f"draws, {settings.num_seeds} new seeds for each trained row"
    )
    pieces = {piece.key: piece for piece in _pieces(rows, settings)}
    parts = Parts(tuple(pieces.values()), heads, draws)
    kept = {key: each for key, piece in pieces.items() if (each := parts.read(piece)) is not None}
    if kept:
        say(f"{len(kept)} of {len(pieces)} were measured before")
    found = {key: each.result for key, each in kept.items()}
    work = {
        key: partial(_start, piece, heads, draws)
        for key, piece in pieces.items()
        if key not in found
    }
    failed: dict[str, str] = {}
    lost: list[WorkLostError] = []
    results = collect(work, cluster.most_trials_at_once(study.config))
    for done, (key, result) in enumerate(results, start=1):
        name, seed = key
        if isinstance(result, JobFailedError):
            failed[name] = f"{name} has no scores: with seed {seed}, {result}"
            say(f"{failed[name]} ({done} of {len(work)})")
        elif isinstance(result, WorkLostError):
            lost.append(result)
            say(f"{name}, seed {seed} was lost: {result} ({done} of {len(work)})")
        else:
            found[key] = result
            parts.keep(pieces[key], result)
            say(f"{name}, seed {seed} ({done} of {len(work)})")
    if lost:
        raise lost[0]
    results_of_rows = [
        _as_of(row, found[row.same_as or row.name, seed])
        for row in rows
        if (row.same_as or row.name) not in failed
        for seed in row.seeds
    ]
    if not results_of_rows:
        raise ValueError("; ".join(failed.values()))
    scores, diversity, priors, validation, spectra, projections = (
        _together(frames) for frames in zip(*results_of_rows, strict=True)
    )
    return Found(
        scores=scores,
        diversity=diversity,
        priors=priors,
        heads=best_heads(validation),
        spectra=spectra,
        projections=projections,
        failed=failed,
        num_fixed=num_fixed,
        earlier=describe_earlier(kept),
        parts=parts,
    )


def _together(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    # Empty ones do not know the types of their columns.
    return pd.concat([each for each in frames if len(each)] or frames[:1], ignore_index=True)


def _pieces(rows: Sequence[Row], settings: ReportSettings) -> Iterator[Piece]:
    for row in rows:
        if row.same_as is not None:
            continue
        is_of_table = row.ablation is None and not settings.is_table_only
        for seed in row.seeds:
            yield Piece(row, seed, is_illustrated=is_of_table and seed == row.seeds[0])


def _as_of(row: Row, result: RowResult) -> RowResult:
    """Return the result of a row, under its name where it has that of another."""
    if row.same_as is None:
        return result
    nothing = {"spectra": result.spectra[:0], "projections": result.projections[:0]}
    frames = (result.scores, result.diversity, result.priors, result.validation)
    return RowResult(*(frame.assign(method=row.name) for frame in frames), **nothing)


def _start(piece: Piece, heads: tuple[str, ...], draws: ShotRows) -> "ray.ObjectRef[Any]":
    row, seed = piece.row, piece.seed
    number = row.trial or 0
    job = row.study.job(number, row.settled, seed)
    if row.ablation is not None:
        job = replace(job, path=_ablation_path(number, row.ablation, seed))
        # One head is enough, and quicker: that of the search, if it is asked for at all.
        own = row.study.config.head
        heads = (own,) if own in heads else heads
    wanted = {"heads": heads, "prior": row.settled.evaluation.prior}
    job = replace(job, method=row.method, evaluation=job.evaluation.with_overrides(wanted))
    trial = Trial(number, job, row.study.config)
    return start(_evaluate, trial, row.name, draws, piece.is_illustrated, retrains=row.is_trained)


def _ablation_path(number: int, ablation: Ablation, seed: int) -> str:
    words = re.sub("[^a-z0-9]+", "-", ablation.label.lower())
    return f"trials/{number:04d}-{ablation.family}-{words}-seed{seed}.pt"


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
    trial: Trial, device: torch.device, name: str, draws: ShotRows, is_illustrated: bool
) -> RowResult:
    torch.set_num_threads(NUM_THREADS)
    job, config = trial.job, trial.job.evaluation
    task, queries = read_validation(job, device)
    is_trained = num_episodes_of(job.training) > 0
    method = load_method(job, task) if is_trained else new_method(job, device)
    validation, _ = run_method(name, method, job.seed, task, queries, config)
    priors = best_priors(validation)

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
    everything, diversity = run_method(name, method, job.seed, task, queries, of_test)
    scores = with_priors(everything, priors)
    illustration = Illustration.empty()
    if is_illustrated:
        novel = job.data.split.phase(TEST_PHASE).novel
        illustration = illustrate(name, method, job.seed, task, queries, novel)
    return RowResult(scores, diversity, priors.assign(seed=job.seed), validation, *illustration)

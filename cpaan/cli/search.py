"""``tune/search.py``: search hyperparameters on the validation phase, on Ray."""

import argparse
import json
import multiprocessing
import os
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import torch
from optuna.exceptions import OptunaError

from cpaan.cli.cluster import check_reachable, check_study_name, is_for_cluster, run_on_cluster
from cpaan.cli.command import INCOMPLETE, INTERRUPTED, check_writable
from cpaan.cli.options import overrides_of
from cpaan.cli.parsers import REPORT, RESULTS, SEARCH, STORAGE
from cpaan.cli.progress import StudyProgress
from cpaan.core.randomness import new_rng
from cpaan.core.remote_paths import RemotePath, absolute, is_address, join
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.evaluation.scoring import describe_top5
from cpaan.methods.registry import METHODS, expand_methods
from cpaan.methods.table_row import FEATURES, TABLES
from cpaan.protocol.tasks import read_base
from cpaan.study.cluster import Cluster, ray_cluster
from cpaan.study.cluster_job import ClusterCommand
from cpaan.study.config import DEFAULT_METHOD, StudyConfig
from cpaan.study.resolve import StudyRequest, new_study, resumed_study
from cpaan.study.row import StudyRow
from cpaan.study.search import search
from cpaan.study.searcher import NUM_RANDOM, RowSearch
from cpaan.study.study import CLUSTER, CONFIG, LOG, Study, download_study, find_study
from cpaan.study.trial import PROBLEM
from cpaan.study.worker_pool import WorkLostError
from cpaan.training.drive import in_words

_SECONDS_OF_TIMING = 20.0  # two episodes of the paper's size take a minute on two cores


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the command here or on a cluster; return its exit status."""
    is_new = options.resume is None
    folder = RESULTS / _new_name(options) if is_new else find_study(options.resume or None, RESULTS)
    if not is_for_cluster(options, None if is_new or options.dry_run else folder):
        return _search(options, folder)
    if options.dry_run:
        raise ValueError("--dry-run describes a run on this machine; remove --cluster")
    check_reachable([*(options.features or ()), *(options.cosine_features or ())])
    name = folder.name
    has_file = options.split and not is_address(options.split)
    command = ClusterCommand(
        "search.py",
        name,
        [*arguments, "--study" if is_new else "--resume", name],
        {"--split": [options.split]} if has_file else {},
        begins=is_new,
        repeats=not is_new,
    )
    return run_on_cluster(options, command)


def _search(options: argparse.Namespace, folder: Path) -> int:
    study = _new(options, folder) if options.resume is None else _resumed(options, folder)
    if options.dry_run:
        print(_describe(study) if options.json else _plan(study))
        return 0
    resume = f"{SEARCH} --resume {study.folder}"
    check_writable(study.folder)
    storage = RemotePath.at(study.storage)
    storage.check_writable()
    if options.resume is None and (storage / CONFIG).is_file():  # of another or a lost machine
        raise ValueError(
            f"{study.storage} already has a study; resume it with: {SEARCH} --resume "
            f"{study.folder.name}"
        )
    progress = StudyProgress(study, study.folder / LOG)
    try:
        with ray_cluster(options.address, progress.say) as cluster:
            outcomes = search(
                _with_gpus(study, cluster, options),
                cluster,
                progress,
                num_concurrent=options.concurrent,
                timeout_seconds=options.timeout,
            )
    except (OSError, OptunaError, WorkLostError) as error:  # such as a full disk
        reason = " ".join(str(error).split())
        raise ValueError(f"{reason}; finished work is saved; resume with: {resume}") from error
    except KeyboardInterrupt:
        if (study.folder / CONFIG).exists():
            progress.say(f"stopped; all work is saved; resume with: {resume}")
        return INTERRUPTED
    statuses = [_print_problems(outcome, resume) for outcome in outcomes]
    lines = describe_best(outcomes)
    if all(study.has_best(row) for row in study.rows):
        lines.append(f"Next: {REPORT} {study.folder}")
    progress.conclude(lines)
    return max(statuses)


def _new_name(options: argparse.Namespace) -> str:
    method = "-".join(options.methods or [DEFAULT_METHOD])
    name: str = options.study or f"{method}-{datetime.now():%Y%m%d-%H%M%S}"
    check_study_name(name)
    return name


def _new(options: argparse.Namespace, folder: Path) -> Study:
    if (folder / CONFIG).exists() or (folder / CLUSTER).exists():
        resume = f"{SEARCH} --resume {folder.name}"
        raise ValueError(f"{folder} already exists; resume it with: {resume}")
    features = [FEATURES] if options.cosine_features is None else TABLES
    methods = expand_methods(options.methods or [DEFAULT_METHOD], features)
    if options.head and len(methods) > 1:
        raise ValueError(f"--head is for one method, got {len(methods)}; remove --head")
    request = replace(_request(options), methods=tuple(methods))
    return new_study(request, folder, options.storage or os.environ.get(STORAGE))


def _resumed(options: argparse.Namespace, folder: Path) -> Study:
    if options.study is not None:
        raise ValueError("--resume already names the study; remove --study")
    download_if_absent(folder, options.storage)
    study = resumed_study(folder, _request(options))
    shared = options.storage and join(absolute(options.storage), folder.name)
    if shared not in (None, study.shared):
        raise ValueError(f"{folder} has its storage in {study.storage}, not in {shared}")
    return study


def _request(options: argparse.Namespace) -> StudyRequest:
    overrides = overrides_of(options, StudyConfig)
    given = overrides_of(options, StudyRequest)
    return StudyRequest(**given, settings=tuple(options.set), overrides=tuple(overrides.items()))


def download_if_absent(folder: Path, storage: str | None = None) -> None:
    """Download a study from the given storage, or from that of this cluster, if it is not here."""
    storage = storage or os.environ.get(STORAGE)
    if storage is not None and not (folder / CONFIG).exists():
        download_study(join(absolute(storage), folder.name), folder)


def _with_gpus(study: Study, cluster: Cluster, options: argparse.Namespace) -> Study:
    """Return a new study with a GPU for every worker if the cluster has any and none is named."""
    is_set = any("gpus_per_worker=" in text for text in options.set)
    if options.resume is not None or is_set or options.gpus_per_worker is not None:
        return study
    return study.with_config(gpus_per_worker=float(cluster.num_gpus >= 1))


def _plan(study: Study) -> str:
    """Return the size of a study and the time that its training takes on this machine."""
    row, config = study.rows[0], study.config
    methods = ", ".join(row.method for row in study.rows)
    data, phase = row.data, row.data.split.phase(VALIDATION_PHASE)
    num_trials = sum(row.config.num_trials for row in study.rows)
    lines = {
        "study": f"{study.folder}{f', storage {study.shared}' if study.shared else ''}",
        "methods": textwrap.shorten(methods, 80, placeholder=", ..."),
        "data": f"{', '.join(data.features or ['built-in features'])}, {row.num_dims} dimensions",
        "classes": f"{len(phase.base)} base, {len(phase.novel)} novel (validation phase)",
        "trials": f"{num_trials}, seed {config.seed}, up to {config.num_finalists} finalists a row",
        "episodes": f"{row.num_episodes} a trial, evaluated after "
        f"{', '.join(map(str, config.eval_steps(row.num_episodes)))}; "
        f"{row.num_episodes * config.report_length} in the report",
        "workers": f"{config.workers_per_trial} a trial; GPUs of each: {config.gpus_per_worker:g}",
        "score": f"LSL and calibrated GLSL top-5, {config.head} head, "
        f"{row.evaluation.num_draws} draws",
        "searched": textwrap.shorten(", ".join(row.searched) or "nothing", 80),
        "time": _expected_time(study),
        "more": "--dry-run --json prints every setting",
    }
    return "\n".join(f"{name + ':':10} {text}" for name, text in lines.items())


def _expected_time(study: Study) -> str:
    """Return the time that training takes here, or which row could not be timed quickly.

    Another process times the rows, because an episode cannot be interrupted.
    """
    seconds: list[float] = []
    end = time.monotonic() + _SECONDS_OF_TIMING
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = pool.imap(_seconds_of_training, study.rows)
        with suppress(multiprocessing.TimeoutError):
            for _ in study.rows:
                seconds.append(results.next(end - time.monotonic()))
    total, num_timed = in_words(sum(seconds)), len(seconds)
    if num_timed < len(study.rows):
        method = study.rows[num_timed].method
        timed = f"; the {num_timed} methods before it train for {total}" if num_timed else ""
        return f"unknown: {method} was not timed within {_SECONDS_OF_TIMING:g} s{timed}"
    has_stops = study.config.early_stopping
    stops = "early stopping shortens it" if has_stops else "without early stopping"
    return f"about {total} of training, one trial at a time here; {stops}"


def _seconds_of_training(row: StudyRow) -> float:
    """Return the seconds that all trials of a row train, from the time of an episode here."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = read_base(row.data.open(), row.data.split.base_classes(VALIDATION_PHASE), device)
    method = METHODS[row.method].make(row.training, row.evaluation)
    run = method.begin(base, new_rng(row.config.seed))
    if not run.num_episodes:
        return 0.0
    run.advance(1)  # the first one is slower
    started = time.monotonic()
    run.advance(1)
    return (time.monotonic() - started) * row.num_episodes * row.config.num_trials


def _describe(study: Study) -> str:
    """Return all settings and the first points of a study as JSON, a document per row."""
    shown = []
    for row in study.rows:
        numbers = sorted({0, min(row.config.num_trials - 1, NUM_RANDOM)})
        points = {f"trial {n}": kind for n, kind in zip(numbers, row.points, strict=False)}
        settings = {name: row.settings_of(kind).training for name, kind in points.items()}
        content = {
            "folder": str(study.folder / study.path_of(row)),
            **row.describe(),
            "storage": study.shared,
            "evaluated after episodes": row.config.eval_steps(row.num_episodes),
            **{name: row.point(kind) for name, kind in points.items()},
            "all settings of these": {name: of.to_dict() for name, of in settings.items()},
        }
        shown.append(json.dumps(content, indent=1))
    return "\n".join(shown)


def _print_problems(outcome: RowSearch, resume: str) -> int:
    """Print which trials of a row failed and what is left to do; return its exit status."""
    row, best = outcome.row, outcome.best
    for trial in outcome.failed:
        problem, parameters = trial.user_attrs[PROBLEM], json.dumps(trial.params)
        print(f"trial {trial.number} failed: {problem}; parameters: {parameters}")
    if outcome.num_left > 0:
        left = f"{outcome.num_left} of {row.config.num_trials} trials are left"
        print(f"{left}; resume with: {resume}")
    elif best is None:
        print(f"the best trial of {row.method} is not chosen yet; resume with: {resume}")
    return 0 if best is not None and not outcome.failed else INCOMPLETE


def describe_best(outcomes: Sequence[RowSearch]) -> list[str]:
    """Return the best configuration, and the three best rows; of one row, its three best trials."""
    bests = {outcome.row.method: outcome.best for outcome in outcomes if outcome.best is not None}
    if not bests:
        return []
    method = max(bests, key=lambda name: bests[name]["score"])
    best = bests[method]
    scores = {name: of_row["score"] for name, of_row in bests.items()}
    if len(outcomes) == 1:
        scores = {f"{method}, trial {x['trial']}": x["score"] for x in best["finalists"]}
    ranked = sorted(scores, key=lambda name: -scores[name])[:3]
    width = max(map(len, ranked))
    return [
        f"{method}, trial {best['trial']} is best with score {best['score']:.2f} on new "
        f"validation draws ({describe_top5(best)})",
        *(f"  {name:<{width}}  {scores[name]:.2f}" for name in ranked),
    ]

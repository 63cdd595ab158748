"""``tune/search.py``: search hyper-parameters on the validation phase, on Ray."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optuna.exceptions import OptunaError

from cpaan.cli.guard import INCOMPLETE, INTERRUPTED, guarded
from cpaan.cli.remote import Command, check_reachable, is_for_cluster, run_on_cluster
from cpaan.cli.study_options import PROGRAM, RESULTS, search_parser
from cpaan.cli.study_setup import (
    STORAGE,
    describe_study,
    elsewhere_of,
    fetch_if_absent,
    new_study,
    resumed_study,
    study_name,
    wanted_methods,
)
from cpaan.cli.table_setup import fetch_rows, study_of_row
from cpaan.cli.watching import StudyWatch
from cpaan.core.remote_paths import is_address
from cpaan.study.cluster import Cluster, ray_cluster
from cpaan.study.fleet import WorkLostError
from cpaan.study.folder import Study, StudyInUseError, find_study
from cpaan.study.records import BEST, CONFIG, LOG, TRIALS, Records
from cpaan.study.search import Outcome, search
from cpaan.study.storage import Storage
from cpaan.study.table_study import TableStudy, has_begun, is_table

_AS_BEGUN = (
    *("method", "preset", "features", "cosine_features", "split", "set", "episodes", "short"),
    *("seed", "weights", "no_early_stopping"),
    *("workers_per_trial", "gpus_per_worker", "no_ray_train"),
)
"""Options that a study of many rows has had from its beginning."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = search_parser().parse_args(arguments)
    return guarded(PROGRAM, lambda: _run(options, arguments), traceback=options.traceback)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if not is_for_cluster(options):
        return _search(options, arguments)
    if options.dry_run:
        raise ValueError("--dry-run shows what this machine would do: leave --cluster out")
    check_reachable([*(options.features or ()), *(options.cosine_features or ())])
    is_new = options.resume is None
    name = study_name(options) if is_new else find_study(options.resume or None, RESULTS).name
    split = options.split
    command = Command(
        "search.py",
        name,
        [*arguments, "--study" if is_new else "--resume", name],
        {"--split": [split]} if split and not is_address(split) else {},
        begins=is_new,
        repeats=not is_new,
    )
    return run_on_cluster(options, command)


def _search(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if options.resume is None:
        methods, name = wanted_methods(options), study_name(options)
        if len(methods) == 1:
            options.set = [each.removeprefix(f"{methods[0]}.") for each in options.set]
            return _search_one(options, new_study(options, methods[0], name))
        table = TableStudy(tuple(methods), tuple(arguments))
        return _search_table(options, table, RESULTS / name)
    folder = find_study(options.resume or None, RESULTS)
    fetch_if_absent(folder, options.storage)
    if is_table(folder):
        fetch_rows(folder, options.storage)
        table = TableStudy.read(folder)
        if options.method is not None:
            table = table.with_rows(wanted_methods(options), options.cosine_features)
            options.method = options.cosine_features = None  # what it has from now on
        return _search_table(options, table, folder)
    return _search_one(options, resumed_study(options, folder))


def _search_one(options: argparse.Namespace, study: Study) -> int:
    if options.dry_run:
        print(describe_study(study))
        return 0
    _check_storage(study, study.folder.name, is_new=options.resume is None)
    watch = StudyWatch(study.config, study.num_episodes, study.folder / LOG)
    goes_on = f"{PROGRAM} --resume {study.folder}"
    with _keeping(study.folder, watch, goes_on) as status:
        with ray_cluster(options.address, watch.say) as cluster:
            outcome = search(
                _with_gpus(study, cluster, options),
                cluster,
                watch,
                num_concurrent=options.concurrent,
                timeout_seconds=options.timeout,
            )
        status.append(_conclude(study, outcome, goes_on))
        if outcome.best is not None:
            print(f"Next: python tune/report.py {study.folder}")
    return status[-1]


def _search_table(options: argparse.Namespace, table: TableStudy, folder: Path) -> int:
    """Search one row after the other, each with the same number of trials.

    Several commands may work on a table at a time: each takes the rows that no other works on.
    """
    if options.head:
        raise ValueError("--head is of one method, and there are several here")
    is_new = options.resume is None
    fixed = {name: getattr(options, name) for name in _AS_BEGUN}
    if not is_new and any(fixed.values()):
        given = ", ".join(f"--{name.replace('_', '-')}" for name in fixed if fixed[name])
        raise ValueError(
            f"rows go on as they were begun, only --trials and rows may be more; got {given}"
        )
    if is_new and has_begun(folder):
        raise ValueError(f"{folder} exists: {PROGRAM} --resume {folder.name} goes on with it")
    begun_by = search_parser().parse_args(table.arguments)
    studies = [study_of_row(options, table, folder, method) for method in table.methods]
    if options.dry_run:
        print("\n".join(describe_study(study) for study in studies))
        return 0
    goes_on = f"{PROGRAM} --resume {folder}"
    deadline = None if options.timeout is None else time.monotonic() + options.timeout
    watch = StudyWatch(studies[0].config, studies[0].num_episodes, folder / LOG)
    with _keeping(folder, watch, goes_on) as status:
        elsewhere = elsewhere_of(folder, options.storage or os.environ.get(STORAGE))
        table.write(Records(folder, Storage(elsewhere or str(folder))))
        taken = []
        with ray_cluster(options.address, watch.say) as cluster:
            for number, study in enumerate(studies, start=1):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    print(f"{len(studies) - number + 1} rows are left: {goes_on}")
                    status.append(INCOMPLETE)
                    break
                method = study.config.method
                watch.say(f"{method}: row {number} of {len(studies)}")
                # Another command may have begun it since.
                study = study_of_row(options, table, folder, method)
                _check_storage(study, folder.name, is_new=not has_begun(study.folder))
                try:
                    outcome = search(
                        _with_gpus(study, cluster, begun_by),
                        cluster,
                        StudyWatch(study.config, study.num_episodes, study.folder / LOG),
                        num_concurrent=options.concurrent,
                        timeout_seconds=left,
                    )
                except StudyInUseError:
                    watch.say(f"{method}: another command works on it")
                    taken.append(method)
                except WorkLostError as error:  # the others may have better luck
                    reason = " ".join(str(error).split())
                    watch.say(f"{method} is left for later: {reason}")
                    print(f"{method} has not ended: {goes_on}")
                    status.append(INCOMPLETE)
                else:
                    status.append(_conclude(study, outcome, goes_on))
        if taken:
            print(f"Other commands work on {', '.join(taken)}")
            status.append(INCOMPLETE)
        if not any(status):
            print(f"\nAll {len(studies)} rows are searched. Next: python tune/report.py {folder}")
    return max(status)


def _check_storage(study: Study, name: str, *, is_new: bool) -> None:
    storage = Storage(study.storage)
    storage.check()
    if is_new and storage.exists(CONFIG):  # of another machine, or one that is lost
        raise ValueError(f"{study.storage} has a study: {PROGRAM} --resume {name} goes on with it")


def _with_gpus(study: Study, cluster: Cluster, begun_by: argparse.Namespace) -> Study:
    """Return a new study with a GPU for every worker, where there are any and nobody says.

    Args:
        study: New, or gone on with: that has its GPUs already.
        cluster: What there is.
        begun_by: Options of the command that begins it.
    """
    if has_begun(study.folder) or _names_gpus(begun_by):
        return study
    gpus = float(cluster.num_gpus >= 1)
    return replace(study, config=study.config.with_overrides({"gpus_per_worker": gpus}))


@contextmanager
def _keeping(folder: Path, watch: StudyWatch, goes_on: str) -> Iterator[list[int]]:
    """Say how to go on, whatever ends the work; give a list of exit statuses to append to."""
    status: list[int] = []
    try:
        yield status
    except (OSError, OptunaError, WorkLostError) as error:  # a full disk, say
        reason = " ".join(str(error).split())
        raise ValueError(f"{reason}; what was done is kept: {goes_on}") from error
    except KeyboardInterrupt:
        if has_begun(folder):
            watch.say(f"stopped; everything is kept: {goes_on}")
        status.append(INTERRUPTED)


def _names_gpus(options: argparse.Namespace) -> bool:
    is_set = any(text.startswith("gpus_per_worker=") for text in options.set)
    return is_set or options.gpus_per_worker is not None


def _conclude(study: Study, outcome: Outcome, goes_on: str) -> int:
    """Print how it ended; return the exit status."""
    num_left = study.config.num_trials - outcome.num_ended
    for number, parameters, problem in outcome.failed:
        print(f"trial {number} failed: {problem}; its parameters: {json.dumps(parameters)}")
    if outcome.best is not None:
        best = outcome.best
        print(
            f"\nBest: trial {best['trial']}, score {best['score']:.2f} on fresh draws "
            f"(LSL {best['novel_top5']:.2f}, GLSL {best['all_top5']:.2f}); {best['parameters']}"
        )
        print(f"Written: {study.folder}/{BEST}, {TRIALS}")
    if num_left > 0:
        print(f"{num_left} of {study.config.num_trials} trials are left: {goes_on}")
    elif outcome.best is None:
        print(f"the best trial is not chosen yet: {goes_on}")
    return 0 if outcome.best is not None and not outcome.failed else INCOMPLETE

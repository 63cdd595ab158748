"""``tune/search.py``: search hyper-parameters on the validation phase, on Ray."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from optuna.exceptions import OptunaError

from cpaan.cli.guard import INCOMPLETE, INTERRUPTED, guarded
from cpaan.cli.remote import Command, check_reachable, is_for_cluster, run_on_cluster
from cpaan.cli.study_options import PROGRAM, RESULTS, search_parser
from cpaan.cli.study_setup import (
    describe_study,
    new_study,
    read_points,
    resumed_study,
    study_name,
)
from cpaan.cli.watching import StudyWatch
from cpaan.places import is_address
from cpaan.study.cluster import ray_cluster
from cpaan.study.fleet import WorkLostError
from cpaan.study.folder import Study, find_study
from cpaan.study.records import BEST, CONFIG, LOG, TRIALS
from cpaan.study.search import Outcome, search
from cpaan.study.storage import Storage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = search_parser().parse_args(arguments)
    return guarded(PROGRAM, lambda: _run(options, arguments), traceback=options.traceback)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if not is_for_cluster(options):
        return _search(options)
    if options.dry_run:
        raise ValueError("--dry-run shows what this machine would do: leave --cluster out")
    check_reachable(options.features)
    is_new = options.resume is None
    name = study_name(options) if is_new else find_study(options.resume or None, RESULTS).name
    files = {"--split": options.split, "--points": options.points}
    command = Command(
        "search.py",
        name,
        [*arguments, "--study" if is_new else "--resume", name],
        {option: [path] for option, path in files.items() if path and not is_address(path)},
        begins=is_new,
        repeats=not is_new,
    )
    return run_on_cluster(options, command)


def _search(options: argparse.Namespace) -> int:
    study = new_study(options) if options.resume is None else resumed_study(options)
    points = read_points(options.points, study)
    if options.dry_run:
        print(describe_study(study))
        return 0
    storage = Storage(study.storage)
    storage.check()
    if options.resume is None and storage.exists(CONFIG):  # of another machine, or one that is lost
        raise ValueError(
            f"{study.storage} has a study: {PROGRAM} --resume {study.folder.name} goes on with it"
        )
    watch = StudyWatch(study.config, study.training.num_episodes, study.folder / LOG)
    goes_on = f"{PROGRAM} --resume {study.folder}"
    try:
        with ray_cluster(options.address, watch.say) as cluster:
            if options.resume is None and not _names_gpus(options):
                gpus = float(cluster.num_gpus >= 1)
                config = study.config.with_overrides({"gpus_per_worker": gpus})
                study = replace(study, config=config)
            outcome = search(
                study,
                cluster,
                watch,
                points=points,
                num_concurrent=options.concurrent,
                timeout_seconds=options.timeout,
            )
    except (OSError, OptunaError, WorkLostError) as error:  # a full disk, say
        reason = " ".join(str(error).split())
        raise ValueError(f"{reason}; what was done is kept: {goes_on}") from error
    except KeyboardInterrupt:
        if (study.folder / CONFIG).exists():
            watch.say(f"stopped; everything is kept: {goes_on}")
        return INTERRUPTED
    return _conclude(study, outcome, goes_on)


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
        print(f"Next: python tune/report.py {study.folder}")
    if num_left > 0:
        print(f"{num_left} of {study.config.num_trials} trials are left: {goes_on}")
    elif outcome.best is None:
        print(f"the best trial is not chosen yet: {goes_on}")
    return 0 if outcome.best is not None and not outcome.failed else INCOMPLETE

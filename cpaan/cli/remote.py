"""The two commands on a cluster: the same arguments, sent there as a job."""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cpaan.cli.guard import INCOMPLETE, INTERRUPTED
from cpaan.cli.options import new_progress
from cpaan.places import is_address
from cpaan.provenance import TEST_READS, take_over_test_reads
from cpaan.study.records import CONFIG
from cpaan.study.remote import INPUTS, Jobs, NotThereError, RemoteCluster

_LOST = 1  # what ended with its machine has told no status


def add_cluster(group: argparse._ActionsContainer) -> None:
    """Add what both commands have for a cluster."""
    group.add_argument(
        "--cluster",
        metavar="Y",
        help="a cluster file that `ray up` has started: the command runs there as a job, is "
        "followed, and its results come home; the same command follows it again after Ctrl-C or "
        "a lost connection",
    )
    group.add_argument(
        "--stop", action="store_true", help="with --cluster: end what runs there; all is kept"
    )


def run_on_cluster(
    options: argparse.Namespace,
    script: str,
    study: str,
    arguments: Sequence[str],
    local_files: Mapping[str, Sequence[str]],
    *,
    begins: bool = False,
) -> int:
    """Send a command to a cluster, or find it there, and follow it to its end.

    Args:
        options: With ``cluster`` and ``stop``.
        script: Of ``tune``.
        study: The name of the study.
        arguments: Of the command, without what follows from the others.
        local_files: For options that take files: those of this machine.
        begins: Whether it is about a new study: one that was begun there is followed, even if it
            has ended meanwhile.

    Returns:
        The exit status of the command there.

    Raises:
        ValueError: If the cluster cannot be used.
    """
    say = new_progress()
    cluster = RemoteCluster(Path(options.cluster))
    labels = {"script": script, "study": study}
    home = TEST_READS.parent / study
    try:
        with cluster.connect() as jobs:
            job = jobs.running(labels)
            if options.stop:
                return _stop(jobs, job, study, say)
            if job is None and begins:
                labels["begins"] = "yes"
                job = jobs.succeeded(labels)
            if job is None:
                if begins and (home / CONFIG).exists():
                    raise ValueError(f"{home} exists: --resume {study} goes on with it there")
                entrypoint, files = _entrypoint(script, arguments, local_files)
                job = jobs.submit(entrypoint, labels, files)
                say(f"sent to {options.cluster} as {job}")
            else:
                say(f"is on {options.cluster} already, as {job}")
    except ConnectionError as error:
        raise ValueError(str(error)) from error
    say(f"its dashboard: ray dashboard {options.cluster}")
    try:
        status = cluster.follow(job, _write, say)
    except NotThereError as error:
        raise ValueError(f"{error}; what it kept is in the storage: --resume {study}") from error
    except KeyboardInterrupt:
        say(
            "not followed any more; it goes on there. The same command with the same study "
            f"({study}) follows it again, and --stop ends it"
        )
        return INTERRUPTED
    try:
        cluster.fetch(f"{home}/", home)
        say(f"brought home: {home}/")
    except ValueError:
        if status in (0, INCOMPLETE):  # otherwise it may have ended before there was anything
            raise
    return _LOST if status is None else status


def bring_test_reads_home(config: str) -> None:
    """Add what was noted of the test phase on a cluster to what is noted here."""
    there = TEST_READS.with_name(".test-reads-of-cluster.jsonl")
    try:
        RemoteCluster(Path(config)).fetch(str(TEST_READS), there)
        take_over_test_reads(there)
    finally:
        there.unlink(missing_ok=True)


def _stop(jobs: Jobs, job: str | None, study: str, say: Callable[[str], None]) -> int:
    if job is None:
        raise ValueError(f"nothing runs there for {study}")
    jobs.stop(job)
    say(f"stopped; everything is kept: --resume {study}")
    return 0


def _entrypoint(
    script: str, arguments: Sequence[str], local_files: Mapping[str, Sequence[str]]
) -> tuple[str, dict[str, Path]]:
    """Return the command as the head runs it, and the files that it needs by their names there."""
    words = [f'"$SENT"/tune/{script}', shlex.join(arguments)]
    sent = {}
    for option, paths in local_files.items():
        words.append(option)
        for number, path in enumerate(paths):
            if not Path(path).is_file():
                raise ValueError(f"there is no file {path}")
            name = f"{option.strip('-')}-{number}-{Path(path).name}"
            sent[name] = Path(path)
            words.append(f'"$SENT"/{shlex.quote(f"{INPUTS}/{name}")}')
    # The last of an option's values counts: this one makes it a command of the machine it runs on.
    return " ".join(["python", *words, "--cluster="]), sent


def check_reachable(features: Sequence[str] | None) -> None:
    """Refuse features that a cluster cannot read, as far as one can tell from here.

    Raises:
        ValueError: If a path is one of this machine.
    """
    for path in features or ():
        if not is_address(path) and not Path(path).is_absolute():
            raise ValueError(
                f"{path} is a file of this machine: give an address such as s3://bucket/{path}, "
                "or the absolute path of a folder that all machines of the cluster share"
            )


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()

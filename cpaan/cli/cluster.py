"""Commands of ``tune/`` on a cluster: submit, follow and stop their jobs."""

import argparse
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from cpaan.cli.command import INCOMPLETE, INTERRUPTED, new_progress
from cpaan.core.remote_paths import RemotePath, is_address
from cpaan.study.cluster_job import ClusterCommand, ClusterJob
from cpaan.study.study import CLUSTER


def is_for_cluster(options: argparse.Namespace, study: Path | None) -> bool:
    """Return whether the command is to run on a cluster; refuse ``--stop`` without one.

    Without ``--cluster`` and ``--address``, use the cluster file of an existing study, if any.
    """
    file = study and study / CLUSTER
    if file and options.cluster is None and options.address is None and file.exists():
        options.cluster = file.read_text().strip()
        if not Path(options.cluster).exists():
            raise ValueError(
                f"{study} was run on a cluster whose file {options.cluster} no longer exists; name "
                "it with --cluster, or use --address local"
            )
        print(f"using {options.cluster}, the cluster of {study}", file=sys.stderr)
    if options.stop and not options.cluster:
        raise ValueError("--stop needs --cluster; Ctrl-C stops a command that runs here")
    return bool(options.cluster)


def check_study_name(name: str) -> None:
    """Refuse a name that is not a plain folder name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name):
        raise ValueError(
            f"a study name can only have letters, digits, '.', '_', '+' and '-', and starts with a "
            f"letter or digit, got {name!r}"
        )


def check_reachable(features: Sequence[str]) -> None:
    """Refuse relative paths: they name files of this machine, which a cluster cannot read."""
    for path in features:
        if not is_address(path) and not Path(path).is_absolute():
            raise ValueError(
                f"{path} is a local path; use s3://bucket/{path}, or an absolute path that all "
                "nodes of the cluster share"
            )


def run_on_cluster(options: argparse.Namespace, command: ClusterCommand) -> int:
    """Start the command's job or find it, follow it, download its results.

    Returns:
        The exit status of the command on the cluster; 1 if it ended without one.
    """
    say, study = new_progress(), command.study_name
    check_study_name(study)
    job = ClusterJob(Path(options.cluster), command)
    logging.disable(logging.INFO)  # Ray's client logs every upload and every closed websocket
    if options.stop:
        job.stop()
        say(f"stopped; all work is saved; resume with: --resume {study}")
        return 0
    is_new = job.start()
    (RemotePath.at(job.home) / CLUSTER).write(f"{Path(options.cluster).absolute()}\n".encode())
    say(f"job {job.name} {'submitted to' if is_new else 'found on'} {options.cluster}")
    say(f"open the dashboard with: ray dashboard {options.cluster}")
    try:
        details = job.follow(lambda text: print(text, end="", flush=True), say)
    except ValueError as error:
        resume = f"its records are in the storage; resume with: --resume {study}"
        raise ValueError(f"{error}; {resume}") from error
    except KeyboardInterrupt:
        say(f"the job of {study} keeps running; the same command follows it, --stop stops it")
        return INTERRUPTED
    status = details.driver_exit_code
    if status is None:  # stopped, lost with its machine, or not started
        say(f"the job ended without an exit status: {' '.join((details.message or '').split())}")
    try:
        say(f"downloaded {job.download()}/")
    except ValueError:
        if status in (0, INCOMPLETE):  # after other statuses there may be nothing to download
            raise
    return INCOMPLETE if status is None else status

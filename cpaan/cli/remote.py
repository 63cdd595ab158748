"""The two commands on a cluster: the same arguments, sent there as a job."""

import argparse
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpaan.cli.guard import INCOMPLETE, INTERRUPTED
from cpaan.cli.options import new_progress
from cpaan.core.provenance import TEST_READS, take_over_test_reads
from cpaan.core.remote_paths import is_address
from cpaan.study.records import CONFIG
from cpaan.study.remote import INPUTS, Jobs, NotThereError, RemoteCluster

_LOST = 1  # what ended with its machine has told no status
_RESULTS = TEST_READS.parent


def add_cluster(group: argparse._ActionsContainer) -> None:
    """Add what both commands have for a cluster."""
    group.add_argument(
        "--cluster",
        metavar="Y",
        help="a cluster file that `ray up` has started: the command runs there as a job, is "
        "followed, and its results come home; the same command follows it again after Ctrl-C or "
        "a lost connection, and brings home what has ended meanwhile",
    )
    group.add_argument(
        "--stop", action="store_true", help="with --cluster: end what runs there; all is kept"
    )


def is_for_cluster(options: argparse.Namespace) -> bool:
    """Return whether a command is to be run elsewhere.

    Raises:
        ValueError: If it asks here for what only a command elsewhere can do.
    """
    if options.stop and not options.cluster:
        raise ValueError("--stop needs --cluster: what runs here is ended by Ctrl-C")
    return bool(options.cluster)


@dataclass(frozen=True)
class Command:
    """One of the two commands, as it is to be run elsewhere."""

    script: str
    """Of ``tune``."""
    study: str
    """Its name."""
    arguments: Sequence[str]
    files: Mapping[str, Sequence[str]]
    """For options that take files: those of this machine, whatever the arguments say."""
    begins: bool = False
    """Whether it is about a study that is new."""
    repeats: bool = False
    """Whether it does something more when it is given again, after it has done all."""

    @property
    def labels(self) -> dict[str, str]:
        """By which its job is found again; of those that begin a study there is one."""
        arguments = "" if self.begins else " ".join(self.arguments)
        return {"script": self.script, "study": self.study, "arguments": arguments}

    def entrypoint(self) -> tuple[str, dict[str, Path]]:
        """Return it as the head runs it, and the files that it needs by their names there.

        Raises:
            ValueError: If a file is not there.
        """
        words = [f'"$SENT"/tune/{self.script}', shlex.join(self.arguments)]
        sent = {}
        for option, paths in self.files.items():
            words.append(option)
            for number, path in enumerate(paths):
                if not Path(path).is_file():
                    raise ValueError(f"there is no file {path}")
                name = f"{option.strip('-')}-{number}-{Path(path).name}"
                sent[name] = Path(path)
                words.append(f'"$SENT"/{shlex.quote(f"{INPUTS}/{name}")}')
        # An option's last value counts: this one makes it a command of the machine it runs on.
        return " ".join(["python", *words, "--cluster="]), sent


def run_on_cluster(options: argparse.Namespace, command: Command) -> int:
    """Send a command to a cluster, or find it there, and follow it to its end.

    Args:
        options: With ``cluster`` and ``stop``.
        command: What to run.

    Returns:
        The exit status of the command there.

    Raises:
        ValueError: If the cluster cannot be used, or what is here would be lost.
    """
    say = new_progress()
    check_name(command.study)
    cluster = RemoteCluster(Path(options.cluster))
    try:
        with cluster.connect() as jobs:
            if options.stop:
                return _stop(jobs, command, say)
            job = _find(jobs, command)
            if job is None:
                home = _RESULTS / command.study
                if command.begins and (home / CONFIG).exists():
                    raise ValueError(f"{home} exists: --resume {command.study} goes on with it")
                job = jobs.submit(*command.entrypoint(), command.labels)
                say(f"sent to {options.cluster} as {job}")
            else:
                say(f"is on {options.cluster} already, as {job}")
    except ConnectionError as error:
        raise ValueError(str(error)) from error
    say(f"its dashboard: ray dashboard {options.cluster}")
    try:
        status, message = cluster.follow(job, _write, say)
    except NotThereError as error:
        raise ValueError(
            f"{error}; what it kept is in the storage: --resume {command.study}"
        ) from error
    except KeyboardInterrupt:
        say(
            "not followed any more; it goes on there. The same command with the same study "
            f"({command.study}) follows it again, and --stop ends it"
        )
        return INTERRUPTED
    if status is None:
        say(f"it has ended there without a status: {message}")
    try:
        _bring_home(cluster, command.study)
        say(f"brought home: {_RESULTS / command.study}/")
    except ValueError:
        if status in (0, INCOMPLETE):  # otherwise it may have ended before there was anything
            raise
    return _LOST if status is None else status


def _find(jobs: Jobs, command: Command) -> str | None:
    """Return the job of a command that runs already, or that has done all there is to do."""
    about = {"study": command.study, "script": command.script}
    if running := jobs.running(about):
        return running
    last = jobs.last({"study": command.study})
    if last is None or command.repeats or not last.has_succeeded:
        return None
    return last.name if command.labels.items() <= last.labels.items() else None


def _stop(jobs: Jobs, command: Command, say: Callable[[str], None]) -> int:
    job = jobs.running({"study": command.study, "script": command.script})
    if job is None:
        raise ValueError(f"nothing runs there for {command.study}")
    jobs.stop(job)
    say(f"stopped; everything is kept: --resume {command.study}")
    return 0


def _bring_home(cluster: RemoteCluster, study: str) -> None:
    """Fetch the records of a study, and what was noted of the test phase.

    Raises:
        ValueError: If they cannot be had, or another study of that name is here.
    """
    home = _RESULTS / study
    with tempfile.TemporaryDirectory() as folder:
        config, reads = Path(folder) / CONFIG, Path(folder) / TEST_READS.name
        cluster.fetch(f"{home}/{CONFIG}", config)
        if (home / CONFIG).exists() and _beginning(home / CONFIG) != _beginning(config):
            raise ValueError(
                f"{home} is another study than the one there: move it away, and the same command "
                "brings that one home"
            )
        cluster.fetch(f"{home}/", home)
        try:
            cluster.fetch(str(TEST_READS), reads)
        except ValueError:
            return  # nothing was read there so far
        take_over_test_reads(reads)


def _beginning(config: Path) -> Any:
    return json.loads(config.read_text())["runs"][0]


def check_name(study: str) -> None:
    """Refuse a name that is none for a folder.

    Raises:
        ValueError: With the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", study):
        raise ValueError(
            f"a study's name has letters, digits, '.', '_', '+' and '-', got {study!r}"
        )


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

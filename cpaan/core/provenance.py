"""The command, commit and versions behind a number, and the log of test-phase reads."""

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from cpaan.core.remote_paths import RemotePath

_PROJECT = Path(__file__).resolve().parents[2]
TEST_READS = Path("results") / "test-reads.jsonl"
"""Log with a line for every read of test-phase rows, on which no decision may depend."""


def command() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def commit(folder: Path = _PROJECT) -> str:
    """Return the git commit, with "-dirty" if tracked files differ from it; "unknown" outside git.

    The variable ``CPAAN_COMMIT`` overrides it, for a copy of the project on another machine.
    """
    if named := os.environ.get("CPAAN_COMMIT"):
        return named
    git = ["git", "-C", str(folder)]
    status = [*git, "status", "--porcelain", "--untracked-files=no", "--", "."]
    try:
        head, changes = (
            subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True).strip()
            for command in ([*git, "rev-parse", "HEAD"], status)
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}-dirty" if changes else head


def describe_run() -> dict[str, str]:
    """Return the command, commit, time and versions of this run, for its results file."""
    return {
        "command": command(),
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),  # a plain string, which checkpoints allow
    }


def record_test_read(fingerprint: str, log: Path = TEST_READS) -> None:
    """Log a read of a table's test-phase rows; call this before the read."""
    run = describe_run()
    entry = {name: run[name] for name in ("time", "command", "commit")}
    _append(log, [json.dumps({**entry, "features": fingerprint})])


def take_over_test_reads(source: Path | RemotePath, log: Path = TEST_READS) -> None:
    """Append the lines of another machine's log that are missing here."""
    known = set(log.read_text().splitlines()) if log.exists() else set()
    source = RemotePath.at(source) if isinstance(source, Path) else source
    lines = source.read().decode().splitlines()
    _append(log, [line for line in lines if line not in known])


def count_test_reads(fingerprint: str, log: Path = TEST_READS) -> int:
    """Count the logged reads of a table's test-phase rows, those of published results included."""
    count = 0
    published = log.with_name("published-reads.jsonl")  # in git, which ignores the other one
    for path in filter(Path.exists, (published, log)):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            try:
                count += json.loads(line)["features"] == fingerprint
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"line {number} of {path} is not a log entry: {line!r}") from None
    return count


def _append(log: Path, lines: list[str]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)

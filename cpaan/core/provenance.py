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

TEST_READS = Path("results") / "test-reads.jsonl"
"""The log: a line for every time that test-phase rows are read.

The test phase proves something only while it decides nothing. The log does not prevent a second
look; it makes every look visible.
"""


def command() -> str:
    """Return the command line of this process, ready to be typed again."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def commit() -> str:
    """Return the project's commit, with "-dirty" if files differ from it; "unknown" outside git.

    ``CPAAN_COMMIT`` overrides it, for a copy of the project on another machine.
    """
    if named := os.environ.get("CPAAN_COMMIT"):
        return named
    git = ["git", "-C", str(Path(__file__).resolve().parents[2])]
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
    """Return what a results file says of the run that made it."""
    return {
        "command": command(),
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),  # a plain string, which a checkpoint may hold
    }


def record_test_read(fingerprint: str, log: Path = TEST_READS) -> None:
    """Append a line to the log before test-phase rows of a table are read."""
    run = describe_run()
    entry = {name: run[name] for name in ("time", "command", "commit")}
    _append(log, [json.dumps({**entry, "features": fingerprint})])


def take_over_test_reads(source: Path, log: Path = TEST_READS) -> None:
    """Append the lines of another machine's log that are missing here."""
    known = set(log.read_text().splitlines()) if log.exists() else set()
    _append(log, [line for line in source.read_text().splitlines() if line not in known])


def count_test_reads(fingerprint: str, log: Path = TEST_READS) -> int:
    """Return how often the log says that this table's test-phase rows were read."""
    count = 0
    lines = log.read_text().splitlines() if log.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            count += json.loads(line)["features"] == fingerprint
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"line {number} of {log} is no entry of the log: {line!r}") from None
    return count


def _append(log: Path, lines: list[str]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)

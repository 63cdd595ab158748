"""Where a number comes from: the command, the commit, the versions; and the test phase's log."""

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


def command() -> str:
    """Return the command line of this process, as one could type it again."""
    return shlex.join(["python", *sys.orig_argv[1:]])


def commit() -> str:
    """Return the project's commit, with "-dirty" if files differ from it; "unknown" outside git.

    A copy of the project on another machine may know it from ``CPAAN_COMMIT`` alone.
    """
    if named := os.environ.get("CPAAN_COMMIT"):
        return named
    root = Path(__file__).resolve().parent.parent
    try:
        head, changes = (
            subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
            ).stdout.strip()
            for arguments in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no", "--", "."],
            )
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
        "torch": str(torch.__version__),  # a plain text, which a checkpoint may hold
    }


def record_test_read(fingerprint: str, log: Path = TEST_READS) -> None:
    """Append one line to the log of test-phase reads, before the rows are read.

    The test phase proves something only while it decides nothing. The log does not prevent a
    second look; it makes every look visible.

    Args:
        fingerprint: Of the feature table whose test-phase rows are about to be read.
        log: The log file; it is made where it is missing.
    """
    run = describe_run()
    entry = {"time": run["time"], "command": run["command"], "commit": run["commit"]}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps({**entry, "features": fingerprint}) + "\n")


def take_over_test_reads(source: Path, log: Path = TEST_READS) -> None:
    """Append what another machine's log says to this one, as far as it is not there already."""
    known = set(log.read_text().splitlines()) if log.exists() else set()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        for line in source.read_text().splitlines():
            if line not in known:
                file.write(line + "\n")


def count_test_reads(fingerprint: str, log: Path = TEST_READS) -> int:
    """Return how often the log says that this table's test-phase rows were read.

    Raises:
        ValueError: If a line of the log cannot be understood.
    """
    if not log.exists():
        return 0
    count = 0
    for number, line in enumerate(log.read_text().splitlines(), start=1):
        try:
            count += json.loads(line)["features"] == fingerprint
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"line {number} of {log} is no entry of the log: {line!r}") from None
    return count

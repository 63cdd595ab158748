"""Run commands, and refuse them."""

import subprocess
from collections.abc import Callable, Sequence

import pytest


def output_of(*command: object, **options: object) -> str:
    """Run a command in a process that must succeed, and return its output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refused(
    capsys: pytest.CaptureFixture[str], command: Callable[[Sequence[str]], int], *arguments: str
) -> str:
    """Return the one line of a command's error; it must print nothing else but progress."""
    try:
        status = command(list(arguments))
    except SystemExit as stop:  # raised by the parser
        status = stop.code
    output, errors = capsys.readouterr()
    assert (status, output) == (2, "")
    (line,) = [line for line in errors.splitlines() if not line.startswith("[")]
    return line

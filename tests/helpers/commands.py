"""Commands that are refused."""

from collections.abc import Callable, Sequence

import pytest


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

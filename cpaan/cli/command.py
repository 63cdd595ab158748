"""How a command starts and ends: its parser, its progress, one line for an error, its status."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

INCOMPLETE = 1  # something failed, or is left to do
BAD_INPUT = 2
INTERRUPTED = 130
CLOSED_PIPE = 141


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        width = min(100, shutil.get_terminal_size().columns - 2)
        super().__init__(prog, max_help_position=30, width=width)


class Parser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of its description and reports an error in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": _Help, **settings})
        self.set_defaults(program=self.prog)

    def error(self, message: str) -> NoReturn:
        """Exit with the line."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_traceback(parser: Parser) -> None:
    """Add the option that every command has."""
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")


def guarded(program: str, command: Callable[[], int], *, traceback: bool) -> int:
    """Run a command and return its exit status; report an error in one line, or raise it."""
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output has exited, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        from cpaan.core.devices import is_out_of_memory  # with torch, which --help does not need

        is_memory = is_out_of_memory(error)
        if traceback or (isinstance(error, RuntimeError) and not is_memory):
            raise
        line = f"{'not enough memory: ' if is_memory else ''}{_one_line(error)}"
        print(f"{program}: error: {line}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def new_progress(log: Path | None = None) -> Callable[[str], None]:
    """Return a function that prints a line with the time since now, and appends it to a log."""
    started = time.monotonic()

    def progress(message: str) -> None:
        line = f"[{time.monotonic() - started:6.1f} s] {message}\n"
        sys.stderr.write(line)  # in one piece, because several threads may print
        sys.stderr.flush()
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(line)

    return progress


def check_writable(folder: Path) -> None:
    """Check before the work that results can be written; create nothing."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error

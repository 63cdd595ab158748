"""How a command ends: what went wrong in one line, and a status that tells the truth."""

import os
import sys
from collections.abc import Callable

import torch

from cpaan.cli.options import BAD_INPUT

INCOMPLETE = 1  # of a study, something failed or is left to do
INTERRUPTED = 130
CLOSED_PIPE = 141


def guarded(program: str, command: Callable[[], int], *, traceback: bool) -> int:
    """Run a command and return its exit status, 0 if all was done.

    Args:
        program: As the user calls it.
        command: Returns a status.
        traceback: Whether errors are shown with where they came from.
    """
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if traceback or (isinstance(error, RuntimeError) and not _is_memory(error)):
            raise
        print(f"{program}: error: {_one_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _is_memory(error: Exception) -> bool:
    """Return whether memory ran out; on the CPU, torch has no type of its own for that."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def _one_line(error: Exception) -> str:
    if _is_memory(error):
        return f"not enough memory: {' '.join(str(error).split())}"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())

"""The command line: one file for each command."""

import os
import sys
from collections.abc import Sequence

import torch

from cpaan.cli import evaluate, represent, settings, spiral
from cpaan.cli.options import BAD_INPUT, Parser

INTERRUPTED = 130
CLOSED_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, 0 if all was done."""
    parser = Parser(
        prog="python -m cpaan", description="Low-shot learning by feature augmentation."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    evaluate.add_command(commands)
    represent.add_command(commands)
    spiral.add_command(commands)
    settings.add_command(commands)
    options = parser.parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if options.traceback or (isinstance(error, RuntimeError) and not _is_memory(error)):
            raise
        print(f"python -m cpaan {options.command}: error: {_one_line(error)}", file=sys.stderr)
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

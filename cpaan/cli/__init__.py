"""The command line: `parsers` declares all options, the module of a command runs it."""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any


def main(arguments: Sequence[str] | None = None, command: str | None = None) -> int:
    """Run a command and return its exit status, 0 if everything was done.

    Args:
        arguments: By default, those of the process.
        command: Of a script in ``tune/``; by default, the first argument names it.
    """
    # Until the imports of the command are done, Ctrl-C ends the process at once. An exception
    # during the import of torch or Ray, which takes seconds, may print a traceback or be lost.
    before = signal.signal(signal.SIGINT, _exit_at_once)
    try:
        from cpaan.cli.command import guarded
        from cpaan.cli.parsers import parse

        options, rest = parse(sys.argv[1:] if arguments is None else arguments, command)

        def run() -> int:
            from cpaan.core.remote_paths import refuse_credentials

            module = import_module(f"cpaan.cli.{options.command}")
            signal.signal(signal.SIGINT, before)
            for argument in rest:  # before any of them is printed, recorded or sent to a cluster
                refuse_credentials(argument)
            status: int = module.run(options, rest)
            return status

        return guarded(options.program, run, traceback=options.traceback)
    finally:
        signal.signal(signal.SIGINT, before)


def _exit_at_once(*_: Any) -> None:
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(130)

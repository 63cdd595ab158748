"""The command line: `parsers` and `study_parsers` declare options, the other modules run them."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from cpaan.cli.command import Parser, guarded
from cpaan.cli.options import add_traceback
from cpaan.cli.parsers import COMMANDS
from cpaan.cli.study_parsers import STUDY_COMMANDS

_COMMANDS = {**COMMANDS, **STUDY_COMMANDS}


def main(arguments: Sequence[str] | None = None, command: str | None = None) -> int:
    """Run a command and return its exit status, 0 if everything was done.

    Args:
        arguments: By default, those of the process.
        command: Of a script in ``tune/``; by default, the first argument names it.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if command:
        parser = Parser(prog=f"python tune/{command}.py")
        _COMMANDS[command][1](parser)
        add_traceback(parser)
        options = parser.parse_args(arguments)
    else:
        is_installed = Path(sys.argv[0]).name == "cpaan"
        parser = Parser(
            prog="cpaan" if is_installed else "python -m cpaan",
            description="Low-shot learning by feature augmentation.",
        )
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        for name, (summary, declare) in _COMMANDS.items():
            parser_of_command = commands.add_parser(name, help=summary)
            declare(parser_of_command)
            add_traceback(parser_of_command)
        options = parser.parse_args(arguments)
        command, arguments = options.command, arguments[1:]
    # Only the module of the command is imported, inside the guard: torch and Ray take seconds.
    return guarded(
        options.program,
        lambda: import_module(f"cpaan.cli.{command}").run(options, arguments),
        traceback=options.traceback,
    )

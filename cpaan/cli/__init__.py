"""The command line: `parsers` and `study_parsers` declare options, the other modules run them."""

from collections.abc import Sequence
from importlib import import_module

from cpaan.cli.command import Parser, run_program
from cpaan.cli.options import add_traceback
from cpaan.cli.parsers import COMMANDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status, 0 if everything was done."""
    parser = Parser(
        prog="python -m cpaan", description="Low-shot learning by feature augmentation."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, declare) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        declare(command)
        add_traceback(command)
    # Only the module of the command is imported: some take seconds.
    return run_program(
        parser, lambda given, _: import_module(f"cpaan.cli.{given.command}").run(given), arguments
    )

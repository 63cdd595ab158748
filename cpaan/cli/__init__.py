"""The command line: `parsers` and `study_parsers` declare options, the other modules run them."""

from collections.abc import Sequence
from importlib import import_module

from cpaan.cli.command import Parser, guarded
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
    options = parser.parse_args(arguments)

    def run() -> int:
        # Only this command's module: some take seconds to import.
        status: int = import_module(f"cpaan.cli.{options.command}").run(options)
        return status

    return guarded(f"{parser.prog} {options.command}", run, traceback=options.traceback)

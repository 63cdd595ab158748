"""The command line: one file for each command."""

from collections.abc import Sequence

from cpaan.cli import evaluate, represent, settings, spiral
from cpaan.cli.guard import guarded
from cpaan.cli.options import Parser


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
    return guarded(
        f"python -m cpaan {options.command}",
        lambda: int(options.run(options)),
        traceback=options.traceback,
    )

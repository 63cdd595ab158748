"""``settings``: everything that ``--set`` can set, with its value and its meaning."""

import argparse
import ast
import inspect
import itertools
import textwrap
from typing import Any

from cpaan.cli.options import add_traceback
from cpaan.core.settings import Settings
from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import PN
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import BackboneConfig, EmbeddingConfig

_HELP = """\
List all settings: name, value, the paper's or the benchmark's value where it is another, and what
it means. Those of evaluation and of meta-training are changed by `evaluate --set NAME=VALUE`,
those of one row of the table by `evaluate --set ROW.NAME=VALUE`, of the backbone by `represent
--set NAME=VALUE`, those of the embedding by `represent --embed-set NAME=VALUE`.
"""


def add_command(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "settings",
        help="list what --set can set, with values and meanings",
        description=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_settings)
    add_traceback(parser)


def _settings(options: argparse.Namespace) -> int:
    evaluation = EvaluationConfig()
    printed = evaluation.with_overrides(META_TESTING_AS_PRINTED)
    print("Evaluation\n" + _describe(evaluation, printed, "as printed"))
    as_printed = TrainConfig.as_printed()
    print("\nMeta-training\n" + _describe(TrainConfig(), as_printed, "as printed"))
    in_benchmark = BackboneConfig.as_in_benchmark()
    print("\nBackbone\n" + _describe(BackboneConfig(), in_benchmark, "in the benchmark"))
    published = EmbeddingConfig.plain()
    print("\nEmbedding\n" + _describe(EmbeddingConfig(), published, "as published"))
    for name, row in ROWS.items():
        if row.published is not None and row.gan is None and name != PN:
            print(f"\n{name}\n" + _describe(row.config, row.published, "as published"))
    return 0


def _describe(config: Settings, other: Settings, where: str) -> str:
    meanings = _meanings(type(config))
    of_other = other.to_dict()
    lines = []
    for name, value in config.to_dict().items():
        head = f"  {name}={_as_text(value)}"
        if of_other[name] != value:
            head += f"    ({where}: {_as_text(of_other[name])})"
        lines.append(head)
        indent = " " * 6
        lines += textwrap.wrap(
            meanings.get(name, ""), 92, initial_indent=indent, subsequent_indent=indent
        )
    return "\n".join(lines)


def _as_text(value: Any) -> str:
    """Return a value as ``--set`` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(_as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _meanings(kind: type[Settings]) -> dict[str, str]:
    """Return the text below each field of a config: it is written once, and there."""
    found: dict[str, str] = {}
    for parent in kind.__mro__[:-1]:
        (body,) = (
            node.body
            for node in ast.parse(inspect.getsource(parent)).body
            if isinstance(node, ast.ClassDef)
        )
        for field, text in itertools.pairwise(body):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(meaning))),
                ):
                    found.setdefault(name, " ".join(meaning.split()))
    return found

"""``settings``: everything that ``--set`` can set, with its value and its meaning."""

import argparse
import inspect
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from cpaan.core.settings import Settings
from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.methods.registry import METHODS, expand_methods
from cpaan.methods.table_row import PN
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import BackboneConfig, EmbeddingConfig

_FIELD = re.compile(r'^    (\w+): [^\n]+\n    """(.*?)"""', re.MULTILINE | re.DOTALL)


def run(options: argparse.Namespace, _: Sequence[str]) -> int:
    """Print all settings, or those of one row; return the exit status."""
    evaluation = EvaluationConfig()
    printed = evaluation.with_overrides(META_TESTING_AS_PRINTED)
    benchmark, plain = BackboneConfig.as_in_benchmark(), EmbeddingConfig.plain()
    sections: list[tuple[str, Settings, Settings, str]] = [
        ("Evaluation", evaluation, printed, "as printed"),
        ("Meta-training", TrainConfig(), TrainConfig.as_printed(), "as printed"),
        ("Backbone", BackboneConfig(), benchmark, "in the benchmark"),
        ("Embedding", EmbeddingConfig(), plain, "as published"),
    ]
    for name, method in METHODS.items():
        if method.published is not None and method.gan is None and name != PN:
            sections.append((name, method.config, method.published, "as published"))
    if options.row is not None:
        (name,) = expand_methods([options.row])
        method = METHODS[name]
        published = method.published or method.config
        sections = [sections[0], (name, method.config, published, "as published")]
    print("\n\n".join(_describe(*section) for section in sections))
    return 0


def _describe(title: str, config: Settings, other: Settings, where: str) -> str:
    """Return a line for every field with its value, and below it the text of its docstring."""
    meanings = {
        name: " ".join(text.split())
        for parent in reversed(type(config).__mro__[:-1])
        for name, text in _FIELD.findall(inspect.getsource(parent))
    }
    lines, others = [title], other.to_dict()
    for name, value in config.to_dict().items():
        line = f"  {name}={_as_text(value)}"
        if others[name] != value:
            line += f"    ({where}: {_as_text(others[name])})"
        meaning = textwrap.wrap(meanings.get(name, ""), width=86)
        lines += [line, *(f"      {part}" for part in meaning)]
    return "\n".join(lines)


def _as_text(value: Any) -> str:
    """Return a value as ``--set`` takes it."""
    if isinstance(value, tuple):
        return ",".join(map(_as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

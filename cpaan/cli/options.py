"""How options are declared: groups of them, and the types of their values."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")
Value = str | Sequence[str] | None
Option = tuple[str, Value, str]
"""Name, value and help; see `Options.add`."""


def _type(wanted: str, parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a type for argparse: ``parse`` raises ValueError for a text that is not wanted."""

    def checked(text: str) -> _T:
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None

    return checked


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError
    return int(text)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise ValueError
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))


_VALUES: dict[str, dict[str, Any]] = {
    "N": {"type": _type("a positive whole number", _positive)},
    "SEED": {"type": _type("a whole number", int)},
    "X": {"type": _type("a number", float)},
    "TIME": {"type": _type("a time like 90, 10m or 2h", _seconds)},
    "K,...": {"type": _type("a list of positive whole numbers separated by commas", _numbers)},
    "NAME,...": {"type": _names},
    "DIR": {"type": Path},
    "FILE": {"nargs": "+"},
    "NAME=VALUE": {"action": "append", "default": []},
}
"""Further arguments for argparse by metavar; options with other metavars are texts."""


class Options:
    """A group of options with a title, or all options of a parser."""

    def __init__(
        self, parser: argparse._ActionsContainer, title: str | None = None, *options: Option
    ) -> None:
        self._group = parser if title is None else parser.add_argument_group(title)
        for option in options:
            self.add(*option)

    def add(self, option: str, value: Value, help_: str, **others: Any) -> None:
        """Add an option with a value, given by its metavar or its choices, or without one."""
        if value is None:
            others.setdefault("action", "store_true")
        elif isinstance(value, str):
            others = {"metavar": value, **_VALUES.get(value, {}), **others}
        else:
            others["choices"] = value
        self._group.add_argument(option, help=help_, **others)

    def exclusive(self, *, required: bool = False) -> "Options":
        """Return a group of options, of which a command can have one."""
        return Options(self._group.add_mutually_exclusive_group(required=required))


def overrides_of(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Return the given options that are named like fields of a dataclass."""
    values = {field.name: getattr(options, field.name, None) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}

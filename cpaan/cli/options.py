"""How options are declared: groups of them, those of several commands, and types of values."""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from cpaan.protocol.config import HEADS

_T = TypeVar("_T")


class Options:
    """A group of options, each declared in a line; further arguments are those of argparse."""

    def __init__(self, group: argparse._ActionsContainer) -> None:
        self.group = group

    def text(self, option: str, metavar: str, help_: str, **others: Any) -> None:
        """Add an option with a value."""
        self.group.add_argument(option, metavar=metavar, help=help_, **others)

    def count(self, option: str, help_: str, **others: Any) -> None:
        """Add an option that is a positive whole number."""
        self.text(option, "N", help_, type=positive_number, **others)

    def choice(self, option: str, choices: Sequence[str], help_: str, **others: Any) -> None:
        """Add an option that is one of some words."""
        self.group.add_argument(option, choices=choices, help=help_, **others)

    def flag(self, option: str, help_: str, **others: Any) -> None:
        """Add an option without a value."""
        self.group.add_argument(option, action="store_true", help=help_, **others)

    def switch_off(self, option: str, dest: str, help_: str) -> None:
        """Add an option that makes a setting false; without it, the setting is not given."""
        self.group.add_argument(option, action="store_const", const=False, dest=dest, help=help_)

    def features(self) -> None:
        """Add the feature tables and their split."""
        help_ = "Parquet file, HDF5 pair, or a folder of either (default: the built-in features)"
        self.text("--features", "F", help_, nargs="+")
        help_ = "the same rows from `represent --loss cosine`, for AWG-cosine"
        self.text("--cosine-features", "F", help_, nargs="+")
        self.split()

    def split(self) -> None:
        """Add the split."""
        self.text("--split", "S", "split.json or label_idx.json (default: the one beside the data)")

    def draws_file(self) -> None:
        """Add draws from files."""
        self.text("--draws-file", "J", "fixed draws as JSON, or the benchmark's files", nargs="+")

    def heads(self, default: str) -> None:
        """Add the classifiers."""
        self.text("--heads", "H,H,...", f"of {', '.join(HEADS)} (default: {default})", type=names)

    def settings(self, what: str, option: str = "--set") -> None:
        """Add an option that sets anything by its name."""
        help_ = f"any setting of {what}, repeatable; `python -m cpaan settings` lists them"
        self.text(option, "NAME=VALUE", help_, action="append", default=[])

    def ray(self) -> None:
        """Add the choice of a Ray, or of a cluster on which the command runs."""
        self.text("--address", "A", "running Ray, host:port or auto (default: start one)")
        self.text("--cluster", "Y", "run on the cluster of this `ray up` file; repeat to follow it")
        self.flag("--stop", "with --cluster: stop the job and keep its results")


def add_traceback(parser: argparse.ArgumentParser) -> None:
    """Add the option that every command has."""
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")


def overrides_of(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Return the given options that are named like fields of a dataclass."""
    values = {field.name: getattr(options, field.name, None) for field in fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


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


def names(text: str) -> tuple[str, ...]:
    """Return names that have commas between them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


positive_number = _type("a positive whole number", _positive)
positive_numbers = _type(
    "a list of positive whole numbers separated by commas",
    lambda text: tuple(map(_positive, text.split(","))),
)
duration = _type("a time like 90, 10m or 2h", _seconds)

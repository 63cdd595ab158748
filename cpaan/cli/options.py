"""Options that several commands have, and the types of their values."""

import argparse
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from cpaan.protocol.config import HEADS

_T = TypeVar("_T")
Group = argparse._ActionsContainer


def add_count(group: Group, option: str, help_: str, **others: Any) -> None:
    """Add an option that is a positive whole number."""
    group.add_argument(option, type=positive_number, metavar="N", help=help_, **others)


def add_features(group: Group) -> None:
    """Add the feature tables and their split."""
    help_ = "Parquet file, HDF5 pair, or a folder of either; path or s3://... (default: built-in)"
    group.add_argument("--features", nargs="+", metavar="F", help=help_)
    help_ = "the same rows from `represent --loss cosine`, for AWG-cosine"
    group.add_argument("--cosine-features", nargs="+", metavar="F", help=help_)
    add_split(group)


def add_split(group: Group) -> None:
    """Add the split."""
    help_ = "split.json, or the benchmark's label_idx.json (default: the one beside the data)"
    group.add_argument("--split", metavar="S", help=help_)


def add_settings(group: Group, what: str, option: str = "--set") -> None:
    """Add an option that sets anything by its name."""
    help_ = f"any setting of {what}, repeatable; `python -m cpaan settings` lists them"
    group.add_argument(option, action="append", default=[], metavar="NAME=VALUE", help=help_)


def add_draws_file(group: Group) -> None:
    """Add draws from files."""
    help_ = "fixed draws as JSON: rows by class, or the benchmark's index files"
    group.add_argument("--draws-file", nargs="+", metavar="J", help=help_)


def add_heads(group: Group, default: str) -> None:
    """Add the classifiers."""
    help_ = f"of {', '.join(HEADS)} (default: {default})"
    group.add_argument("--heads", type=names, metavar="H,H,...", help=help_)


def add_device(group: Group) -> None:
    """Add the choice of a device."""
    group.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")


def add_traceback(group: Group) -> None:
    """Add the option that every command has."""
    group.add_argument("--traceback", action="store_true", help="show where an error came from")


def add_ray(group: Group) -> None:
    """Add the choice of a Ray, or of a cluster on which the command runs."""
    add = group.add_argument
    add("--address", metavar="A", help="running Ray, host:port or auto (default: start one)")
    help_ = "run on the cluster of this `ray up` file; the same command follows its job again"
    add("--cluster", metavar="Y", help=help_)
    add("--stop", action="store_true", help="with --cluster: stop the job and keep its results")


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
    "positive whole numbers with commas", lambda text: tuple(map(_positive, text.split(",")))
)
duration = _type("a time like 90, 10m or 2h", _seconds)

"""What the commands' options have in common."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.splits import Split, find_split, read_split
from cpaan.data.table import FeatureTable

BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with the line."""
        self.exit(BAD_INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a device."""
    parser.add_argument("--device", help="default: cuda where there is one, otherwise cpu")


def add_traceback(parser: argparse.ArgumentParser) -> None:
    """Add what every command has."""
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")


def choose_device(name: str | None) -> torch.device:
    """Return a device that works.

    Raises:
        ValueError: If the named one does not.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    # A name torch does not know, a device that is not there, one torch was not built for.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name} cannot be used: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is cpu or cuda, got {name}")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where kernels and streams of our own begin
    return device


def open_data(features: list[str] | None, split: str | None) -> tuple[FeatureTable, Split]:
    """Open the features and the split that were named; without any, the built-in ones.

    Raises:
        ValueError: If there is a split without features, or none beside them.
    """
    if features is None:
        if split is not None:
            raise ValueError("--split needs --features")
        return builtin_features()
    found = read_split(split or find_split(features[0]))
    table = open_features(*features, label_names=found.label_names, progress=new_progress())
    return table, found


def check_writable(folder: Path) -> None:
    """Find out before the work whether its results can be written, and leave nothing behind."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder}: {error.strerror}") from error


def new_progress() -> Callable[[str], None]:
    """Return a function that prints a line with the time since now, to the error stream."""
    started = time.monotonic()

    def progress(message: str) -> None:
        # In one piece: several threads may have something to say.
        sys.stderr.write(f"[{time.monotonic() - started:6.1f} s] {message}\n")
        sys.stderr.flush()

    return progress


def names(text: str) -> list[str]:
    """Return names that have commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def positive_number(text: str) -> int:
    """Return a positive whole number."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def positive_numbers(text: str) -> tuple[int, ...]:
    """Return positive whole numbers that have commas between them."""
    return tuple(positive_number(part) for part in text.split(","))

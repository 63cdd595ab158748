"""Devices and data that options name."""

from collections.abc import Sequence

import torch

from cpaan.cli.command import new_progress
from cpaan.data import reference
from cpaan.data.splits import Split
from cpaan.data.table import FeatureTable


def choose_device(name: str | None) -> torch.device:
    """Return a device that works; ValueError if the named one does not."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(1, device=device)
    # A name torch does not know, a device that is not there, one torch was not built for.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name} cannot be used: {reason}") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be cpu or cuda, got {name}")
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # the default of kernels and streams
    return device


def open_data(features: Sequence[str] | None, split: str | None) -> tuple[FeatureTable, Split]:
    """Open data as `cpaan.data.reference.open_data` does, with lines about the progress."""
    return reference.open_data(features, split, new_progress())

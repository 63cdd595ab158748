"""Devices and data that options name."""

from collections.abc import Sequence

import torch

from cpaan.cli.command import new_progress
from cpaan.data.builtin import builtin_features
from cpaan.data.cache import open_features
from cpaan.data.splits import Split, find_split, read_split
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
    """Open the features and their split; without any, the built-in ones.

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

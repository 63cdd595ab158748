"""What a folder of features holds, and whether it is of the same making."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

FEATURES, ABOUT = "features.parquet", "about.json"


def check_same(before: Mapping[str, Any], job: Mapping[str, Any], folder: Path) -> None:
    """Refuse to go on with what something else has made.

    Args:
        before: What decided it, as the folder has it.
        job: What decides it now.
        folder: For the message.

    Raises:
        ValueError: If they differ.
    """
    for name, value in job.items():
        was = before.get(name)
        if was != value:
            is_short = not isinstance(value, dict | list) and name not in ("images", "features")
            what = f"{name} = {was} and not {value}" if is_short else f"other {name}"
            raise ValueError(f"{folder} holds the work of a run with {what}: choose another folder")


def load_state(checkpoint: Path) -> dict[str, Any]:
    """Return what a run left in a file.

    Raises:
        ValueError: If the file cannot be read.
    """
    try:
        state: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
        return state
    except Exception as error:  # what unpickling a damaged file raises is anybody's guess
        reason = " ".join(str(error).split())
        raise ValueError(f"{checkpoint} cannot be read: {reason}") from error

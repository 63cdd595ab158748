"""What a folder of features holds, and whether it is of the same making."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FEATURES, ABOUT = "features.parquet", "about.json"


def read_made(folder: Path, job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a folder says of its features; None where they are not made yet.

    Args:
        folder: Where they should be.
        job: What decides them.

    Raises:
        ValueError: If there are others.
    """
    path = folder / ABOUT
    if not path.exists():
        return None
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        before = about["job"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is of something else: choose another folder") from error
    check_same(before, job, folder)
    return about if (folder / FEATURES).exists() else None


def refuse_foreign(folder: Path, *own: Path) -> None:
    """Refuse to replace features that are not known to be this command's.

    Args:
        folder: Where features are about to be written.
        own: Files of which one shows that what is there was left by an unfinished run.

    Raises:
        ValueError: If there are features and none of these.
    """
    if (folder / FEATURES).exists() and not any(path.exists() for path in own):
        raise ValueError(
            f"{folder / FEATURES} is there and would be replaced: choose another folder"
        )


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
            raise ValueError(
                f"{folder} holds the work of a run with {what}: choose another folder, or remove it"
            )

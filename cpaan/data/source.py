"""What every form of feature file is read as: some facts at once, the rows block by block."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpaan.data.table import FeatureArray

ROWS_PER_BLOCK = 8192  # 16 MiB at 512 dimensions in float32
# Under these names a file's own metadata tells who made the features.
BACKBONE, BACKBONE_CLASSES = "cpaan.backbone", "cpaan.backbone_classes"


class Block(NamedTuple):
    """Some consecutive rows of a file."""

    features: FeatureArray  # (rows, D)
    classes: NDArray[np.str_]  # (rows,)
    is_train: NDArray[np.bool_]  # (rows,)


@dataclass(frozen=True)
class Source:
    """A file opened for decoding."""

    num_rows: int
    blocks: Iterator[Block]
    backbone: str | None
    backbone_classes: list[str] | None


def parse_classes(text: object) -> list[str] | None:
    """Return the backbone's classes from a file's metadata; None where there are none.

    Raises:
        ValueError: If it is anything but a JSON list of names.
    """
    if text is None:
        return None
    try:
        names = json.loads(str(text))
    except json.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{BACKBONE_CLASSES} must be a JSON list of class names")
    return names

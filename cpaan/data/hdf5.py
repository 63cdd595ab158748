"""The HDF5 pair of the low-shot benchmark: one file for the train rows and one for the test rows.

Each holds ``all_feats`` (in its successors ``all_features``), ``all_labels`` and ``count``. The
files are padded, and only the first ``count`` rows are data.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from cpaan.data.source import (
    BACKBONE,
    BACKBONE_CLASSES,
    ROWS_PER_BLOCK,
    Block,
    Source,
    parse_classes,
)
from cpaan.data.table import as_feature_block

_FEATURES = ("all_feats", "all_features")


def open_hdf5_pair(train: Path, test: Path, label_names: Sequence[str] | None) -> Source:
    """Open a pair for decoding.

    Args:
        train: The file with the train rows, and with who made the features, where anyone says.
        test: The file with the test rows.
        label_names: The class name behind each integer label; without it, its number.

    Raises:
        ValueError: Here or while going through the blocks, where a file is damaged or holds
            no feature table.
    """
    parts = []
    for path in (train, test):
        try:
            parts.append((path, h5py.File(path, "r")))
        except OSError as error:
            raise ValueError(f"{path} cannot be read, truncated or damaged: {error}") from error
    attributes = parts[0][1].attrs
    backbone = attributes.get(BACKBONE)
    return Source(
        num_rows=sum(_count(path, file) for path, file in parts),
        blocks=_blocks(parts, label_names),
        backbone=None if backbone is None else str(backbone),
        backbone_classes=parse_classes(attributes.get(BACKBONE_CLASSES)),
    )


def _array(path: Path, file: h5py.File, names: Sequence[str], kinds: str) -> h5py.Dataset:
    """Return the first array of these names, if it has a kind of numbers that is allowed."""
    for name in names:
        if name in file:
            found = file[name]
            if not isinstance(found, h5py.Dataset) or found.dtype.kind not in kinds:
                raise ValueError(f"{path.name}: {name} is no array of the right kind of numbers")
            return found
    raise ValueError(f"{path.name} has no {' or '.join(names)}, found {sorted(file)}")


def _count(path: Path, file: h5py.File) -> int:
    """Return how many rows are data; the file is padded beyond them."""
    features = _array(path, file, _FEATURES, "f")
    labels = _array(path, file, ["all_labels"], "iu")
    count = _array(path, file, ["count"], "iu")
    if features.ndim != 2 or labels.ndim != 1 or count.size != 1:
        raise ValueError(
            f"{path.name}: features, labels and count have the shapes {features.shape}, "
            f"{labels.shape} and {count.shape}, but must have two, one and no dimensions"
        )
    num_rows = int(np.asarray(count).reshape(()))
    if not 0 < num_rows <= min(len(features), len(labels)):
        raise ValueError(
            f"{path.name}: count is {num_rows}, but there are {len(features)} features "
            f"and {len(labels)} labels"
        )
    return num_rows


def _blocks(
    parts: Sequence[tuple[Path, h5py.File]], label_names: Sequence[str] | None
) -> Iterator[Block]:
    for part, (path, file) in enumerate(parts):
        features = _array(path, file, _FEATURES, "f")
        labels = file["all_labels"]
        count = _count(path, file)
        for start in range(0, count, ROWS_PER_BLOCK):
            stop = min(start + ROWS_PER_BLOCK, count)
            try:
                block = as_feature_block(features[start:stop], first_row=start)
            except ValueError as error:
                raise ValueError(f"{path.name}: {error}") from error
            numbers = labels[start:stop]
            if label_names is None:
                names = numbers.astype(np.str_)
            elif numbers.min() < 0 or numbers.max() >= len(label_names):
                raise ValueError(
                    f"{path.name}: labels go from {numbers.min()} to {numbers.max()}, "
                    f"but there are {len(label_names)} label names"
                )
            else:
                names = np.asarray(label_names, dtype=np.str_)[numbers]
            yield Block(block, names, np.full(stop - start, part == 0))

"""The HDF5 pair of the low-shot benchmark: one file for the train rows and one for the test rows.

Each holds ``all_feats`` (in its successors ``all_features``), ``all_labels`` and ``count``. The
files are padded, and only the first ``count`` rows are data.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from cpaan.data.files import (
    BACKBONE,
    BACKBONE_CLASSES,
    ROWS_PER_BLOCK,
    Block,
    Source,
    parse_classes,
)
from cpaan.data.table import FeatureArray, as_feature_block


def open_hdf5_pair(train: Path, test: Path, label_names: Sequence[str] | None) -> Source:
    """Open a pair for decoding; without label names, classes are called by their numbers."""
    parts = []
    for path in (train, test):
        try:
            parts.append(_Part(path, h5py.File(path, "r")))
        except OSError as error:
            raise ValueError(f"{path} cannot be read, truncated or damaged: {error}") from error
    attributes = parts[0].file.attrs
    backbone = attributes.get(BACKBONE)
    return Source(
        num_rows=sum(part.num_rows for part in parts),
        blocks=(
            Block(*rows, np.full(len(rows[0]), part is parts[0]))
            for part in parts
            for rows in part.blocks(label_names)
        ),
        backbone=None if backbone is None else str(backbone),
        backbone_classes=parse_classes(attributes.get(BACKBONE_CLASSES)),
    )


class _Part:
    """One file of a pair, its arrays checked."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.name, self.file = path.name, file
        self.features = self._array(["all_feats", "all_features"], "f")
        self.labels = self._array(["all_labels"], "iu")
        count = self._array(["count"], "iu")
        if self.features.ndim != 2 or self.labels.ndim != 1 or count.size != 1:
            raise ValueError(
                f"{self.name}: features, labels and count have the shapes {self.features.shape}, "
                f"{self.labels.shape} and {count.shape}, but must have two, one and no dimensions"
            )
        self.num_rows = int(np.asarray(count).reshape(()))
        if not 0 < self.num_rows <= min(len(self.features), len(self.labels)):
            raise ValueError(
                f"{self.name}: count is {self.num_rows}, but there are {len(self.features)} "
                f"features and {len(self.labels)} labels"
            )

    def _array(self, names: Sequence[str], kinds: str) -> h5py.Dataset:
        """Return the first array of these names, which must be of a kind of numbers."""
        for name in names:
            if name in self.file:
                found = self.file[name]
                if not isinstance(found, h5py.Dataset) or found.dtype.kind not in kinds:
                    raise ValueError(
                        f"{self.name}: {name} is no array of the right kind of numbers"
                    )
                return found
        raise ValueError(f"{self.name} has no {' or '.join(names)}, found {sorted(self.file)}")

    def blocks(
        self, label_names: Sequence[str] | None
    ) -> Iterator[tuple[FeatureArray, NDArray[np.str_]]]:
        """Iterate over features and class names."""
        for start in range(0, self.num_rows, ROWS_PER_BLOCK):
            stop = min(start + ROWS_PER_BLOCK, self.num_rows)
            try:
                features = as_feature_block(self.features[start:stop], first_row=start)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from error
            numbers = self.labels[start:stop]
            if label_names is None:
                yield features, numbers.astype(np.str_)
                continue
            if numbers.min() < 0 or numbers.max() >= len(label_names):
                raise ValueError(
                    f"{self.name}: labels go from {numbers.min()} to {numbers.max()}, "
                    f"but there are {len(label_names)} label names"
                )
            yield features, np.asarray(label_names, dtype=np.str_)[numbers]

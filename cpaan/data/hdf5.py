"""The HDF5 pair of the low-shot benchmark: one file for the train rows and one for the test rows.

Each contains ``all_feats`` (``all_features`` in its successors), ``all_labels`` and ``count``. The
files are padded: only the first ``count`` rows are data.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from cpaan.data.files import ROWS_PER_BLOCK, Block, Source
from cpaan.data.table import as_feature_block


def open_hdf5_pair(train: Path, test: Path, label_names: Sequence[str] | None) -> Source:
    """Open a pair for decoding; without label names, the label numbers are the class names."""
    parts = [_Part(train), _Part(test)]
    return Source(
        num_rows=sum(part.num_rows for part in parts),
        blocks=(block for part in parts for block in part.blocks(label_names, part is parts[0])),
        metadata=dict(parts[0].file.attrs),
    )


class _Part:
    """One file of a pair, with validated arrays."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            self.file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path} cannot be read, truncated or damaged: {error}") from error
        self.features = self._array(["all_feats", "all_features"], "f", [2])
        self.labels = self._array(["all_labels"], "iu", [1])
        counts = np.ravel(self._array(["count"], "iu", [0, 1]))
        most = min(len(self.features), len(self.labels))
        if len(counts) != 1 or not 0 < counts[0] <= most:
            raise ValueError(
                f"{self.name}: count is {counts.tolist()}, but must be one number up to {most}"
            )
        self.num_rows = int(counts[0])

    def _array(self, names: Sequence[str], kinds: str, num_dims: Sequence[int]) -> h5py.Dataset:
        """Return the array with one of these names; check its kind of dtype and its dimensions."""
        found = next((self.file[name] for name in names if name in self.file), None)
        if found is None:
            raise ValueError(f"{self.name} has no {' or '.join(names)}, found {sorted(self.file)}")
        is_array = isinstance(found, h5py.Dataset) and found.dtype.kind in kinds
        if not is_array or found.ndim not in num_dims:
            wanted = "floating-point" if kinds == "f" else "whole"
            raise ValueError(
                f"{self.name}: {found.name[1:]} must be an array of {wanted} numbers with "
                f"{num_dims[-1]} dimensions, got {found}"
            )
        return found

    def blocks(self, label_names: Sequence[str] | None, is_train: bool) -> Iterator[Block]:
        """Iterate over blocks of rows."""
        for start in range(0, self.num_rows, ROWS_PER_BLOCK):
            stop = min(start + ROWS_PER_BLOCK, self.num_rows)
            try:
                features = as_feature_block(self.features[start:stop], first_row=start)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from error
            numbers = self.labels[start:stop]
            if label_names is None:
                classes = numbers.astype(np.str_)
            elif numbers.min() < 0 or numbers.max() >= len(label_names):
                raise ValueError(
                    f"{self.name}: labels go from {numbers.min()} to {numbers.max()}, "
                    f"but there are {len(label_names)} label names"
                )
            else:
                classes = np.asarray(label_names, dtype=np.str_)[numbers]
            yield Block(features, classes, np.full(stop - start, is_train))

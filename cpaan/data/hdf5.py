"""The HDF5 pair of the low-shot benchmark: one file for the train rows and one for the test rows.

Each contains ``all_feats`` (``all_features`` in its successors), ``all_labels`` and ``count``. The
files are padded: only the first ``count`` rows are data.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cpaan.data.files import ROWS_PER_BLOCK, Block, Source, naming
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
        self._name = path.name
        with naming(path.name):
            self.file = h5py.File(path, "r")
            self._features = self._array(["all_feats", "all_features"], "f", [2])
            self._labels = self._array(["all_labels"], "iu", [1])
            counts = np.ravel(self._array(["count"], "iu", [0, 1]))
            most = min(len(self._features), len(self._labels))
            if len(counts) != 1 or not 0 < counts[0] <= most:
                raise ValueError(
                    f"count is {counts.tolist()}, but must be one number from 1 to {most}"
                )
            self.num_rows = int(counts[0])

    def _array(self, names: Sequence[str], kinds: str, num_dims: Sequence[int]) -> h5py.Dataset:
        """Return the array with one of these names; check its kind of dtype and its dimensions."""
        array = next((self.file[name] for name in names if name in self.file), None)
        if array is None:
            raise ValueError(f"there is no {' or '.join(names)}, found {sorted(self.file)}")
        is_array = isinstance(array, h5py.Dataset) and array.dtype.kind in kinds
        if not is_array or array.ndim not in num_dims:
            wanted = "floating-point" if kinds == "f" else "whole"
            raise ValueError(
                f"{array.name[1:]} must be an array of {wanted} numbers with "
                f"{num_dims[-1]} dimensions, got {array}"
            )
        return array

    def blocks(self, label_names: Sequence[str] | None, is_train: bool) -> Iterator[Block]:
        """Iterate over blocks of rows."""
        for start in range(0, self.num_rows, ROWS_PER_BLOCK):
            stop = min(start + ROWS_PER_BLOCK, self.num_rows)
            with naming(self._name):
                features = as_feature_block(self._features[start:stop], first_row=start)
                classes = _name_labels(self._labels[start:stop], label_names)
            yield Block(features, classes, np.full(stop - start, is_train))


def _name_labels(labels: NDArray[Any], names: Sequence[str] | None) -> NDArray[np.str_]:
    if names is None:
        return labels.astype(np.str_)
    if labels.min() < 0 or labels.max() >= len(names):
        raise ValueError(
            f"labels range from {labels.min()} to {labels.max()}, "
            f"but there are {len(names)} label names"
        )
    return np.asarray(names, dtype=np.str_)[labels]

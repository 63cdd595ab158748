"""The feature table, the input of all other parts of the project.

Shapes: R = rows, D = feature dimension.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TRAIN, TEST = "train", "test"

FeatureArray = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features of labelled images.

    Create one with `from_arrays`, or map one from disk with `cpaan.data.cache.open_features`.
    """

    features: FeatureArray  # (R, D), often a read-only memory map
    labels: NDArray[np.int32]  # (R,) positions in class_names
    is_train: NDArray[np.bool_]  # (R,) True for train rows, False for test rows
    class_names: tuple[str, ...]
    backbone: str | None
    """Name of the network that computed the features."""
    backbone_classes: frozenset[str] | None
    """Classes that the backbone was trained on, if known."""
    fingerprint: str
    """Digest of features, labels, partitions and class names, independent of the file format."""

    @classmethod
    def from_arrays(
        cls,
        features: NDArray[Any],
        classes: Sequence[str],
        partitions: Sequence[str],
        *,
        backbone: str | None = None,
        backbone_classes: Sequence[str] | None = None,
    ) -> "FeatureTable":
        """Create a table from arrays in memory; raise ValueError if they are not valid.

        Args:
            features: Shape (R, D), floating point; types wider than float32 are rounded to it.
            classes: R class names.
            partitions: R values, "train" or "test".
            backbone: Name of the network that computed the features.
            backbone_classes: Names of the classes that the backbone was trained on.
        """
        features = np.array(as_feature_block(features, first_row=0))  # a private copy
        if not len(features) == len(classes) == len(partitions):
            raise ValueError(
                f"{len(features)} features, {len(classes)} classes and {len(partitions)} "
                "partitions: the three numbers must be equal"
            )
        names, inverse = np.unique(np.asarray(classes, dtype=np.str_), return_inverse=True)
        labels: NDArray[np.int32] = inverse.astype(np.int32)
        is_train = parse_partitions(partitions, first_row=0)
        class_names = tuple(str(name) for name in names)
        known = None if backbone_classes is None else frozenset(backbone_classes)
        table = cls(features, labels, is_train, class_names, backbone, known, fingerprint="")
        return table.with_changes()

    def with_changes(self, **changes: Any) -> "FeatureTable":
        """Return a copy with some fields replaced, and its fingerprint recomputed."""
        new = replace(self, **changes)
        digest = hashlib.blake2b(np.ascontiguousarray(new.features).data, digest_size=16)
        fingerprint = finish_fingerprint(digest, new.labels, new.is_train, new.class_names)
        return replace(new, fingerprint=fingerprint)

    @property
    def num_dims(self) -> int:
        """Feature dimension D."""
        return self.features.shape[1]

    @cached_property
    def _rows_by_group(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row numbers sorted by class and partition, and the starts of the groups."""
        group_of_row = 2 * self.labels.astype(np.int64) + self.is_train
        rows = np.argsort(group_of_row, kind="stable")
        groups = np.arange(2 * len(self.class_names) + 1)
        return rows, np.searchsorted(group_of_row[rows], groups)

    def rows_of(self, class_name: str, partition: str) -> NDArray[np.int64]:
        """Return the row numbers of one class in one partition, in table order."""
        if class_name not in self.class_names:
            raise ValueError(f"the features have no class {class_name}")
        group = 2 * self.class_names.index(class_name) + (partition == TRAIN)
        rows, first_of_group = self._rows_by_group
        return rows[first_of_group[group] : first_of_group[group + 1]]

    def gather(self, rows: NDArray[np.int64]) -> Tensor:
        """Return a copy of some rows, shape (*rows.shape, D), in the precision of the table."""
        return torch.from_numpy(np.asarray(self.features[rows]))


def align_rows(table: FeatureTable, to: FeatureTable) -> FeatureTable:
    """Reorder the rows of a table to match another table of the same examples.

    Rows carry no identifiers, so they are matched by their position within class and partition.
    A table that is already in this order is returned unchanged.

    Raises:
        ValueError: If the numbers of rows differ in a class; the message names the first one.
    """
    source = np.empty(len(to.labels), np.int64)
    for name in sorted({*table.class_names, *to.class_names}):
        for partition in (TRAIN, TEST):
            rows, places = (
                side.rows_of(name, partition) if name in side.class_names else np.empty(0, np.int64)
                for side in (table, to)
            )
            if len(rows) != len(places):
                raise ValueError(
                    f"class {name} has {len(rows)} {partition} rows, not {len(places)}"
                )
            source[places] = rows
    if table.class_names == to.class_names and (np.diff(source) == 1).all():
        return table
    return table.with_changes(
        features=table.features[source],
        labels=to.labels,
        is_train=to.is_train,
        class_names=to.class_names,
    )


def as_feature_block(block: NDArray[Any], first_row: int) -> FeatureArray:
    """Validate a matrix of consecutive rows and return it as float16 or float32.

    The message about values that are not finite counts rows from ``first_row``.
    """
    block = np.asarray(block)
    if block.ndim != 2 or block.dtype.kind != "f" or block.shape[1] == 0:
        raise ValueError(
            f"features must be a matrix of floating-point numbers, got shape {block.shape} "
            f"of {block.dtype}"
        )
    if block.dtype != np.float16:
        with np.errstate(over="ignore"):  # values that float32 cannot hold are reported below
            block = block.astype(np.float32)
    is_bad = ~np.isfinite(block).all(axis=1)
    if is_bad.any():
        rows = first_row + np.flatnonzero(is_bad)
        raise ValueError(f"NaN or infinity in the features of {name_some('row', rows.tolist())}")
    return block


def parse_partitions(partitions: Sequence[str], first_row: int) -> NDArray[np.bool_]:
    """Return a mask of the train rows, shape (rows,)."""
    array = np.asarray(partitions, dtype=np.str_)
    is_train: NDArray[np.bool_] = array == TRAIN
    is_odd = ~is_train & (array != TEST)
    if is_odd.any():
        row = int(is_odd.argmax())
        raise ValueError(
            f"partition of row {first_row + row} is {str(array[row])!r}, "
            f"but it must be {TRAIN!r} or {TEST!r}"
        )
    return is_train


def finish_fingerprint(
    features_digest: "hashlib.blake2b",
    labels: NDArray[np.int32],
    is_train: NDArray[np.bool_],
    class_names: tuple[str, ...],
) -> str:
    """Add class names, labels and partitions to the digest of the features, and return it."""
    # Sorted, so that labels do not depend on the order of classes in a file.
    assert list(class_names) == sorted(class_names)
    for name in class_names:
        features_digest.update(name.encode() + b"\0")
    features_digest.update(labels.tobytes())
    features_digest.update(is_train.tobytes())
    return features_digest.hexdigest()


def name_some(noun: str, items: Sequence[object], most: int = 5) -> str:
    """Return the items for a message, as in "row 3" or "rows 3, 8, 9 and 12 more"."""
    shown = ", ".join(str(item) for item in items[:most])
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return f"{_in_number(noun, len(items))} {shown}{more}"


def counted(number: float, noun: str) -> str:
    """Return a number with its noun, as in "1 class" or "3 classes"."""
    text = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{text} {_in_number(noun, number)}"


def _in_number(noun: str, number: float) -> str:
    return noun if number == 1 else f"{noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"

"""Feature files, read block by block.

The forms that are read:

- Parquet with the columns ``class``, ``partition`` (train or test) and ``feature`` (a list of
  float16 or float32 a row). Who made the features stands in the file's own metadata, under
  ``cpaan.backbone`` and ``cpaan.backbone_classes``.
- The HDF5 pair of the low-shot benchmark (``all_feats`` or, in its successors, ``all_features``;
  ``all_labels``; ``count``): one file for the train rows and one for the test rows. Its files
  are padded, and only the first ``count`` rows are data.

Neither form can carry code. Everything that would have to be unpickled is refused.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cpaan.features import (
    TEST,
    TRAIN,
    FeatureArray,
    FeatureTable,
    as_feature_block,
    name_some,
    parse_partitions,
)

_ROWS_PER_BLOCK = 8192  # 16 MiB at 512 dimensions in float32
_PARQUET_COLUMNS = ("class", "partition", "feature")
_HDF5_FEATURES = ("all_feats", "all_features")
_BACKBONE, _BACKBONE_CLASSES = "cpaan.backbone", "cpaan.backbone_classes"


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


def open_source(files: Sequence[Path], label_names: Sequence[str] | None) -> Source:
    """Open what `expand_paths` returned.

    Opening it and going through its blocks raises ValueError where the content is no feature
    table, and the errors of Arrow and HDF5 where the file is damaged.

    Args:
        files: One Parquet file, or the train and the test file of an HDF5 pair.
        label_names: For HDF5: the class name behind each integer label.
    """
    if len(files) == 1:
        return _open_parquet(files[0])
    return _open_hdf5_pair(files[0], files[1], label_names)


def write_features(path: str | Path, table: FeatureTable) -> None:
    """Write a table as Parquet, the project's own form; the file appears only when complete."""
    names = pa.array(table.class_names, pa.string())
    element = pa.float16() if table.features.dtype == np.float16 else pa.float32()
    metadata = {}
    if table.backbone is not None:
        metadata[_BACKBONE] = table.backbone
    if table.backbone_classes is not None:
        metadata[_BACKBONE_CLASSES] = json.dumps(sorted(table.backbone_classes))
    schema = pa.schema(
        [
            ("class", pa.string()),
            ("partition", pa.string()),
            ("feature", pa.list_(element, table.num_dims)),
        ],
        metadata=metadata,
    )
    partial = Path(f"{path}.partial")
    try:
        with pq.ParquetWriter(partial, schema) as writer:
            for start in range(0, len(table.labels), _ROWS_PER_BLOCK):
                rows = slice(start, start + _ROWS_PER_BLOCK)
                flat = pa.array(np.ascontiguousarray(table.features[rows]).reshape(-1), element)
                writer.write_batch(
                    pa.record_batch(
                        [
                            names.take(pa.array(table.labels[rows])),
                            pa.array(np.where(table.is_train[rows], TRAIN, TEST), pa.string()),
                            pa.FixedSizeListArray.from_arrays(flat, table.num_dims),
                        ],
                        schema=schema,
                    )
                )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def expand_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the absolute files that the caller means: one Parquet file, or an HDF5 pair."""
    paths = [path.resolve() for path in paths]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no such file: {path}")
    if len(paths) == 1 and paths[0].is_dir():
        return _features_in(paths[0])
    kinds = [_kind_of(path) for path in paths]
    if kinds == ["hdf5"]:
        raise ValueError(
            f"{paths[0]} holds one partition: give the train and the test file, or their folder"
        )
    if kinds not in (["parquet"], ["hdf5", "hdf5"]):
        raise ValueError(
            f"features are one Parquet file or a pair of HDF5 files, got {' and '.join(kinds)}"
        )
    if len(set(paths)) < len(paths):
        raise ValueError(f"{paths[0]} cannot be both the train and the test file")
    return paths


def _features_in(folder: Path) -> list[Path]:
    """Find a folder's only Parquet file, or its HDF5 pair by names (test is often called val)."""
    parquet = sorted(folder.glob("*.parquet"))
    if len(parquet) == 1:
        return parquet
    files = [path for path in sorted(folder.iterdir()) if h5py.is_hdf5(path)]
    train = [path for path in files if "train" in path.stem]
    test = [path for path in files if "val" in path.stem or "test" in path.stem]
    if len(train) != 1 or len(test) != 1 or train == test:
        raise ValueError(
            f"{folder} must hold one Parquet file, or one HDF5 file with 'train' and one with "
            f"'val' or 'test' in its name, found {[path.name for path in parquet + files]}"
        )
    return [train[0], test[0]]


def _kind_of(path: Path) -> str:
    """Return "parquet" or "hdf5" by the file's first bytes, whatever its name."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, but a feature file is wanted here")
    with path.open("rb") as file:
        start = file.read(8)
    if start[:4] == b"PAR1":
        return "parquet"
    if start == b"\x89HDF\r\n\x1a\n":
        return "hdf5"
    if start[:1] == b"\x80" or start[:2] == b"PK" or start[:6] == b"\x93NUMPY":
        raise ValueError(
            f"{path} is refused: pickles and the files that may hold them (.pkl, .pt, .npz, .npy) "
            "can run code; load it yourself and use FeatureTable.from_arrays"
        )
    raise ValueError(f"{path} is neither Parquet nor HDF5")


def _open_parquet(path: Path) -> Source:
    # A buffer makes Arrow read pages as they are wanted rather than a row group at once.
    file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    schema = file.schema_arrow
    missing = [column for column in _PARQUET_COLUMNS if schema.names.count(column) != 1]
    if missing:
        raise ValueError(f"{name_some('column', missing)} missing or double in {schema.names}")
    for column in ("class", "partition"):
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"column {column} must hold strings, but holds {kind}")
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    return Source(
        num_rows=file.metadata.num_rows,
        blocks=_parquet_blocks(file),
        backbone=metadata.get(_BACKBONE),
        backbone_classes=_parse_classes(metadata.get(_BACKBONE_CLASSES)),
    )


def _parse_classes(text: object) -> list[str] | None:
    """Return the backbone's classes from a file's metadata; None where there are none."""
    if text is None:
        return None
    try:
        names = json.loads(str(text))
    except json.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{_BACKBONE_CLASSES} must be a JSON list of class names")
    return names


def _parquet_blocks(file: pq.ParquetFile) -> Iterator[Block]:
    first_row = 0
    batches = file.iter_batches(batch_size=_ROWS_PER_BLOCK, columns=list(_PARQUET_COLUMNS))
    for batch in batches:
        classes, partitions, features = (batch.column(name) for name in _PARQUET_COLUMNS)
        for name, column in (("class", classes), ("partition", partitions)):
            if column.null_count:
                row = first_row + int(np.argmax(column.is_null()))
                raise ValueError(f"{name} of row {row} is empty")
        yield Block(
            features=_matrix_from_lists(features, first_row),
            classes=np.asarray(classes.cast(pa.string()), dtype=np.str_),
            is_train=parse_partitions(
                partitions.cast(pa.string()).to_pylist(), first_row=first_row
            ),
        )
        first_row += len(batch)


def _matrix_from_lists(lists: pa.Array, first_row: int) -> FeatureArray:
    """Return a list column as a matrix, checked; shape (rows, D)."""
    if not (
        pa.types.is_list(lists.type)
        or pa.types.is_large_list(lists.type)
        or pa.types.is_fixed_size_list(lists.type)
    ):
        raise ValueError(f"column feature must hold lists of numbers, but holds {lists.type}")
    if not pa.types.is_floating(lists.type.value_type):
        raise ValueError(
            f"column feature must hold floating-point numbers, but holds {lists.type.value_type}"
        )
    if lists.null_count:
        row = first_row + int(np.argmax(lists.is_null()))
        raise ValueError(f"feature of row {row} is empty")
    if pa.types.is_fixed_size_list(lists.type):
        width = lists.type.list_size
    else:
        widths = np.diff(lists.offsets.to_numpy())
        width = int(widths[0])
        if (widths != width).any():
            row = int((widths != width).argmax())
            raise ValueError(
                f"row {first_row + row} has {widths[row]} dimensions, "
                f"but the rows before it have {width}"
            )
    values = lists.flatten()
    if values.null_count:
        row = first_row + int(np.argmax(values.is_null())) // width
        raise ValueError(f"feature of row {row} has an empty value")
    return as_feature_block(values.to_numpy().reshape(len(lists), width), first_row)


def _open_hdf5_pair(train: Path, test: Path, label_names: Sequence[str] | None) -> Source:
    parts = []
    for path in (train, test):
        try:
            parts.append((path, h5py.File(path, "r")))
        except OSError as error:
            raise ValueError(f"{path} cannot be read, truncated or damaged: {error}") from error
    attributes = parts[0][1].attrs
    backbone = attributes.get(_BACKBONE)
    return Source(
        num_rows=sum(_hdf5_count(path, file) for path, file in parts),
        blocks=_hdf5_blocks(parts, label_names),
        backbone=None if backbone is None else str(backbone),
        backbone_classes=_parse_classes(attributes.get(_BACKBONE_CLASSES)),
    )


def _hdf5_array(path: Path, file: h5py.File, names: Sequence[str], kinds: str) -> h5py.Dataset:
    """Return the first array of these names, if it has a kind of numbers that is allowed."""
    for name in names:
        if name in file:
            found = file[name]
            if not isinstance(found, h5py.Dataset) or found.dtype.kind not in kinds:
                raise ValueError(f"{path.name}: {name} is no array of the right kind of numbers")
            return found
    raise ValueError(f"{path.name} has no {' or '.join(names)}, found {sorted(file)}")


def _hdf5_count(path: Path, file: h5py.File) -> int:
    """Return how many rows are data; the file is padded beyond them."""
    features = _hdf5_array(path, file, _HDF5_FEATURES, "f")
    labels = _hdf5_array(path, file, ["all_labels"], "iu")
    count = _hdf5_array(path, file, ["count"], "iu")
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


def _hdf5_blocks(
    parts: Sequence[tuple[Path, h5py.File]], label_names: Sequence[str] | None
) -> Iterator[Block]:
    for part, (path, file) in enumerate(parts):
        features = _hdf5_array(path, file, _HDF5_FEATURES, "f")
        labels = file["all_labels"]
        count = _hdf5_count(path, file)
        for start in range(0, count, _ROWS_PER_BLOCK):
            stop = min(start + _ROWS_PER_BLOCK, count)
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

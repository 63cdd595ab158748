"""Feature tables in Parquet, the project's own format.

Columns are ``class``, ``partition`` (train or test) and ``feature`` (a list of float16 or float32
per row). The metadata has the backbone under ``cpaan.backbone`` and ``cpaan.backbone_classes``, and
the origin of the features under ``cpaan.about``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cpaan.core.files import replacing
from cpaan.data.files import BACKBONE, BACKBONE_CLASSES, ROWS_PER_BLOCK, Block, Source, naming
from cpaan.data.table import (
    TEST,
    TRAIN,
    FeatureArray,
    FeatureTable,
    as_feature_block,
    name_some,
    parse_partitions,
)

_CLASS, _PARTITION, _FEATURE = _COLUMNS = ("class", "partition", "feature")
_ABOUT = "cpaan.about"


def write_features(
    path: str | Path, table: FeatureTable, about: Mapping[str, Any] | None = None
) -> None:
    """Write a table to a Parquet file atomically; an existing file is replaced.

    ``about`` is the origin of the features (command, commit, seed, ...) as JSON-compatible data,
    for `read_about`.
    """
    metadata = {}
    if table.backbone is not None:
        metadata[BACKBONE] = table.backbone
    if table.backbone_classes is not None:
        metadata[BACKBONE_CLASSES] = json.dumps(sorted(table.backbone_classes))
    if about is not None:
        metadata[_ABOUT] = json.dumps(dict(about))
    element = pa.float16() if table.features.dtype == np.float16 else pa.float32()
    types = (pa.string(), pa.string(), pa.list_(element, table.num_dims))
    schema = pa.schema(list(zip(_COLUMNS, types, strict=True)), metadata=metadata)
    names = pa.array(table.class_names, pa.string())
    with replacing(Path(path)) as file, pq.ParquetWriter(file, schema) as writer:
        for start in range(0, len(table.labels), ROWS_PER_BLOCK):
            rows = slice(start, start + ROWS_PER_BLOCK)
            flat = pa.array(np.ascontiguousarray(table.features[rows]).reshape(-1), element)
            columns = [
                names.take(pa.array(table.labels[rows])),
                pa.array(np.where(table.is_train[rows], TRAIN, TEST), pa.string()),
                pa.FixedSizeListArray.from_arrays(flat, table.num_dims),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def read_about(path: str | Path) -> dict[str, Any] | None:
    """Read the origin of the features from a Parquet file; None if it has none."""
    with naming(path):
        text = (pq.read_metadata(path).metadata or {}).get(_ABOUT.encode())
        return None if text is None else json.loads(text)


def open_parquet(path: Path) -> Source:
    """Open a Parquet file for decoding."""
    # With a buffer, Arrow reads pages on demand instead of a whole row group.
    file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    check_columns(file.schema_arrow, {_CLASS: "string", _PARTITION: "string", _FEATURE: "list"})
    metadata = file.metadata.metadata or {}
    return Source(
        num_rows=file.metadata.num_rows,
        blocks=_blocks(file.iter_batches(batch_size=ROWS_PER_BLOCK, columns=list(_COLUMNS))),
        metadata={key.decode(): value.decode() for key, value in metadata.items()},
    )


def check_columns(schema: pa.Schema, types: Mapping[str, str]) -> None:
    """Raise ValueError unless a file has every column exactly once, with the given type.

    Types are "string", "binary" and "list", of any width; strings may be dictionary-encoded.
    """
    missing = [column for column in types if schema.names.count(column) != 1]
    if missing:
        raise ValueError(f"missing or duplicate {name_some('column', missing)} in {schema.names}")
    for column, wanted in types.items():
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        name = str(kind).partition("<")[0]
        if name.removeprefix("large_").removeprefix("fixed_size_") != wanted:
            raise ValueError(f"column {column} must have type {wanted}, but has type {kind}")


def refuse_empty(batch: pa.RecordBatch | pa.Table, first_row: int = 0) -> None:
    """Raise ValueError if a column has a null value."""
    for name in batch.schema.names:
        if batch.column(name).null_count:
            row = first_row + int(np.argmax(batch.column(name).is_null()))
            raise ValueError(f"{name} of row {row} is empty")


def _blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    first_row = 0
    for batch in batches:
        refuse_empty(batch, first_row)
        partitions = batch.column(_PARTITION).cast(pa.string()).to_pylist()
        yield Block(
            features=_matrix_from(batch.column(_FEATURE), first_row),
            classes=np.asarray(batch.column(_CLASS).cast(pa.string()), dtype=np.str_),
            is_train=parse_partitions(partitions, first_row),
        )
        first_row += len(batch)


def _matrix_from(lists: pa.Array, first_row: int) -> FeatureArray:
    """Convert a list column to a validated matrix, shape (rows, D)."""
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
    matrix = values.to_numpy(zero_copy_only=False).reshape(len(lists), width)
    return as_feature_block(matrix, first_row)

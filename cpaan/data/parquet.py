"""Feature tables in Parquet, the project's own form; plain, or compact.

Both have the columns ``class`` and ``partition`` (train or test). A plain file has ``feature``,
a list of float16 or float32 a row. A compact file, of about half a byte a value, has ``code``, a
fixed number of bytes a row, and under ``cpaan.compact`` in its metadata what decodes them
(`cpaan.data.compact` explains it).

Who made the features stands in the metadata too, under ``cpaan.backbone`` and
``cpaan.backbone_classes``, and where they come from under ``cpaan.about``.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cpaan.core.files import replacing
from cpaan.data.compact import ROWS_AT_ONCE, CompactCode, fit_compact_code
from cpaan.data.files import (
    BACKBONE,
    BACKBONE_CLASSES,
    ROWS_PER_BLOCK,
    Block,
    Source,
    parse_classes,
)
from cpaan.data.table import (
    TEST,
    TRAIN,
    FeatureArray,
    FeatureTable,
    as_feature_block,
    name_some,
    parse_partitions,
)

_CLASS, _PARTITION, _FEATURE, _CODE = "class", "partition", "feature", "code"
_ABOUT, _COMPACT = "cpaan.about", "cpaan.compact"


def write_features(
    path: str | Path, table: FeatureTable, about: Mapping[str, Any] | None = None
) -> None:
    """Write a table as plain Parquet; the file appears only when complete.

    Args:
        path: Where to; what is there is replaced.
        table: What to write.
        about: Where the features come from (command, commit, seed, ...), as JSON can hold it;
            `read_about` returns it.
    """
    element = pa.float16() if table.features.dtype == np.float16 else pa.float32()

    def to_lists(features: FeatureArray) -> pa.Array:
        flat = pa.array(np.ascontiguousarray(features).reshape(-1), element)
        return pa.FixedSizeListArray.from_arrays(flat, table.num_dims)

    feature = pa.field(_FEATURE, pa.list_(element, table.num_dims))
    _write(path, table, feature, to_lists, about, {})


def write_compact_features(
    path: str | Path,
    table: FeatureTable,
    about: Mapping[str, Any] | None = None,
    *,
    relative_error: float = 8.5e-4,
) -> None:
    """Write a table in about half a byte a value; the file appears only when complete.

    It is read as float16, with a small error. Non-negative features stay so. On one machine,
    equal tables give equal files.

    Args:
        path: Where to; what is there is replaced.
        table: What to write, of one row at least.
        about: As in `write_features`.
        relative_error: The mean squared error to aim at, as a share of the features' variance.
            Half of it takes another half a bit for each value.

    Raises:
        ValueError: If the error cannot be reached (see `cpaan.data.compact.fit_compact_code`).
    """
    code = fit_compact_code(table.features, relative_error)

    def to_bytes(features: FeatureArray) -> pa.Array:
        content = pa.py_buffer(code.encode(features).tobytes())
        return pa.Array.from_buffers(pa.binary(code.num_bytes), len(features), [None, content])

    _write(
        path,
        table,
        pa.field(_CODE, pa.binary(code.num_bytes)),
        to_bytes,
        about,
        {_COMPACT: code.to_json()},
        # Byte by byte, so that codes of one direction stand together, in pages as large as a
        # block. Among them there are no repetitions to find, and the higher levels of zstd,
        # which look for them, make larger files.
        column_encoding={_CODE: "BYTE_STREAM_SPLIT"},
        use_dictionary=[_CLASS, _PARTITION],
        data_page_size=ROWS_PER_BLOCK * code.num_bytes,
        compression="zstd",
        compression_level=1,
        write_statistics=False,
    )


def read_about(path: str | Path) -> dict[str, Any] | None:
    """Return what a Parquet file says of where its features come from; None if it says nothing.

    Raises:
        ValueError: If it cannot be read, or is no JSON object.
        FileNotFoundError: If there is no such file.
    """
    try:
        text = (pq.read_metadata(path).metadata or {}).get(_ABOUT.encode())
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from error
    if text is None:
        return None
    try:
        about = json.loads(text)
    except ValueError:
        about = None
    if not isinstance(about, dict):
        raise ValueError(f"{path}: {_ABOUT} must be a JSON object")
    return about


def open_parquet(path: Path) -> Source:
    """Open a plain or a compact file for decoding.

    Raises:
        ValueError: Here or while going through the blocks, where the content is no feature
            table. Where the file is damaged, the errors of Arrow.
    """
    # A buffer makes Arrow read pages as they are wanted rather than a row group at once.
    file = pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    schema = file.schema_arrow
    is_compact = _CODE in schema.names and _FEATURE not in schema.names
    columns = [_CLASS, _PARTITION, _CODE if is_compact else _FEATURE]
    missing = [column for column in columns if schema.names.count(column) != 1]
    if missing:
        raise ValueError(f"{name_some('column', missing)} missing or double in {schema.names}")
    for column in (_CLASS, _PARTITION):
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"column {column} must hold strings, but holds {kind}")
    metadata = {
        key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()
    }
    if is_compact:
        code = _parse_code(metadata.get(_COMPACT), schema.field(_CODE).type)
        batches = file.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns)
        blocks = _blocks(batches, _CODE, partial(_matrix_from_bytes, code=code))
    else:
        batches = file.iter_batches(batch_size=ROWS_PER_BLOCK, columns=columns)
        blocks = _blocks(batches, _FEATURE, _matrix_from_lists)
    return Source(
        num_rows=file.metadata.num_rows,
        blocks=blocks,
        backbone=metadata.get(BACKBONE),
        backbone_classes=parse_classes(metadata.get(BACKBONE_CLASSES)),
    )


def _write(
    path: str | Path,
    table: FeatureTable,
    field: pa.Field,
    to_column: Callable[[FeatureArray], pa.Array],
    about: Mapping[str, Any] | None,
    decoding: Mapping[str, str],
    **options: Any,
) -> None:
    """Write classes, partitions and one more column, which is made of a block of features."""
    metadata = {}
    if table.backbone is not None:
        metadata[BACKBONE] = table.backbone
    if table.backbone_classes is not None:
        metadata[BACKBONE_CLASSES] = json.dumps(sorted(table.backbone_classes))
    if about is not None:
        metadata[_ABOUT] = json.dumps(dict(about))
    names = pa.array(table.class_names, pa.string())
    fields = [pa.field(_CLASS, pa.string()), pa.field(_PARTITION, pa.string()), field]
    schema = pa.schema(fields, metadata=metadata)
    with replacing(Path(path)) as file, pq.ParquetWriter(file, schema, **options) as writer:
        # Not with the schema, which Arrow keeps twice: this can be half a megabyte.
        writer.add_key_value_metadata(decoding)
        for start in range(0, len(table.labels), ROWS_PER_BLOCK):
            rows = slice(start, start + ROWS_PER_BLOCK)
            columns = [
                names.take(pa.array(table.labels[rows])),
                pa.array(np.where(table.is_train[rows], TRAIN, TEST), pa.string()),
                to_column(table.features[rows]),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))


def _blocks(
    batches: Iterable[pa.RecordBatch],
    features_column: str,
    to_matrix: Callable[[pa.Array, int], FeatureArray],
) -> Iterator[Block]:
    """Go through the rows; ``to_matrix`` gets the features and the number of their first row."""
    first_row = 0
    for batch in batches:
        classes, partitions = batch.column(_CLASS), batch.column(_PARTITION)
        for name, column in ((_CLASS, classes), (_PARTITION, partitions)):
            if column.null_count:
                row = first_row + int(np.argmax(column.is_null()))
                raise ValueError(f"{name} of row {row} is empty")
        yield Block(
            features=to_matrix(batch.column(features_column), first_row),
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


def _parse_code(text: str | None, column_type: pa.DataType) -> CompactCode:
    """Return what decodes the column ``code``, which must have the right number of bytes."""
    if text is None:
        raise ValueError(f"column {_CODE} needs {_COMPACT} in the metadata, to be decoded")
    try:
        code = CompactCode.from_json(text)
    except ValueError as error:
        raise ValueError(f"{_COMPACT} in the metadata is damaged: {error}") from error
    if column_type != pa.binary(code.num_bytes):
        raise ValueError(
            f"column {_CODE} must have {code.num_bytes} bytes a row, two for each of "
            f"{code.num_bytes // 2} dimensions, but holds {column_type}"
        )
    return code


def _matrix_from_bytes(column: pa.Array, first_row: int, code: CompactCode) -> NDArray[np.float16]:
    """Return a column of codes as features, shape (rows, D)."""
    if column.null_count:
        row = first_row + int(np.argmax(column.is_null()))
        raise ValueError(f"code of row {row} is empty")
    content = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, code.num_bytes)
    return code.decode(content[column.offset : column.offset + len(column)], first_row)

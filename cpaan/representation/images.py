"""What images there are: labelled images in Parquet files or in ImageNet's folders.

Two forms are read, and both give the same list:

- Parquet with the columns ``wnid`` (or ``class``), ``partition`` (train or test) and ``jpeg`` (or
  ``image``; the bytes of a JPEG or PNG file).
- ImageNet's folders (`cpaan.representation.imagenet_folders`), whose ``val`` is the partition
  "test".

A list knows where its images lie and holds none of them; `cpaan.representation.decoding` turns
them into pixels. Shapes: R = images.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cpaan.data.table import TEST, TRAIN, name_some, parse_partitions
from cpaan.representation.imagenet_folders import list_folders

_CLASS_COLUMNS, _PARTITION_COLUMN, _IMAGE_COLUMNS = (
    ("wnid", "class"),
    "partition",
    ("jpeg", "image"),
)
_LABELS_PER_BATCH = 65_536
_IMAGES_PER_BATCH = 64  # about 7 MiB of full-size ImageNet

Content = bytes | Path
"""An image before it is decoded: its bytes, or the file that holds them."""


class Source(Protocol):
    """Where the R images of a list lie."""

    def name(self, row: int) -> str:
        """Return what to call one image in a message."""

    def read(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Content]]:
        """Go through some images in the order in which they lie on disk."""


@dataclass(frozen=True, eq=False)
class ImageList:
    """Labelled images: train images first, each partition by class name, then in file order.

    Make one with `open_images`. It can be pickled; paths are absolute, so it works in every
    process that sees the same files.
    """

    class_names: tuple[str, ...]  # sorted
    labels: NDArray[np.int32]  # (R,) positions in class_names
    is_train: NDArray[np.bool_]  # (R,) train partition, otherwise test
    source: Source
    digest: str
    """Digest of class names, partitions, image names and file sizes: a job that is resumed on
    other data notices. It does not depend on where the files lie or when they were written."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> NDArray[np.str_]:
        """The class name of each image, shape (R,)."""
        return np.asarray(self.class_names, dtype=np.str_)[self.labels]

    def name(self, row: int) -> str:
        """Return "train/n01/x.JPEG" or "images_0.parquet row 17", for a message."""
        return self.source.name(row)

    def read(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Content]]:
        """Go through the images of some rows, in any number of threads or processes at once.

        Args:
            rows: Shape (n,), each in [0, R).

        Yields:
            Row number and content, in the order in which the images lie on disk.
        """
        return self.source.read(rows)


def open_images(
    paths: str | Path | Sequence[str | Path],
    classes: Iterable[str],
    *,
    val_labels: str | Path | None = None,
) -> ImageList:
    """List the images of some classes.

    Args:
        paths: One or more Parquet files, a folder that holds some (by name; those with other
            columns are passed over), or a folder with ImageNet's ``train`` and ``val``.
        classes: Names of the wanted classes; images of others are left out.
        val_labels: The list of classes of a flat ``val``; `imagenet_folders` says in which
            forms. Without it, one of a usual name is looked for in the folder and in its ``val``.

    Raises:
        ValueError: If the paths hold neither form, a wanted class has no train or no test image,
            or the list of classes does not fit the files.
    """
    class_names = tuple(sorted(set(classes)))
    if not class_names:
        raise ValueError("no classes are wanted, so there are no images to list")
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    resolved = [Path(path).resolve() for path in given]
    for path in resolved:
        if not path.exists():
            raise FileNotFoundError(f"no such file or folder: {path}")
    num_folders = sum(path.is_dir() for path in resolved)
    is_one_folder = num_folders == len(given) == 1
    are_files = num_folders == 0 < len(given) == len(set(resolved))
    if not is_one_folder and not are_files:
        raise ValueError(
            f"images are one folder, or one or more different Parquet files, got {num_folders} "
            f"folders and {len(given) - num_folders} files: {', '.join(map(str, given))}"
        )
    files = _parquet_files_in(resolved[0]) if is_one_folder else resolved
    if files and val_labels is not None:
        raise ValueError(f"{val_labels} is for a flat val folder, but the images are in Parquet")
    if files:
        return _list_parquet(files, class_names)
    root = resolved[0]
    if not all((root / name).is_dir() for name in ("train", "val")):
        raise ValueError(
            f"{root} holds neither Parquet files with the columns wnid (or class), partition and "
            "jpeg (or image), nor the folders train and val"
        )
    listing = list_folders(root, class_names, val_labels)
    return _finish(
        str(root), class_names, listing.labels, listing.is_train, listing.source, listing.digest
    )


def _finish(
    where: str,
    class_names: tuple[str, ...],
    labels: NDArray[np.int32],
    is_train: NDArray[np.bool_],
    source: Source,
    digest: "hashlib.blake2b",
) -> ImageList:
    """Check that all classes are there, and add what all forms share to the source's digest."""
    for partition, is_in in ((TRAIN, is_train), (TEST, ~is_train)):
        counts = np.bincount(labels[is_in], minlength=len(class_names))
        missing = [class_names[label] for label in np.flatnonzero(counts == 0)]
        if missing:
            raise ValueError(f"{where} has no {partition} image of {name_some('class', missing)}")
    for content in ("\0".join(class_names).encode(), labels.tobytes(), is_train.tobytes()):
        digest.update(content + b"\0")
    return ImageList(class_names, labels, is_train, source, digest.hexdigest())


@dataclass(frozen=True, eq=False)
class _ParquetSource:
    files: tuple[Path, ...]
    first_rows: NDArray[np.int64]  # (files + 1,) where each file starts in all of them, and the end
    positions: NDArray[np.int64]  # (R,) rows in all files, one after the other

    def name(self, row: int) -> str:
        position = self.positions[row]
        number = int(np.searchsorted(self.first_rows, position, side="right")) - 1
        return f"{self.files[number].name} row {position - self.first_rows[number]}"

    def read(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Content]]:
        rows = rows[np.argsort(self.positions[rows], kind="stable")]
        positions = self.positions[rows]
        starts = np.searchsorted(positions, self.first_rows)
        for number, path in enumerate(self.files):
            here = slice(starts[number], starts[number + 1])
            if here.start < here.stop:
                first_row, end = self.first_rows[number : number + 2]
                contents = _read_rows(path, positions[here] - first_row, int(end - first_row))
                yield from zip(rows[here].tolist(), contents, strict=True)


def _parquet_files_in(folder: Path) -> list[Path]:
    """Return the Parquet files that hold images, sorted by name; features may lie beside them."""
    found = []
    for path in sorted(folder.glob("*.parquet")):
        with _naming(path):
            names = set(pq.read_schema(path).names)
        if names.intersection(_CLASS_COLUMNS) and names.intersection(_IMAGE_COLUMNS):
            found.append(path)
    return found


def _columns(schema: pa.Schema) -> tuple[str, str]:
    """Return the names of the class column and of the image column, checked."""
    found = []
    for names in (_CLASS_COLUMNS, (_PARTITION_COLUMN,), _IMAGE_COLUMNS):
        column = next((name for name in names if schema.names.count(name) == 1), None)
        if column is None:
            raise ValueError(f"column {' or '.join(names)} missing or double in {schema.names}")
        kind = schema.field(column).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_image = names is _IMAGE_COLUMNS
        checks = ("is_binary", "is_large_binary") if is_image else ("is_string", "is_large_string")
        if not any(getattr(pa.types, check)(kind) for check in checks):
            wanted = "bytes" if is_image else "strings"
            raise ValueError(f"column {column} must hold {wanted}, but holds {kind}")
        found.append(column)
    return found[0], found[2]


def _list_parquet(files: Sequence[Path], class_names: tuple[str, ...]) -> ImageList:
    label_of = {name: label for label, name in enumerate(class_names)}
    digest = hashlib.blake2b(digest_size=16)
    first_rows = [0]
    labels, is_train, positions = [], [], []
    for path in files:
        row = 0
        with _naming(path), pq.ParquetFile(path) as file:
            class_column, _ = _columns(file.schema_arrow)
            for batch in file.iter_batches(
                batch_size=_LABELS_PER_BATCH, columns=[class_column, _PARTITION_COLUMN]
            ):
                for name in (class_column, _PARTITION_COLUMN):
                    if batch.column(name).null_count:
                        empty = row + int(np.argmax(batch.column(name).is_null()))
                        raise ValueError(f"{name} of row {empty} is empty")
                encoded = batch.column(class_column).cast(pa.string()).dictionary_encode()
                # -1 marks the classes that nobody wants.
                known = [label_of.get(name, -1) for name in encoded.dictionary.to_pylist()]
                label = np.array(known, dtype=np.int32)[encoded.indices.to_numpy()]
                partitions = batch.column(_PARTITION_COLUMN).cast(pa.string()).to_pylist()
                is_wanted = label >= 0
                labels.append(label[is_wanted])
                is_train.append(parse_partitions(partitions, first_row=row)[is_wanted])
                positions.append(first_rows[-1] + row + np.flatnonzero(is_wanted))
                row += len(batch)
        first_rows.append(first_rows[-1] + row)
        digest.update(f"{path.name}\0{path.stat().st_size}\0{row}\0".encode())
    if first_rows[-1] == 0:
        raise ValueError(f"{name_some('file', [path.name for path in files])} without any image")
    all_labels, all_train = np.concatenate(labels), np.concatenate(is_train)
    order = np.lexsort((all_labels, ~all_train))  # stable: file order within a class
    source = _ParquetSource(
        tuple(files), np.array(first_rows, dtype=np.int64), np.concatenate(positions)[order]
    )
    digest.update(source.positions.tobytes())
    where = str(files[0]) if len(files) == 1 else f"{files[0].parent} in {len(files)} Parquet files"
    return _finish(where, class_names, all_labels[order], all_train[order], source, digest)


def _read_rows(path: Path, wanted: NDArray[np.int64], num_rows: int) -> Iterator[bytes]:
    """Yield the images of some rows of one file; an empty value is no bytes.

    Args:
        path: The Parquet file.
        wanted: Row numbers in the file, ascending; row groups without any are passed over.
        num_rows: How many rows the file had when it was listed.
    """
    # A buffer makes Arrow read pages as they are wanted rather than a row group at once.
    with _naming(path), pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        if file.metadata.num_rows != num_rows:
            raise ValueError(f"{file.metadata.num_rows} rows, but it had {num_rows} when listed")
        _, column = _columns(file.schema_arrow)
        first = 0
        for group in range(file.num_row_groups):
            end = first + file.metadata.row_group(group).num_rows
            low, high = np.searchsorted(wanted, (first, end))
            batches: Iterable[Any] = file.iter_batches(
                batch_size=_IMAGES_PER_BATCH, row_groups=[group], columns=[column]
            )
            for batch in batches if low < high else ():
                low, high = np.searchsorted(wanted, (first, first + len(batch)))
                for row in wanted[low:high]:
                    yield batch.column(0)[int(row) - first].as_py() or b""
                first += len(batch)
            first = end


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name before what is wrong in it; errors of the disk pass as they are."""
    try:
        yield
    except (ValueError, OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path}: {error}") from error

"""Lists of labelled images, in Parquet files or in ImageNet's folders.

- Parquet has the columns ``wnid``, ``partition`` (train or test) and ``jpeg`` (bytes of a JPEG or
  PNG file).
- Folders are ``train/<class>/*.JPEG`` and ``val/<class>/*.JPEG``; ``val`` is the test partition.
  Images may lie one folder deeper, in ``images``. A flat ``val`` needs a list whose lines begin
  with a file name and a class: Kaggle's ``LOC_val_solution.csv`` or Tiny-ImageNet's
  ``val_annotations.txt``.

Shapes: R = images.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cpaan.data.table import TEST, TRAIN, name_some, parse_partitions

_CLASS, _PARTITION, _IMAGE = "wnid", "partition", "jpeg"
_LABELS_PER_BATCH = 65_536
_IMAGES_PER_BATCH = 64  # about 7 MiB of full-size ImageNet
_ENDINGS = (".jpeg", ".jpg", ".png")
_LIST_NAMES = ("LOC_val_solution.csv", "val_annotations.txt")
_LISTING_THREADS = 16  # a network file system answers slowly, but many requests at once

Content = bytes | Path
"""An image before it is decoded: its bytes, or the file that holds them."""
_Rows = NDArray[np.int64]


class ImageSource(Protocol):
    """Storage of the R images of a list."""

    def name(self, row: int) -> str:
        """Return the name of an image in messages."""

    def read(self, rows: _Rows) -> Iterator[tuple[int, Content]]:
        """Yield some rows with their contents, in the order in which they lie on disk."""


@dataclass(frozen=True, eq=False)
class ImageList:
    """Labelled images: train images first, each partition by class name, then in file order.

    It can be pickled, and holds absolute paths but no images.
    """

    class_names: tuple[str, ...]  # sorted
    labels: NDArray[np.int32]  # (R,) positions in class_names
    is_train: NDArray[np.bool_]  # (R,) train partition, otherwise test
    source: ImageSource
    digest: str
    """Digest of class names, partitions, image names and file sizes, by which a resumed job
    recognises its data. It does not depend on the folder of the files or on their dates."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> NDArray[np.str_]:
        """The class name of each image, shape (R,)."""
        return np.asarray(self.class_names, dtype=np.str_)[self.labels]


def open_images(
    paths: str | Path | Sequence[str | Path],
    classes: Iterable[str],
    *,
    val_labels: str | Path | None = None,
) -> ImageList:
    """List the images of some classes.

    Args:
        paths: One or more Parquet files, a folder of Parquet files (those with other columns are
            skipped), or a folder with ``train`` and ``val``.
        classes: Names of the wanted classes.
        val_labels: The list of classes of a flat ``val``; by default one of the usual name, in
            the folder or in its ``val``.

    Raises:
        ValueError: If the paths hold neither form, a wanted class has no train or no test image,
            or the list of classes does not fit the files.
    """
    class_names = tuple(sorted(set(classes)))
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    resolved = [Path(path).resolve() for path in given]
    for path in resolved:
        if not path.exists():
            raise FileNotFoundError(f"no such file or folder: {path}")
    num_folders = sum(path.is_dir() for path in resolved)
    if num_folders > 1 or (num_folders and len(given) > 1) or len(given) > len(set(resolved)):
        raise ValueError(
            f"images are one folder, or one or more different Parquet files, got {num_folders} "
            f"folders and {len(given) - num_folders} files: {', '.join(map(str, given))}"
        )
    root = resolved[0]
    files = _parquet_files_in(root) if num_folders else resolved
    if files and val_labels is not None:
        raise ValueError(f"{val_labels} is for a flat val folder, but the images are in Parquet")
    if not files and not all((root / name).is_dir() for name in ("train", "val")):
        raise ValueError(
            f"{root} holds neither Parquet files with the columns {_CLASS}, {_PARTITION} and "
            f"{_IMAGE}, nor the folders train and val"
        )
    digest = hashlib.blake2b(digest_size=16)
    source: ImageSource
    if files:
        labels, is_train, source = _list_parquet(files, class_names, digest)
    else:
        labels, is_train, source = _list_folders(root, class_names, val_labels, digest)
    for partition, is_in in ((TRAIN, is_train), (TEST, ~is_train)):
        counts = np.bincount(labels[is_in], minlength=len(class_names))
        missing = [class_names[label] for label in np.flatnonzero(counts == 0)]
        if missing:
            classes_missing = name_some("class", missing)
            raise ValueError(f"{given[0]} has no {partition} image of {classes_missing}")
    for content in ("\0".join(class_names).encode(), labels.tobytes(), is_train.tobytes()):
        digest.update(content + b"\0")
    return ImageList(class_names, labels, is_train, source, digest.hexdigest())


@dataclass(frozen=True, eq=False)
class _ParquetSource:
    files: tuple[Path, ...]
    first_rows: _Rows  # (files + 1,) position of each file's first row in all of them, and the end
    positions: _Rows  # (R,) rows in all files, one after the other

    def name(self, row: int) -> str:
        """Return "images_0.parquet row 17"."""
        position = self.positions[row]
        number = int(np.searchsorted(self.first_rows, position, side="right")) - 1
        return f"{self.files[number].name} row {position - self.first_rows[number]}"

    def read(self, rows: _Rows) -> Iterator[tuple[int, Content]]:
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
            if {_CLASS, _IMAGE} <= set(pq.read_schema(path).names):
                found.append(path)
    return found


def _check_columns(schema: pa.Schema) -> None:
    for name in (_CLASS, _PARTITION, _IMAGE):
        if schema.names.count(name) != 1:
            raise ValueError(f"column {name} missing or double in {schema.names}")
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        wanted = "bytes" if name == _IMAGE else "strings"
        if str(kind).removeprefix("large_") != {"bytes": "binary", "strings": "string"}[wanted]:
            raise ValueError(f"column {name} must hold {wanted}, but holds {kind}")


def _list_parquet(
    files: Sequence[Path], class_names: Sequence[str], digest: "hashlib.blake2b"
) -> tuple[NDArray[np.int32], NDArray[np.bool_], ImageSource]:
    label_of = {name: label for label, name in enumerate(class_names)}
    first_rows = [0]
    labels, is_train, positions = [], [], []
    for path in files:
        row = 0
        with _naming(path), pq.ParquetFile(path) as file:
            _check_columns(file.schema_arrow)
            for batch in file.iter_batches(
                batch_size=_LABELS_PER_BATCH, columns=[_CLASS, _PARTITION]
            ):
                for name in (_CLASS, _PARTITION):
                    if batch.column(name).null_count:
                        empty = row + int(np.argmax(batch.column(name).is_null()))
                        raise ValueError(f"{name} of row {empty} is empty")
                names = batch.column(_CLASS).cast(pa.string()).to_pylist()
                label = np.array([label_of.get(name, -1) for name in names], dtype=np.int32)
                partitions = batch.column(_PARTITION).cast(pa.string()).to_pylist()
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
    return all_labels[order], all_train[order], source


def _read_rows(path: Path, wanted: _Rows, num_rows: int) -> Iterator[bytes]:
    """Yield the images of some rows of a file, ascending; an empty value is no bytes."""
    # A buffer makes Arrow read pages as they are wanted rather than a row group at once.
    with _naming(path), pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        if file.metadata.num_rows != num_rows:
            raise ValueError(f"{file.metadata.num_rows} rows, but it had {num_rows} when listed")
        first = 0
        for group in range(file.num_row_groups):
            end = first + file.metadata.row_group(group).num_rows
            low, high = np.searchsorted(wanted, (first, end))
            batches: Iterable[Any] = file.iter_batches(
                batch_size=_IMAGES_PER_BATCH, row_groups=[group], columns=[_IMAGE]
            )
            for batch in batches if low < high else ():
                low, high = np.searchsorted(wanted, (first, first + len(batch)))
                for row in wanted[low:high]:
                    yield batch.column(0)[int(row) - first].as_py() or b""
                first += len(batch)
            first = end


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Prefix errors of a file's content with its name; errors of the disk pass unchanged."""
    try:
        yield
    except (ValueError, OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{path}: {error}") from error


@dataclass(frozen=True, eq=False)
class _FolderSource:
    root: Path
    # Paths below the root; 1.3 million take 50 MB here, and several times that as a Python list.
    paths: pa.Array  # (R,) of bytes, because a file name need not be text

    def name(self, row: int) -> str:
        """Return "train/n01/x.JPEG"."""
        return os.fsdecode(self.paths[int(row)].as_py())

    def read(self, rows: _Rows) -> Iterator[tuple[int, Content]]:
        for row in np.sort(rows).tolist():
            yield row, self.root / self.name(row)


def _list_folders(
    root: Path,
    class_names: Sequence[str],
    val_labels: str | Path | None,
    digest: "hashlib.blake2b",
) -> tuple[NDArray[np.int32], NDArray[np.bool_], ImageSource]:
    flat_paths, flat_sizes = _images_in(root, "val")
    if val_labels is not None and not len(flat_paths):
        raise ValueError(f"{val_labels} is for a flat val folder, but {root / 'val'} is not flat")
    partitions = ["train"] if len(flat_paths) else ["train", "val"]
    folders = [f"{partition}/{name}" for partition in partitions for name in class_names]
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        groups = list(pool.map(lambda folder: _images_in(root, folder), folders))
    if len(flat_paths):
        files = [os.path.basename(os.fsdecode(path)) for path in flat_paths.to_pylist()]
        rows_of: dict[str, list[int]] = {name: [] for name in class_names}
        for row, name in enumerate(_classes_of_flat_val(root, files, val_labels)):
            rows_of.get(name, []).append(row)
        for rows in rows_of.values():
            groups.append((flat_paths.take(pa.array(rows, pa.int64())), flat_sizes[rows]))
    for paths, sizes in groups:
        digest.update(b"\0".join(paths.to_pylist()) + b"\0" + sizes.tobytes())
    counts = [len(paths) for paths, _ in groups]
    labels = np.repeat(np.tile(np.arange(len(class_names), dtype=np.int32), 2), counts)
    is_train = np.arange(sum(counts)) < sum(counts[: len(class_names)])
    return labels, is_train, _FolderSource(root, pa.concat_arrays([paths for paths, _ in groups]))


def _images_in(root: Path, folder: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return paths below the root and sizes of the images in a folder, or in its ``images``.

    They are sorted. A broken link has the size -1: it is an image that cannot be read.
    """
    found = []
    if (root / folder / "images").is_dir():
        folder = f"{folder}/images"
    if (root / folder).is_dir():
        with os.scandir(root / folder) as entries:
            for entry in entries:
                # Hidden files beside images are leftovers of file managers and archivers.
                if entry.name.lower().endswith(_ENDINGS) and not entry.name.startswith("."):
                    try:
                        size = entry.stat().st_size
                    except FileNotFoundError:
                        size = -1
                    found.append((os.fsencode(f"{folder}/{entry.name}"), size))
    found.sort()
    paths = pa.array([path for path, _ in found], pa.binary())
    return paths, np.array([size for _, size in found], dtype=np.int64)


def _classes_of_flat_val(
    root: Path, files: Sequence[str], val_labels: str | Path | None
) -> list[str]:
    """Return the class of each file of a flat ``val``, from its list."""
    usual = [folder / name for name in _LIST_NAMES for folder in (root, root / "val")]
    path = next(filter(Path.is_file, usual), None) if val_labels is None else Path(val_labels)
    if path is None:
        raise ValueError(
            f"{root / 'val'} holds {len(files)} images outside class folders and no list of their "
            f"classes: give --val-labels, or put {' or '.join(_LIST_NAMES)} there"
        )
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    # Kaggle's list begins with a line of column names, and leaves the ending of files out.
    file_of = {Path(file).stem: file for file in files} | {file: file for file in files}
    class_of: dict[str, str] = {}
    unknown = []
    lines = path.read_text(encoding="utf-8-sig", errors="replace").strip().splitlines()
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        if words[:2] == ["ImageId", "PredictionString"]:
            continue
        if len(words) < 2 or words[1].isdecimal():
            raise ValueError(f"{path}: line {number} does not begin with a file name and a class")
        file = file_of.get(words[0])
        if file is None:
            unknown.append(words[0])
        elif class_of.setdefault(file, words[1]) != words[1]:
            raise ValueError(f"{path} puts {file} into {class_of[file]} and into {words[1]}")
    missing = [file for file in files if file not in class_of]
    for kind, names, problem in (
        ("file", missing, "does not list"),
        ("image", unknown, "lists images that val does not have:"),
    ):
        if names:
            raise ValueError(
                f"{path} with {len(lines)} lines, for {len(files)} images of val, {problem} "
                f"{name_some(kind, names)}"
            )
    return [class_of[file] for file in files]

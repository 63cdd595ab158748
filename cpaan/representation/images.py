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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cpaan.data.files import naming
from cpaan.data.parquet import check_columns, refuse_empty
from cpaan.data.table import TEST, TRAIN, name_some, parse_partitions

_CLASS, _PARTITION, _IMAGE = "wnid", "partition", "jpeg"
_IMAGES_PER_BATCH = 64  # about 7 MiB of full-size ImageNet
_ENDINGS = (".jpeg", ".jpg", ".png")
_LIST_NAMES = ("LOC_val_solution.csv", "val_annotations.txt")
_LISTING_THREADS = 16  # a network file system is slow, but serves many requests at once

Content = bytes | Path
"""An image before it is decoded: its bytes, or the file that holds them."""
_Rows = NDArray[np.int64]
_Files = list[tuple[bytes, int]]
"""Paths relative to a root and file sizes; as bytes, because a file name need not be text."""


@dataclass(frozen=True, eq=False)
class _ParquetSource:
    """Images in Parquet files; ``name`` is for messages, ``read`` follows the order on disk."""

    files: tuple[Path, ...]
    first_rows: _Rows  # (files + 1,) first row of each file in the concatenation, and the end
    positions: _Rows  # (R,) rows of the concatenated files

    def name(self, row: int) -> str:
        """Return "images_0.parquet row 17"."""
        position = self.positions[row]
        number = int(np.searchsorted(self.first_rows, position, side="right")) - 1
        return f"{self.files[number].name} row {position - self.first_rows[number]}"

    def read(self, rows: _Rows) -> Iterator[tuple[int, Content]]:
        rows = rows[np.argsort(self.positions[rows])]
        positions = self.positions[rows]
        starts = np.searchsorted(positions, self.first_rows)
        for number, path in enumerate(self.files):
            here = slice(starts[number], starts[number + 1])
            if here.start < here.stop:
                first_row, end = self.first_rows[number : number + 2]
                contents = _read_rows(path, positions[here] - first_row, int(end - first_row))
                yield from zip(rows[here].tolist(), contents, strict=True)


@dataclass(frozen=True, eq=False)
class _FolderSource:
    """Images in folders, with the same interface."""

    root: Path
    paths: NDArray[np.bytes_]  # (R,) below the root; a Python list takes more memory

    def name(self, row: int) -> str:
        """Return "train/n01/x.JPEG"."""
        return os.fsdecode(self.paths[row])

    def read(self, rows: _Rows) -> Iterator[tuple[int, Content]]:
        for row in np.sort(rows).tolist():
            yield row, self.root / self.name(row)


@dataclass(frozen=True, eq=False)
class ImageList:
    """Labelled images: train images first, each partition by class name, then in file order."""

    class_names: tuple[str, ...]  # sorted
    labels: NDArray[np.int32]  # (R,) positions in class_names
    is_train: NDArray[np.bool_]  # (R,) train partition, otherwise test
    source: _ParquetSource | _FolderSource
    digest: str
    """Digest of class names, partitions, image names and file sizes, by which a resumed job checks
    its data. It does not depend on the folder of the files or on their dates."""

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
        val_labels: File with the classes of a flat ``val``; by default one of the usual name, in
            the folder or in its ``val``.

    Raises:
        ValueError: If the paths hold neither form, a wanted class has no train or no test image, or
            the list of classes does not fit the files.
    """
    class_names = tuple(sorted(set(classes)))
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files = [Path(path).resolve() for path in given]
    for path in files:
        if not path.exists():
            raise FileNotFoundError(f"no such file or folder: {path}")
    root, has_folder = files[0], any(path.is_dir() for path in files)
    if len(set(files)) < len(files) or (has_folder and len(files) > 1):
        raise ValueError(
            "images must be one folder, or one or more distinct Parquet files, got "
            f"{', '.join(map(str, given))}"
        )
    if has_folder:
        files = _parquet_files_in(root)
    if not files and not all((root / name).is_dir() for name in ("train", "val")):
        raise ValueError(
            f"{root} has neither Parquet files with the columns {_CLASS}, {_PARTITION} and "
            f"{_IMAGE}, nor the folders train and val"
        )
    flat = [] if files else _images_in(root, "val")
    if val_labels is not None and not flat:
        raise ValueError(f"{val_labels} is for a flat val folder, but {root} has none")
    digest = hashlib.blake2b(digest_size=16)
    source: _ParquetSource | _FolderSource
    if files:
        labels, is_train, source = _list_parquet(files, class_names, digest)
    else:
        labels, is_train, source = _list_folders(root, class_names, flat, val_labels, digest)
    for partition, is_in in ((TRAIN, is_train), (TEST, ~is_train)):
        counts = np.bincount(labels[is_in], minlength=len(class_names))
        missing = [class_names[label] for label in np.flatnonzero(counts == 0)]
        if missing:
            classes_missing = name_some("class", missing)
            raise ValueError(f"{given[0]} has no {partition} image of {classes_missing}")
    for content in ("\0".join(class_names).encode(), labels.tobytes(), is_train.tobytes()):
        digest.update(content + b"\0")
    return ImageList(class_names, labels, is_train, source, digest.hexdigest())


def _parquet_files_in(folder: Path) -> list[Path]:
    """Return the Parquet files that hold images, sorted by name; others are skipped."""
    files = []
    for path in sorted(folder.glob("*.parquet")):
        with naming(path):
            if {_CLASS, _IMAGE} <= set(pq.read_schema(path).names):
                files.append(path)
    return files


def _list_parquet(
    files: Sequence[Path], class_names: Sequence[str], digest: "hashlib.blake2b"
) -> tuple[NDArray[np.int32], NDArray[np.bool_], _ParquetSource]:
    label_of = {name: label for label, name in enumerate(class_names)}
    labels, is_train = [], []
    for path in files:
        with naming(path), pq.ParquetFile(path) as file:
            types = {_CLASS: "string", _PARTITION: "string", _IMAGE: "binary"}
            check_columns(file.schema_arrow, types)
            columns = file.read(columns=[_CLASS, _PARTITION])
            refuse_empty(columns)
            names = columns.column(_CLASS).to_pylist()
            labels.append(np.array([label_of.get(name, -1) for name in names], dtype=np.int32))
            is_train.append(parse_partitions(columns.column(_PARTITION).to_pylist(), first_row=0))
        digest.update(f"{path.name}\0{path.stat().st_size}\0{len(names)}\0".encode())
    all_labels, all_train = np.concatenate(labels), np.concatenate(is_train)
    wanted = np.flatnonzero(all_labels >= 0)
    # The sort is stable, so it keeps the file order within a class.
    positions = wanted[np.lexsort((all_labels[wanted], ~all_train[wanted]))]
    digest.update(positions.tobytes())
    first_rows = np.cumsum([0, *map(len, labels)], dtype=np.int64)
    source = _ParquetSource(tuple(files), first_rows, positions)
    return all_labels[positions], all_train[positions], source


def _read_rows(path: Path, wanted: _Rows, num_rows: int) -> Iterator[bytes]:
    """Yield the images of some rows of a file, ascending; a null value becomes empty bytes."""
    is_wanted = np.zeros(num_rows, dtype=np.bool_)
    is_wanted[wanted] = True
    # With a buffer, Arrow reads single pages instead of a whole row group at once.
    with naming(path), pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        if file.metadata.num_rows != num_rows:
            now = file.metadata.num_rows
            raise ValueError(f"the file changed: it has {now} rows, but had {num_rows} before")
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        parts = np.split(is_wanted, np.cumsum(sizes)[:-1])
        groups = [group for group, part in enumerate(parts) if part.any()]
        is_wanted, first = np.concatenate([parts[group] for group in groups]), 0
        for batch in file.iter_batches(_IMAGES_PER_BATCH, row_groups=groups, columns=[_IMAGE]):
            for row in np.flatnonzero(is_wanted[first : first + len(batch)]).tolist():
                yield batch.column(0)[row].as_py() or b""
            first += len(batch)


def _list_folders(
    root: Path,
    class_names: Sequence[str],
    flat: _Files,
    val_labels: str | Path | None,
    digest: "hashlib.blake2b",
) -> tuple[NDArray[np.int32], NDArray[np.bool_], _FolderSource]:
    """List train images by class folder, and those of ``val`` unless it is flat."""
    partitions = ["train"] if flat else ["train", "val"]
    folders = [f"{partition}/{name}" for partition in partitions for name in class_names]
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        groups = list(pool.map(lambda folder: _images_in(root, folder), folders))
    if flat:
        files_of: dict[str, _Files] = {name: [] for name in class_names}
        names = [os.path.basename(os.fsdecode(path)) for path, _ in flat]
        for file, name in zip(flat, _classes_of_flat_val(root, names, val_labels), strict=True):
            files_of.get(name, []).append(file)
        groups += files_of.values()
    for group in groups:
        sizes = np.array([size for _, size in group], dtype=np.int64)
        digest.update(b"\0".join(path for path, _ in group) + b"\0" + sizes.tobytes())
    counts = [len(group) for group in groups]
    labels = np.repeat(np.tile(np.arange(len(class_names), dtype=np.int32), 2), counts)
    is_train = np.arange(sum(counts)) < sum(counts[: len(class_names)])
    paths = np.array([path for group in groups for path, _ in group], dtype=np.bytes_)
    return labels, is_train, _FolderSource(root, paths)


def _images_in(root: Path, folder: str) -> _Files:
    """Return the images in a folder, or in its ``images``, sorted.

    A broken link has the size -1: it counts as an image that cannot be read.
    """
    files: _Files = []
    if (root / folder / "images").is_dir():
        folder = f"{folder}/images"
    if (root / folder).is_dir():
        for entry in os.scandir(root / folder):
            # Hidden files are leftovers of file managers and archivers.
            if entry.name.lower().endswith(_ENDINGS) and not entry.name.startswith("."):
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:
                    size = -1
                files.append((os.fsencode(f"{folder}/{entry.name}"), size))
    return sorted(files)


def _classes_of_flat_val(
    root: Path, files: Sequence[str], val_labels: str | Path | None
) -> list[str]:
    """Return the class of each file of a flat ``val``, read from its list."""
    usual = [folder / name for name in _LIST_NAMES for folder in (root, root / "val")]
    path = next(filter(Path.is_file, usual), None) if val_labels is None else Path(val_labels)
    if path is None:
        raise ValueError(
            f"{root / 'val'} has {len(files)} images outside class folders and no list of their "
            f"classes; give --val-labels, or add {' or '.join(_LIST_NAMES)}"
        )
    class_of: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8-sig", errors="replace").strip().splitlines()
    for number, line in enumerate(lines, start=1):
        name, class_name = [*line.replace(",", " ").split(), "", ""][:2]
        if name == "ImageId":  # header of Kaggle's list
            continue
        if not class_name or class_name.isdecimal():
            raise ValueError(f"{path}: line {number} does not begin with a file name and a class")
        if class_of.setdefault(name, class_name) != class_name:
            raise ValueError(f"{path} assigns {name} to {class_of[name]} and to {class_name}")
    # Kaggle's list has no file extensions.
    keys = [file if file in class_of else Path(file).stem for file in files]
    missing = [file for file, key in zip(files, keys, strict=True) if key not in class_of]
    unknown = sorted(set(class_of) - set(keys))
    for names, problem in ((missing, "does not list"), (unknown, "lists files that val lacks:")):
        if names:
            raise ValueError(
                f"{path} ({len(lines)} lines, for {len(files)} images in val) {problem} "
                f"{name_some('image', names)}"
            )
    return [class_of[key] for key in keys]

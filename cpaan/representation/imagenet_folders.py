"""ImageNet's folders: ``train/<class>/*.JPEG``, and ``val`` likewise or flat with a list.

Images may also lie one folder deeper, in ``images``, as those of Tiny-ImageNet do. Six kinds of
lists of the classes of a flat ``val`` are about, a line for each image:

- ``name.JPEG n01440764``
- ``name.JPEG 65``, Caffe's: the position, from 0, among the sorted folders of ``train``
- ``ILSVRC2012_val_00048981,n03995372 85 1 499 272``, Kaggle's, below a line of column names
- ``val_0.JPEG n03444034 0 32 44 62``, Tiny-ImageNet's, with a box
- ``n01440764``, for the files in sorted order
- ``490``, the development kit's: an ILSVRC2012_ID, from 1, for the files in sorted order. These
  numbers are not in the order of the class names; what they mean stands in the kit's ``meta.mat``.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.io import loadmat

from cpaan.data.table import name_some

_ENDINGS = (".jpeg", ".jpg", ".png")
_LIST_NAMES = (
    "val.txt",
    "LOC_val_solution.csv",
    "val_annotations.txt",
    "ILSVRC2012_validation_ground_truth.txt",
)
_NUM_WORDS_WITH_BOX = 6  # name, class, and four numbers
_LISTING_THREADS = 16  # a network file system answers slowly, but many questions at once


@dataclass(frozen=True, eq=False)
class FolderSource:
    """R images below one folder, a file each."""

    root: Path
    # Paths below the root; 1.3 million take 50 MB here, and several times that as a Python list.
    paths: pa.Array  # (R,) of bytes, because a file name need not be text

    def name(self, row: int) -> str:
        """Return "train/n01/x.JPEG"."""
        return os.fsdecode(self.paths[int(row)].as_py())

    def read(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, Path]]:
        """Go through the files of some rows, in the order of the list."""
        for row in np.sort(rows).tolist():
            yield row, self.root / self.name(row)


class FolderListing(NamedTuple):
    """The images of some classes, train images first, then by class and file name."""

    source: FolderSource
    labels: NDArray[np.int32]  # (R,)
    is_train: NDArray[np.bool_]  # (R,)
    digest: "hashlib.blake2b"
    """Running digest of file names and sizes."""


def list_folders(
    root: Path, class_names: Sequence[str], val_labels: str | Path | None
) -> FolderListing:
    """List the images of some classes below ``train`` and ``val``.

    Args:
        root: The folder of ``train`` and ``val``.
        class_names: The wanted classes, sorted.
        val_labels: The list for a flat ``val``; without it, one of a usual name is looked for.

    Raises:
        ValueError: If ``val`` is flat and has no list, or one that does not fit it.
    """
    flat_paths, flat_sizes = _images_in(root, "val")
    is_flat = len(flat_paths) > 0
    if val_labels is not None and not is_flat:
        raise ValueError(f"{val_labels} is for a flat val folder, but {root / 'val'} is not flat")
    partitions = ["train"] if is_flat else ["train", "val"]
    folders = [f"{partition}/{name}" for partition in partitions for name in class_names]
    with ThreadPoolExecutor(_LISTING_THREADS) as pool:
        groups = list(pool.map(lambda folder: _images_in(root, folder), folders))
    if is_flat:
        files = [os.path.basename(os.fsdecode(path)) for path in flat_paths.to_pylist()]
        rows_of: dict[str, list[int]] = {name: [] for name in class_names}
        for row, name in enumerate(_classes_of_flat_val(root, files, val_labels)):
            if name in rows_of:
                rows_of[name].append(row)
        for rows in rows_of.values():
            groups.append((flat_paths.take(pa.array(rows, pa.int64())), flat_sizes[rows]))
    digest = hashlib.blake2b(digest_size=16)
    for paths, sizes in groups:
        digest.update(b"\0".join(paths.to_pylist()) + b"\0" + sizes.tobytes())
    counts = [len(paths) for paths, _ in groups]
    return FolderListing(
        source=FolderSource(root, pa.concat_arrays([paths for paths, _ in groups])),
        labels=np.repeat(np.tile(np.arange(len(class_names), dtype=np.int32), 2), counts),
        is_train=np.arange(sum(counts)) < sum(counts[: len(class_names)]),
        digest=digest,
    )


def _images_in(root: Path, folder: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the image files right in one folder, or in its ``images``, sorted, and their sizes.

    The paths are those below the root. A link into the void has the size -1: it is an image that
    cannot be read.
    """
    found = []
    if (root / folder / "images").is_dir():
        folder = f"{folder}/images"
    if (root / folder).is_dir():
        with os.scandir(root / folder) as entries:
            for entry in entries:
                # Hidden files beside images are leavings of file managers and archivers.
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
    """Return the class of each image of a flat ``val``.

    Args:
        root: The folder of ``train`` and ``val``.
        files: Names of the images in ``val``, sorted.
        val_labels: The list; without it, one of a usual name is looked for.

    Raises:
        ValueError: If there is no list, or it is of no known kind, names or counts other files, or
            has a class number without a meaning.
    """
    path = _find_list(root, len(files)) if val_labels is None else Path(val_labels)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    images, labels = _parse(path)
    classes = _class_names(path, labels, root, are_positions=images is not None)
    if images is None:
        if len(classes) != len(files):
            raise ValueError(f"{path} has {len(classes)} lines, but val has {len(files)} images")
        return classes
    # Kaggle's list leaves the ending out.
    file_of = {Path(file).stem: file for file in files} | {file: file for file in files}
    class_of: dict[str, str] = {}
    strangers = []
    for image, class_name in zip(images, classes, strict=True):
        file = file_of.get(Path(image).name)
        if file is None:
            strangers.append(image)
        elif class_of.setdefault(file, class_name) != class_name:
            raise ValueError(f"{path} puts {file} into {class_of[file]} and into {class_name}")
    missing = [file for file in files if file not in class_of]
    for kind, those, problem in (
        ("file", missing, "does not list"),
        ("image", strangers, "lists what val does not have:"),
    ):
        if those:
            raise ValueError(
                f"{path} with {len(images)} lines, for {len(files)} images of val, {problem} "
                f"{name_some(kind, those)}"
            )
    return [class_of[file] for file in files]


def _find_list(root: Path, num_files: int) -> Path:
    for name in _LIST_NAMES:
        for folder in (root, root / "val"):
            if (folder / name).is_file():
                return folder / name
    raise ValueError(
        f"{root / 'val'} holds {num_files} images outside class folders and no list of their "
        f"classes: give val_labels, or put {' or '.join(_LIST_NAMES)} there"
    )


def _parse(path: Path) -> tuple[list[str] | None, list[str]]:
    """Return the image of each line, or None where lines name none, and the label of each."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").strip().splitlines()
    if lines and lines[0].startswith("ImageId,"):
        # Boxes follow the class, and each of them names it again.
        words = [line.replace(",", " ", 1).split()[:2] for line in lines[1:]]
    elif lines and len(lines[0].split()) == _NUM_WORDS_WITH_BOX:
        words = [line.split()[:2] for line in lines]
    else:
        words = [line.rsplit(maxsplit=1) for line in lines]
    if not words:
        raise ValueError(f"{path} is empty, but must list the classes of val")
    num_words = len(words[0])
    for number, line in enumerate(words, 1 + len(lines) - len(words)):
        if len(line) != num_words:
            raise ValueError(
                f"{path}: line {number} has {len(line)} of name and class, "
                f"but the first image has {num_words}"
            )
    return [line[0] for line in words] if num_words == 2 else None, [line[-1] for line in words]


def _class_names(path: Path, labels: list[str], root: Path, *, are_positions: bool) -> list[str]:
    """Return labels as class names, which they may be already."""
    num_numbers = sum(label.isdecimal() for label in labels)
    if num_numbers == 0:
        return labels
    if num_numbers < len(labels):
        raise ValueError(
            f"{path} mixes {num_numbers} class numbers with {len(labels) - num_numbers} class names"
        )
    numbers = [int(label) for label in labels]
    if are_positions:
        folders = sorted(
            entry.name
            for entry in (root / "train").iterdir()
            if entry.is_dir() and not entry.name.startswith(".")
        )
        # A list that counts from 1, or a class folder too few or too many, would shift classes
        # without a sound; the numbers of a whole list go exactly from 0 to the last class.
        if min(numbers) != 0 or max(numbers) != len(folders) - 1:
            raise ValueError(
                f"{path} has class numbers from {min(numbers)} to {max(numbers)}, but the "
                f"{len(folders)} class folders of train are numbers 0 to {len(folders) - 1}"
            )
        return [folders[number] for number in numbers]
    name_of = _read_meta(path)
    unknown = sorted(set(numbers) - set(name_of))
    if unknown:
        raise ValueError(
            f"{path} has {name_some('class number', unknown)}, which meta.mat with "
            f"{len(name_of)} classes does not know"
        )
    return [name_of[number] for number in numbers]


def _read_meta(list_path: Path) -> dict[int, str]:
    """Return the class name behind each ILSVRC2012_ID of the development kit."""
    path = list_path.with_name("meta.mat")
    if not path.is_file():
        raise ValueError(
            f"{list_path} holds the development kit's class numbers, which are not in the order of "
            f"the class names: put the kit's meta.mat beside it ({path} is not there)"
        )
    try:
        synsets = np.atleast_1d(loadmat(path, squeeze_me=True)["synsets"])
        return {int(synset["ILSVRC2012_ID"]): str(synset["WNID"]) for synset in synsets}
    except Exception as error:  # the parser raises many kinds, and all mean the same here
        raise ValueError(f"{path} is not the development kit's meta.mat: {error!r}") from error

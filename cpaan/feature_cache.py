"""Feature tables on disk as plain arrays: decoded once, mapped by every process."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpaan.feature_files import expand_paths, open_source
from cpaan.feature_source import Source
from cpaan.features import FeatureTable, finish_fingerprint

_FORMAT = 1  # of the cache's own files; another number makes all entries outdated


def default_cache_folder() -> Path:
    """Return where decoded tables are kept: $CPAAN_CACHE, or cpaan in the user's cache folder."""
    if chosen := os.environ.get("CPAAN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cpaan"


def open_features(
    *paths: str | Path,
    label_names: Sequence[str] | None = None,
    cache_folder: Path | None = None,
) -> FeatureTable:
    """Read a feature table, through the cache.

    The first call decodes the file block by block; later calls, in any process, only map the
    result. A table is decoded again when its file's path, size or times have changed.

    Args:
        paths: A Parquet file; or the train and the test file of an HDF5 pair; or a folder
            that holds such a pair.
        label_names: For HDF5: the class name behind each integer label.
        cache_folder: Where decoded tables are kept.

    Raises:
        ValueError: If a file cannot be read or what it holds is no feature table.
        FileNotFoundError: If there is no such file.
    """
    files = expand_paths([Path(path) for path in paths])
    names = tuple(label_names) if label_names is not None and len(files) == 2 else None
    stats = [file.stat() for file in files]
    source = _digest([str(file) for file in files], names)
    state = _digest(_FORMAT, [(s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats])
    folder = cache_folder or default_cache_folder()
    entry = folder / f"{source}-{state}"
    if entry.exists():
        # An entry can be damaged, or removed by a process that met a newer file just now.
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError):
            return _map_entry(entry)
        shutil.rmtree(entry, ignore_errors=True)
    _decode(files, names, entry)
    for outdated in set(folder.glob(f"{source}-*")) - {entry}:
        shutil.rmtree(outdated, ignore_errors=True)
    return _map_entry(entry)


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _decode(files: list[Path], label_names: Sequence[str] | None, entry: Path) -> None:
    """Decode files into a new cache entry, which appears whole or not at all."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=entry.parent))
    try:
        try:
            _write_entry(open_source(files, label_names), partial)
        # Arrow and HDF5 report a damaged file in many ways; all of them mean just this.
        except (pa.ArrowException, OSError, RuntimeError, KeyError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # a full disk, say: nothing is wrong with the file
            cause = str(error).splitlines()[0] if str(error) else type(error).__name__
            names = " and ".join(str(file) for file in files)
            raise ValueError(f"{names} cannot be read, truncated or damaged: {cause}") from error
        except ValueError as error:
            if len(files) == 1:  # of a pair, the message names the file that is meant
                raise ValueError(f"{files[0]}: {error}") from error
            raise
        try:
            partial.rename(entry)
        except OSError:
            if not entry.exists():  # otherwise another process was first, with the same result
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_entry(source: Source, folder: Path) -> None:
    """Write the arrays of one table, holding one block at a time."""
    if source.num_rows == 0:
        raise ValueError("the table has no rows")
    number_of_name: dict[str, int] = {}
    numbers: list[NDArray[np.int32]] = []
    is_train: list[NDArray[np.bool_]] = []
    digest = hashlib.blake2b(digest_size=16)
    shape: tuple[int, int] | None = None
    num_rows = 0
    with (folder / "features.npy").open("wb") as file:
        for block in source.blocks:
            if shape is None:
                shape = (source.num_rows, block.features.shape[1])
                header = {
                    "descr": np.lib.format.dtype_to_descr(block.features.dtype),
                    "fortran_order": False,
                    "shape": shape,
                }
                np.lib.format.write_array_header_1_0(file, header)
                dtype = block.features.dtype
            if block.features.dtype != dtype:
                raise ValueError(
                    f"row {num_rows} is {block.features.dtype}, but the rows before it are {dtype}"
                )
            if block.features.shape[1] != shape[1]:
                raise ValueError(
                    f"row {num_rows} has {block.features.shape[1]} dimensions, "
                    f"but the rows before it have {shape[1]}"
                )
            # Written, not assigned through a memory map: pages of a map would count as ours.
            content = np.ascontiguousarray(block.features)
            file.write(content.data)
            digest.update(content.data)
            names, inverse = np.unique(block.classes, return_inverse=True)
            known = [number_of_name.setdefault(str(n), len(number_of_name)) for n in names]
            numbers.append(np.array(known, dtype=np.int32)[inverse])
            is_train.append(block.is_train)
            num_rows += len(block.classes)
    if num_rows != source.num_rows:
        raise ValueError(f"{num_rows} rows found, but {source.num_rows} announced")

    class_names = tuple(sorted(number_of_name))
    rank_of_number = np.empty(len(class_names), dtype=np.int32)
    for rank, name in enumerate(class_names):
        rank_of_number[number_of_name[name]] = rank
    labels = rank_of_number[np.concatenate(numbers)]
    train_mask = np.concatenate(is_train)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "is_train.npy", train_mask)
    about = {
        "class_names": class_names,
        "backbone": source.backbone,
        "backbone_classes": source.backbone_classes,
        "fingerprint": finish_fingerprint(digest, labels, train_mask, class_names),
    }
    (folder / "about.json").write_text(json.dumps(about))


def _map_entry(entry: Path) -> FeatureTable:
    about: dict[str, Any] = json.loads((entry / "about.json").read_text())
    trained_on = about["backbone_classes"]
    return FeatureTable(
        features=np.load(entry / "features.npy", mmap_mode="r", allow_pickle=False),
        labels=np.load(entry / "labels.npy", mmap_mode="r", allow_pickle=False),
        is_train=np.load(entry / "is_train.npy", mmap_mode="r", allow_pickle=False),
        class_names=tuple(about["class_names"]),
        backbone=about["backbone"],
        backbone_classes=None if trained_on is None else frozenset(trained_on),
        fingerprint=about["fingerprint"],
    )

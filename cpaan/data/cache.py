"""Cache of feature tables as plain arrays: decoded once, memory-mapped by every process."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.core.files import find_or_make
from cpaan.core.remote_paths import download
from cpaan.data.files import HDF5, NPZ, Source, backbone_of, expand, kind_of, naming
from cpaan.data.npz import open_npz
from cpaan.data.parquet import open_parquet
from cpaan.data.table import FeatureTable, finish_fingerprint

_FORMAT = 1  # version of the cache files; a new number invalidates all entries
_DOWNLOADS = "copies"


def default_cache_folder() -> Path:
    """Return the cache folder: $CPAAN_CACHE, or cpaan in the user's cache folder."""
    if chosen := os.environ.get("CPAAN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cpaan"


def open_features(
    *locations: str | Path,
    label_names: Sequence[str] | None = None,
    cache_folder: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> FeatureTable:
    """Open a feature table through the cache.

    The first call downloads a remote file and decodes it block by block. Other calls, in any
    process on the machine, wait for it and map the result. If the file's location, size or times
    change, the next call downloads and decodes it again.

    Args:
        locations: Paths or addresses (``s3://bucket/features.parquet``) of a Parquet file, of
            the train and test files of an HDF5 pair, of ``.npz`` files with one array for a
            class, or of a folder that contains one of these.
        label_names: Class names of the integer labels, for HDF5.
        cache_folder: Folder for downloads and decoded tables.
        progress: Called with a message about every download.

    Raises:
        ValueError: If the files are damaged or not a feature table.
        OSError: If a file is missing or cannot be reached.
    """
    places, files = _fetch(locations, cache_folder, progress)
    names = tuple(label_names) if label_names is not None and len(files) == 2 else None
    stats = [file.stat() for file in files]
    source = _digest([str(file) for file in files], names)
    state = _digest(_FORMAT, [(s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats])
    folder = cache_folder or default_cache_folder()
    entry = folder / f"{source}-{state}"

    def make(is_locked: bool) -> FeatureTable:
        shutil.rmtree(entry, ignore_errors=True)
        if is_locked:
            for partial in folder.glob(f".{source}-*"):  # left by a killed process
                shutil.rmtree(partial, ignore_errors=True)
        _decode(files, names, entry)
        for outdated in set(folder.glob(f"{source}-*")) - {entry}:
            shutil.rmtree(outdated, ignore_errors=True)
        return _map_entry(entry)

    def find() -> FeatureTable | None:
        # A damaged entry is decoded again.
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError):
            return _map_entry(entry)
        return None

    with naming(*places):
        return find_or_make(find, make, folder / f".{source}.lock")


def local_files(locations: Sequence[str | Path]) -> list[Path]:
    """Return the local files of a table; download remote ones. See `open_features`."""
    return _fetch(locations)[1]


def _fetch(
    locations: Sequence[str | Path],
    cache_folder: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[list[str], list[Path]]:
    """Return the locations of a table's files, and the files or their local copies."""
    folder = (cache_folder or default_cache_folder()) / _DOWNLOADS
    paths = expand(locations)
    files = [
        download(path, folder, progress) if path.local is None else path.local.resolve()
        for path in paths
    ]
    places = [path.location for path in paths]
    with naming(*places):
        kind_of(files)
    return places, files


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _decode(files: list[Path], label_names: Sequence[str] | None, entry: Path) -> None:
    """Decode files into a new cache entry atomically."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    try:
        kind = kind_of(files)
        if kind == HDF5:
            # Imported here, because every process of a study imports this module; few read HDF5.
            from cpaan.data.hdf5 import open_hdf5_pair

            source = open_hdf5_pair(files[0], files[1], label_names)
        else:
            source = open_npz(files) if kind == NPZ else open_parquet(files[0])
        _write_entry(source, partial)
        try:
            partial.rename(entry)
        except OSError:
            if not entry.exists():  # otherwise another process has written the same entry
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_entry(source: Source, folder: Path) -> None:
    """Write the arrays of a table, with one block of features in memory at a time."""
    backbone, backbone_classes = backbone_of(source)
    classes: list[NDArray[np.str_]] = []
    is_train: list[NDArray[np.bool_]] = []
    digest = hashlib.blake2b(digest_size=16)
    form: tuple[int, np.dtype[Any]] | None = None
    num_rows = 0
    with (folder / "features.npy").open("wb") as file:
        for block in source.blocks:
            # Not written through a memory map, whose pages would count as memory in use.
            content = np.ascontiguousarray(block.features)
            width, dtype = content.shape[1], content.dtype
            if form is None:
                form = width, dtype
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (source.num_rows, width),
                }
                np.lib.format.write_array_header_1_0(file, header)
            if form != (width, dtype):
                raise ValueError(
                    f"row {num_rows} has {width} dimensions of {dtype}, "
                    f"but the rows before it have {form[0]} of {form[1]}"
                )
            file.write(content.data)
            digest.update(content.data)
            classes.append(block.classes)
            is_train.append(block.is_train)
            num_rows += len(block.classes)
    if num_rows == 0:
        raise ValueError("the table has no rows")
    if num_rows != source.num_rows:
        raise ValueError(f"{num_rows} rows were read, but the file should have {source.num_rows}")

    names, inverse = np.unique(np.concatenate(classes), return_inverse=True)
    class_names = tuple(str(name) for name in names)
    labels, train_mask = inverse.astype(np.int32), np.concatenate(is_train)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "is_train.npy", train_mask)
    about = {
        "class_names": class_names,
        "backbone": backbone,
        "backbone_classes": backbone_classes,
        "fingerprint": finish_fingerprint(digest, labels, train_mask, class_names),
    }
    (folder / "about.json").write_text(json.dumps(about))


def _map_entry(entry: Path) -> FeatureTable:
    about: dict[str, Any] = json.loads((entry / "about.json").read_text())
    arrays = {
        name: np.load(entry / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in ("features", "labels", "is_train")
    }
    backbone_classes = about["backbone_classes"]
    return FeatureTable(
        **arrays,
        class_names=tuple(about["class_names"]),
        backbone=about["backbone"],
        backbone_classes=None if backbone_classes is None else frozenset(backbone_classes),
        fingerprint=about["fingerprint"],
    )

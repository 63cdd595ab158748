"""Feature tables on disk as plain arrays: decoded once, mapped by every process."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpaan.core.download_cache import copy_here
from cpaan.core.files import locked
from cpaan.core.remote_paths import Place, is_address
from cpaan.data.files import expand_paths, expand_place, open_source
from cpaan.data.source import Source
from cpaan.data.table import FeatureTable, finish_fingerprint

_FORMAT = 1  # of the cache's own files; another number makes all entries outdated
_COPIES = "copies"  # of files that are elsewhere


def default_cache_folder() -> Path:
    """Return where decoded tables are kept: $CPAAN_CACHE, or cpaan in the user's cache folder."""
    if chosen := os.environ.get("CPAAN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cpaan"


def open_features(
    *locations: str | Path,
    label_names: Sequence[str] | None = None,
    cache_folder: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> FeatureTable:
    """Read a feature table, through the cache.

    The first call copies the file, should it be elsewhere, and decodes it block by block; other
    calls, in any process of the machine, wait for that and only map the result. This is done
    again when the file's path or address, size or times have changed.

    Args:
        locations: A Parquet file; or the train and the test file of an HDF5 pair; or a folder
            that holds either; by path, or by an address (``s3://bucket/features.parquet``).
        label_names: For HDF5: the class name behind each integer label.
        cache_folder: Where copies and decoded tables are kept.
        progress: Is told, in a line, what is copied.

    Raises:
        ValueError: If a file cannot be read or what it holds is no feature table.
        FileNotFoundError: If there is no such file.
    """
    files = local_files(locations, cache_folder, progress)
    with _naming_addresses(locations):
        return _open_files(files, label_names, cache_folder or default_cache_folder())


def local_files(
    locations: Sequence[str | Path],
    cache_folder: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Path]:
    """Return the files of a table, or their copies: one Parquet file, or an HDF5 pair.

    Takes and raises what `open_features` does.
    """
    folder = (cache_folder or default_cache_folder()) / _COPIES
    paths: list[Path] = []
    for location in locations:
        place = Place.at(location)
        if place.local is not None:
            paths.append(place.local)
        else:
            paths += [copy_here(file, folder, progress) for file in expand_place(place)]
    with _naming_addresses(locations):
        return expand_paths(paths)


@contextmanager
def _naming_addresses(locations: Sequence[str | Path]) -> Iterator[None]:
    """Put addresses before a message, which names their copies alone."""
    try:
        yield
    except ValueError as error:
        addresses = [str(location) for location in locations if is_address(location)]
        if not addresses:
            raise
        raise ValueError(f"{' and '.join(addresses)}: {error}") from error


def _open_files(files: list[Path], label_names: Sequence[str] | None, folder: Path) -> FeatureTable:
    names = tuple(label_names) if label_names is not None and len(files) == 2 else None
    stats = [file.stat() for file in files]
    source = _digest([str(file) for file in files], names)
    state = _digest(_FORMAT, [(s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in stats])
    entry = folder / f"{source}-{state}"
    if (table := _mapped(entry)) is not None:
        return table
    with locked(folder / f".{source}.lock") as is_alone:
        if (table := _mapped(entry)) is not None:
            return table  # another process was first
        shutil.rmtree(entry, ignore_errors=True)
        if is_alone:
            for left in folder.glob(f".{source}-*"):  # by a process that died
                shutil.rmtree(left, ignore_errors=True)
        _decode(files, names, entry)
        for outdated in set(folder.glob(f"{source}-*")) - {entry}:
            shutil.rmtree(outdated, ignore_errors=True)
        return _map_entry(entry)


def _digest(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _decode(files: list[Path], label_names: Sequence[str] | None, entry: Path) -> None:
    """Decode files into a new cache entry, which appears whole or not at all."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
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


def _mapped(entry: Path) -> FeatureTable | None:
    """Return the table of an entry, or None if there is none or it is damaged."""
    try:
        return _map_entry(entry)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None


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

"""Locate and identify the files of a feature table, and define the blocks read from them.

The formats are Parquet (`cpaan.data.parquet`) and the HDF5 pair of the low-shot benchmark
(`cpaan.data.hdf5`). Neither can carry code; files that need unpickling are refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpaan.core.remote_paths import RemotePath
from cpaan.data.table import FeatureArray

ROWS_PER_BLOCK = 8192  # 16 MiB at 512 dimensions in float32
BACKBONE, BACKBONE_CLASSES = "cpaan.backbone", "cpaan.backbone_classes"  # metadata keys
_HDF5 = b"\x89HDF\r\n\x1a\n"  # first bytes of an HDF5 file


class Block(NamedTuple):
    """Consecutive rows of a file."""

    features: FeatureArray  # (rows, D)
    classes: NDArray[np.str_]  # (rows,)
    is_train: NDArray[np.bool_]  # (rows,)


@dataclass(frozen=True)
class Source:
    """A feature file or pair, opened for decoding.

    Iterating over the blocks raises ValueError for content that is not a feature table, and
    errors of Arrow or HDF5 for a damaged file.
    """

    num_rows: int
    blocks: Iterator[Block]
    metadata: Mapping[str, object]
    """May contain the name and the classes of the backbone."""


@contextmanager
def naming(*files: str | Path) -> Iterator[None]:
    """Re-raise errors about damaged or invalid content as a ValueError that names the files.

    Disk errors, such as a full disk, pass unchanged, because the files are not the cause.
    """
    names = " and ".join(map(str, files))
    try:
        yield
    # Arrow and HDF5 report a damaged file in many ways.
    except (pa.ArrowException, OSError, RuntimeError, KeyError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{names} cannot be read, truncated or damaged: {cause}") from error
    except ValueError as error:
        raise ValueError(f"{names}: {error}") from error


def backbone_of(source: Source) -> tuple[str | None, list[str] | None]:
    """Return the name and the classes of the backbone, each None if the file lacks it."""
    name, text = (source.metadata.get(key) for key in (BACKBONE, BACKBONE_CLASSES))
    backbone = None if name is None else str(name)
    if text is None:
        return backbone, None
    try:
        names = json.loads(str(text))
    except json.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{BACKBONE_CLASSES} must be a JSON list of class names")
    return backbone, names


def expand(locations: Sequence[str | Path]) -> list[RemotePath]:
    """Replace a folder by its feature files; raise FileNotFoundError for a missing file."""
    paths = [RemotePath.at(location) for location in locations]
    folders = [path for path in paths if path.is_folder()]
    if folders and len(paths) > 1:
        raise ValueError(f"{folders[0].location} is a folder, but a feature file is wanted here")
    return _features_in(folders[0]) if folders else paths


def _features_in(folder: RemotePath) -> list[RemotePath]:
    """Find a folder's only Parquet file, or its HDF5 pair by name (test is often called val)."""
    names = folder.names()
    parquet = [name for name in names if name.endswith(".parquet")]
    if len(parquet) == 1:
        return [folder / parquet[0]]
    hdf5 = [name for name in names if name.endswith((".hdf5", ".h5"))]
    train = [name for name in hdf5 if "train" in name]
    test = [name for name in hdf5 if "val" in name or "test" in name]
    if len(train) != 1 or len(test) != 1 or train == test:
        raise ValueError(
            f"{folder.location} must hold one Parquet file, or one HDF5 file with 'train' and one "
            f"with 'val' or 'test' in its name, found {parquet + hdf5}"
        )
    return [folder / train[0], folder / test[0]]


def check_kinds(files: Sequence[Path]) -> None:
    """Raise ValueError unless files are one Parquet file or an HDF5 pair; callers add names."""
    kinds = [_kind_of(file) for file in files]
    if kinds not in (["parquet"], ["hdf5", "hdf5"]) or len(set(files)) < len(files):
        raise ValueError(
            "features are one Parquet file, or two HDF5 files for train and test rows, or a folder "
            f"that holds either, got {' and '.join(kinds)}"
        )


def _kind_of(file: Path) -> str:
    """Identify a file as "parquet" or "hdf5" by its first bytes, not by its name."""
    with file.open("rb") as opened:
        start = opened.read(len(_HDF5))
    if start[:4] == b"PAR1":
        return "parquet"
    if start == _HDF5:
        return "hdf5"
    if start[:1] == b"\x80" or start[:2] == b"PK" or start[:6] == b"\x93NUMPY":
        raise ValueError(
            "refused: pickles and the files that may hold them (.pkl, .pt, .npz, .npy) can run "
            "code; load it yourself and use FeatureTable.from_arrays"
        )
    raise ValueError("neither Parquet nor HDF5")

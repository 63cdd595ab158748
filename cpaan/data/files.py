"""Locate and identify the files of a feature table, and define the blocks read from them.

The formats are Parquet (`cpaan.data.parquet`), the HDF5 pair of the low-shot benchmark
(`cpaan.data.hdf5`) and dicts of arrays (`cpaan.data.npz`). Files that need unpickling are refused,
because they can run code.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cpaan.core.remote_paths import RemotePath
from cpaan.data.table import FeatureArray

ROWS_PER_BLOCK = 8192  # 16 MiB at 512 dimensions in float32
BACKBONE, BACKBONE_CLASSES = "cpaan.backbone", "cpaan.backbone_classes"  # metadata keys
PARQUET, HDF5, NPZ = "Parquet", "HDF5", ".npz"  # kinds of files
_HDF5_START = b"\x89HDF\r\n\x1a\n"


class Block(NamedTuple):
    """Consecutive rows of a file."""

    features: FeatureArray  # (rows, D)
    classes: NDArray[np.str_]  # (rows,)
    is_train: NDArray[np.bool_]  # (rows,)


@dataclass(frozen=True)
class Source:
    """A feature file or pair, opened for decoding.

    Iterating over the blocks raises ValueError for content that is not a feature table, and
    errors of the format's library for a damaged file.
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
    # Arrow, HDF5 and zip report a damaged file in many ways.
    except (pa.ArrowException, OSError, RuntimeError, KeyError, BadZipFile, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        problem = "cannot be read; it may be truncated or damaged"
        raise ValueError(f"{names} {problem}: {cause}") from error
    except ValueError as error:
        raise ValueError(f"{names}: {error}") from error


def backbone_of(source: Source) -> tuple[str | None, list[str] | None]:
    """Return the name and the classes of the backbone; None for what the file lacks."""
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
        raise ValueError(f"{folders[0].location} is a folder; give one folder, or files only")
    return _features_in(folders[0]) if folders else paths


def _features_in(folder: RemotePath) -> list[RemotePath]:
    """Find a folder's Parquet file, its HDF5 pair (test is often called val) or ``.npz`` files."""
    names = folder.names()
    parquet = [name for name in names if name.endswith(".parquet")]
    if len(parquet) == 1:
        return [folder / parquet[0]]
    hdf5 = [name for name in names if name.endswith((".hdf5", ".h5"))]
    train = [name for name in hdf5 if "train" in name]
    test = [name for name in hdf5 if "val" in name or "test" in name]
    npz = [name for name in names if name.endswith(".npz")]
    if npz and not parquet + hdf5:
        return [folder / name for name in npz]
    if len(train) != 1 or len(test) != 1 or train == test:
        raise ValueError(
            f"{folder.location} must contain one Parquet file, or one HDF5 file with 'train' and "
            f"one with 'val' or 'test' in its name, or .npz files, found {parquet + hdf5 + npz}"
        )
    return [folder / train[0], folder / test[0]]


def kind_of(files: Sequence[Path]) -> str:
    """Return the kind of a table's files; raise ValueError for others. Callers add their names."""
    kinds = [_kind_of_file(file) for file in files]
    is_table = kinds in ([PARQUET], [HDF5, HDF5]) or set(kinds) == {NPZ}
    if not is_table or len(set(files)) < len(files):
        raise ValueError(
            "features must be one Parquet file, two HDF5 files (train and test rows), .npz files "
            f"(one array for each class), or a folder with one of these, got {' and '.join(kinds)}"
        )
    return kinds[0]


def _kind_of_file(file: Path) -> str:
    """Identify a file by its first bytes, not by its name."""
    with file.open("rb") as opened:
        start = opened.read(len(_HDF5_START))
    if start[:4] == b"PAR1":
        return PARQUET
    if start == _HDF5_START:
        return HDF5
    if start[:2] == b"PK":
        with ZipFile(file) as archive:
            members = archive.namelist()
        if all(name.endswith(".npy") for name in members):
            return NPZ
        if any(name.endswith(".pkl") for name in members):
            raise ValueError(_how_to_convert(file, "torch", f"torch.load({str(file)!r})"))
    if start[:1] == b"\x80" or file.suffix in (".pkl", ".plk"):  # or protocol 0
        load = f"pickle.load(open({str(file)!r}, 'rb'))"
        raise ValueError(_how_to_convert(file, "pickle", load))
    raise ValueError("not a Parquet, HDF5 or .npz file; for others, use FeatureTable.from_arrays")


def _how_to_convert(file: Path, module: str, load: str) -> str:
    arrays = f"{{str(name): rows for name, rows in {load}.items()}}"
    save = f"numpy.savez({file.with_suffix('.npz').name!r}, **{arrays})"
    return (
        "refused: a pickle can run code; if you trust this file and it is a dict of arrays by "
        f'class, convert it: python -c "import numpy, {module}; {save}"'
    )

"""Which feature files a path means, and who reads them.

The forms that are read:

- Parquet, the project's own form, plain or compact (`cpaan.data.parquet`);
- the HDF5 pair of the low-shot benchmark (`cpaan.data.hdf5`).

Neither form can carry code. Everything that would have to be unpickled is refused.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from cpaan.core.remote_paths import Place
from cpaan.data.parquet import open_parquet
from cpaan.data.source import Source

_HDF5 = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""


def open_source(files: Sequence[Path], label_names: Sequence[str] | None) -> Source:
    """Open what `expand_paths` returned.

    Opening it and going through its blocks raises ValueError where the content is no feature
    table, and the errors of Arrow and HDF5 where the file is damaged.

    Args:
        files: One Parquet file, or the train and the test file of an HDF5 pair.
        label_names: For HDF5: the class name behind each integer label.
    """
    if len(files) == 1:
        return open_parquet(files[0])
    # Imported here, because every process of a study imports this module and few read HDF5.
    from cpaan.data.hdf5 import open_hdf5_pair

    return open_hdf5_pair(files[0], files[1], label_names)


def expand_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the absolute files that the caller means: one Parquet file, or an HDF5 pair."""
    paths = [path.resolve() for path in paths]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no such file: {path}")
    if len(paths) == 1 and paths[0].is_dir():
        folder = paths[0]
        found = sorted(path.name for path in folder.iterdir())
        chosen = _features_among(
            found,
            folder,
            lambda name: (folder / name).is_file() and _first_bytes(folder / name) == _HDF5,
        )
        return [folder / name for name in chosen]
    kinds = [_kind_of(path) for path in paths]
    if kinds == ["hdf5"]:
        raise ValueError(
            f"{paths[0]} holds one partition: give the train and the test file, or their folder"
        )
    if kinds not in (["parquet"], ["hdf5", "hdf5"]):
        raise ValueError(
            f"features are one Parquet file or a pair of HDF5 files, got {' and '.join(kinds)}"
        )
    if len(set(paths)) < len(paths):
        raise ValueError(f"{paths[0]} cannot be both the train and the test file")
    return paths


def expand_place(place: Place) -> list[Place]:
    """Return the files that a file or folder elsewhere stands for; HDF5 is known by its name.

    Raises:
        ValueError: If a folder holds none, or it cannot be reached.
        FileNotFoundError: If there is nothing.
    """
    if not place.is_folder():
        return [place]
    chosen = _features_among(
        place.names(), place.location, lambda name: name.endswith((".hdf5", ".h5"))
    )
    return [place.child(name) for name in chosen]


def _features_among(
    names: Sequence[str], folder: str | Path, is_hdf5: Callable[[str], bool]
) -> list[str]:
    """Find a folder's only Parquet file, or its HDF5 pair by names (test is often called val)."""
    parquet = [name for name in names if name.endswith(".parquet")]
    if len(parquet) == 1:
        return parquet
    files = [name for name in names if is_hdf5(name)]
    train = [name for name in files if "train" in Path(name).stem]
    test = [name for name in files if "val" in Path(name).stem or "test" in Path(name).stem]
    if len(train) != 1 or len(test) != 1 or train == test:
        raise ValueError(
            f"{folder} must hold one Parquet file, or one HDF5 file with 'train' and one with "
            f"'val' or 'test' in its name, found {parquet + files}"
        )
    return [train[0], test[0]]


def _kind_of(path: Path) -> str:
    """Return "parquet" or "hdf5" by the file's first bytes, whatever its name."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, but a feature file is wanted here")
    start = _first_bytes(path)
    if start[:4] == b"PAR1":
        return "parquet"
    if start == _HDF5:
        return "hdf5"
    if start[:1] == b"\x80" or start[:2] == b"PK" or start[:6] == b"\x93NUMPY":
        raise ValueError(
            f"{path} is refused: pickles and the files that may hold them (.pkl, .pt, .npz, .npy) "
            "can run code; load it yourself and use FeatureTable.from_arrays"
        )
    raise ValueError(f"{path} is neither Parquet nor HDF5")


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_HDF5))

"""Features in ``.npz`` files, dicts of arrays: one of shape (rows, D) per class name.

These files have no partitions, so every fifth row of a class (5, 10, 15, ...) is a test row.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy

from cpaan.data.files import Block, Source, naming
from cpaan.data.table import as_feature_block

_TEST_EVERY = 5


def open_npz(files: Sequence[Path]) -> Source:
    """Open files for decoding as one table, sorted by class; a class in two files is an error."""
    archive_of_class: dict[str, ZipFile] = {}
    num_rows = 0
    for file in files:
        with naming(file.name):
            archive = ZipFile(file)
            for member in archive.namelist():
                name = member.removesuffix(".npy")
                if name in archive_of_class:
                    raise ValueError(f"class {name} is in these files twice")
                num_rows += _count_rows(archive, name)
                archive_of_class[name] = archive
    return Source(num_rows, _blocks(archive_of_class), metadata={})


def _count_rows(archive: ZipFile, name: str) -> int:
    """Return the number of rows of a class from the header of its array."""
    with archive.open(f"{name}.npy") as file:
        is_old = npy.read_magic(file) == (1, 0)
        header = npy.read_array_header_1_0(file) if is_old else npy.read_array_header_2_0(file)
    shape, _, dtype = header
    if dtype.hasobject:
        raise ValueError(f"refused: the array of class {name} has objects, which can run code")
    if len(shape) != 2:
        raise ValueError(f"class {name} needs an array of shape (rows, D), got shape {shape}")
    return int(shape[0])


def _blocks(archive_of_class: Mapping[str, ZipFile]) -> Iterator[Block]:
    """Iterate over the classes; one is in memory at a time."""
    for name, archive in sorted(archive_of_class.items()):
        with naming(f"class {name}"), archive.open(f"{name}.npy") as file:
            features = as_feature_block(npy.read_array(file, allow_pickle=False), first_row=0)
        row_numbers = np.arange(1, len(features) + 1)
        yield Block(features, np.full(len(features), name), row_numbers % _TEST_EVERY != 0)

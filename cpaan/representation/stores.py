"""Arrays on disk with one row for each image, filled batch by batch by jobs that may be killed.

Shapes: R = rows of a store.
"""

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpaan.representation.decoding import BadImages, Pixels, decode_images
from cpaan.representation.images import ImageList

_DONE = "done"
_SECONDS_BETWEEN_SAVES = 30.0


class RowStore:
    """Arrays on disk, and a record of the rows that are filled."""

    def __init__(
        self,
        folder: Path,
        rows: NDArray[np.int64],
        arrays: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
    ) -> None:
        """Open or create the arrays.

        Args:
            folder: The store's own.
            rows: Images of the rows, ascending, shape (R,).
            arrays: Shape and type of one row of each array, by name.

        Raises:
            ValueError: If the disk has no room for the arrays.
        """
        self._rows = rows
        kinds = {**arrays, _DONE: ((), np.bool_)}
        if not (folder / f"{_DONE}.npy").exists():
            folder.mkdir(parents=True, exist_ok=True)
            sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in kinds.values()]
            needed, free = len(rows) * sum(sizes), shutil.disk_usage(folder).free
            if needed > free:
                raise ValueError(
                    f"{folder} needs {needed / 1e6:.0f} MB, but its disk has {free / 1e6:.0f} MB"
                )
            for name, (shape, kind) in kinds.items():
                path = folder / f"{name}.npy"
                np.lib.format.open_memmap(path, "w+", np.dtype(kind), (len(rows), *shape))
                # A process that writes into a hole of this sparse file on a disk that is full by
                # then is killed without a message.
                with path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", "r+") for name in kinds
        }
        self.is_made: NDArray[np.bool_] = np.array(self.arrays[_DONE])

    def fill(
        self,
        images: ImageList,
        size: int,
        make: Callable[[NDArray[np.int64], Pixels], Mapping[str, NDArray[Any]]],
        bad: BadImages,
        progress: Callable[[str], None],
    ) -> None:
        """Fill all rows that are not filled yet, except those of bad images.

        Bad images are decoded again when a job resumes, and recorded again.

        Args:
            images: Images of the rows.
            size: Size to which they are decoded.
            make: Computes the rows of each array, from rows of the store, shape (b,), and their
                pixels, shape (b, size, size, 3).
            bad: Record of images that cannot be decoded.
            progress: Called with a line every ten seconds.
        """
        saved = time.monotonic()
        for rows, pixels in decode_images(images, self._rows[~self.is_made], size, bad, progress):
            own = np.searchsorted(self._rows, rows)
            for name, values in make(own, pixels).items():
                self.arrays[name][own] = values
            self.is_made[own] = True
            if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                self._save()
                saved = time.monotonic()
        self._save()

    def _save(self) -> None:
        """Record which rows are filled, after their values have reached the disk."""
        for name, array in self.arrays.items():
            if name == _DONE:  # the last one
                array[:] = self.is_made
            assert isinstance(array, np.memmap)
            array.flush()

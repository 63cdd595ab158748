"""Arrays with a row for each image: made once, batch by batch, whatever kills the job in between.

Shapes: R = rows of a store.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cpaan.core.files import replacing, write_whole
from cpaan.representation.decoding import BadImages, Pixels, decode_images
from cpaan.representation.images import ImageList

_SECONDS_BETWEEN_SAVES = 30.0


class RowStore:
    """Arrays on disk, and which of their rows are already made."""

    def __init__(
        self,
        folder: Path,
        rows: NDArray[np.int64],
        arrays: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
    ) -> None:
        """Open what is there, or begin.

        Args:
            folder: The store's own.
            rows: Images that the rows are made of, ascending, shape (R,).
            arrays: By name, shape and type of one row of each array.

        Raises:
            ValueError: If the disk has no room for the arrays.
        """
        self.folder = folder
        self._rows = rows
        self._complete = folder / "complete.json"
        self._done = folder / "done.npy"
        shapes = {name: ((len(rows), *shape), kind) for name, (shape, kind) in arrays.items()}
        is_new = not self._done.exists()
        if is_new:
            folder.mkdir(parents=True, exist_ok=True)
            needed = sum(int(np.prod(s)) * np.dtype(kind).itemsize for s, kind in shapes.values())
            free = shutil.disk_usage(folder).free
            if needed > free:
                raise ValueError(
                    f"{folder} needs {needed / 1e6:.0f} MB, but its disk has {free / 1e6:.0f} MB"
                )
            for name, (shape, kind) in shapes.items():
                _make_array(folder / f"{name}.npy", shape, np.dtype(kind))
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r+", allow_pickle=False)
            for name in arrays
        }
        self.is_made: NDArray[np.bool_] = (
            np.zeros(len(rows), dtype=np.bool_)
            if is_new
            else np.load(self._done, allow_pickle=False)
        )
        self._save()

    def fill(
        self,
        images: ImageList,
        size: int,
        make: Callable[[NDArray[np.int64], Pixels], Mapping[str, NDArray[Any]]],
        bad: BadImages,
        progress: Callable[[str], None],
    ) -> None:
        """Make all rows that are not made yet; those of bad images stay as they are.

        Args:
            images: What the rows are made of.
            size: To which they are decoded.
            make: From rows of the store, shape (b,), and their pixels, shape (b, size, size, 3), to
                the rows of each array.
            bad: Where images are recorded that cannot be decoded.
            progress: Called with a line now and then.
        """
        if self._complete.exists():
            for name, reason in json.loads(self._complete.read_text()).items():
                bad.add(name, reason)
            return
        saved = time.monotonic()
        before = set(bad.reasons)
        pending = self._rows[~self.is_made]
        for rows, pixels in decode_images(images, pending, size, bad=bad, progress=progress):
            own = np.searchsorted(self._rows, rows)
            for name, values in make(own, pixels).items():
                self.arrays[name][own] = values
            self.is_made[own] = True
            if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                self._save()
                saved = time.monotonic()
        self._save()
        found = {name: reason for name, reason in bad.reasons.items() if name not in before}
        write_whole(self._complete, json.dumps(found))

    def _save(self) -> None:
        """Note what is made, after it has reached the disk."""
        for array in self.arrays.values():
            assert isinstance(array, np.memmap)
            array.flush()
        with replacing(self._done) as file:
            np.save(file, self.is_made)


def _make_array(path: Path, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
    """Make a file whose every block is already there.

    One with holes would take no space at first; and when the disk is full later on, a process that
    writes into a hole of a mapped file is ended without a word.

    Raises:
        OSError: If the disk has no room for it.
    """
    with path.open("wb") as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(kind),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        os.posix_fallocate(file.fileno(), file.tell(), math.prod(shape) * kind.itemsize)

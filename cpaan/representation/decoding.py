"""Decode images in parallel and in a fixed order, and fill arrays on disk with the results.

Every image is scaled until its shorter side has the wanted size, and cropped to its central square.
Images that cannot be decoded are skipped and recorded, up to a share that the caller allows.

Shapes: R = rows of a store.
"""

import io
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from cpaan.data.table import name_some
from cpaan.representation.images import Content, ImageList

_MAX_BATCH_IMAGES, _MAX_BATCH_BYTES = 256, 1 << 24
_IMAGES_PER_TASK = 8  # with fewer, handing over small images takes much of the time
_TASKS_PER_THREAD = 2
_NUM_TRIED = 21
_SECONDS_BETWEEN_MESSAGES = 10.0
_SECONDS_BETWEEN_SAVES = 30.0
_DONE = "done"
_MAX_PIXELS = 89_478_485  # Pillow warns above this

Pixels = NDArray[np.uint8]
_Result = tuple[int, Pixels | str]
"""A row with its pixels, or with the reason why it has none."""


@dataclass
class BadImages:
    """Names of images that could not be decoded, with reasons; at most a share of all images."""

    max_share: float
    total: int
    reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.max_share <= 1:
            raise ValueError(
                f"the allowed share of bad images must be from 0 to 1, got {self.max_share}"
            )

    def add(self, name: str, reason: str) -> None:
        """Record a bad image; raise a ValueError if there are now more than allowed."""
        self.reasons[name] = reason
        if len(self.reasons) > self.max_share * self.total:
            images = [f"{name} ({reason})" for name, reason in self.reasons.items()]
            raise ValueError(
                f"{len(self.reasons)} of {self.total} images cannot be decoded, more than the "
                f"allowed share {self.max_share} (--max-bad): {name_some('image', images)}"
            )


class RowStore:
    """Arrays on disk with a row for every image, filled by jobs that may be killed."""

    def __init__(
        self,
        folder: Path,
        rows: NDArray[np.int64],
        arrays: Mapping[str, tuple[tuple[int, ...], DTypeLike]],
    ) -> None:
        """Open or create the arrays; raise ValueError if the disk has no room for them.

        The folder is for this store only. ``rows`` has the images of its rows, ascending, shape
        (R,); ``arrays`` has the shape and type of one row of the arrays, by name.
        """
        self._rows = rows
        kinds = {**arrays, _DONE: ((), np.bool_)}
        if not (folder / f"{_DONE}.npy").exists():
            folder.mkdir(parents=True, exist_ok=True)
            sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in kinds.values()]
            needed, free = len(rows) * sum(sizes), shutil.disk_usage(folder).free
            if needed > free:
                raise ValueError(
                    f"{folder} needs {needed / 1e6:.0f} MB, but {free / 1e6:.0f} MB are free"
                )
            for name, (shape, kind) in kinds.items():
                path = folder / f"{name}.npy"
                np.lib.format.open_memmap(path, "w+", np.dtype(kind), (len(rows), *shape))
                # Allocate the sparse file now: if the disk is full later, a process that writes
                # into a hole is killed without a message.
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

        A resumed job decodes and records bad images again. ``make`` computes the rows of the arrays
        from places in the store, shape (b,), and their pixels, shape (b, size, size, 3).
        """
        saved = time.monotonic()
        for rows, pixels in decode_images(images, self._rows[~self.is_made], size, bad, progress):
            places = np.searchsorted(self._rows, rows)
            for name, values in make(places, pixels).items():
                self.arrays[name][places] = values
            self.is_made[places] = True
            if time.monotonic() - saved > _SECONDS_BETWEEN_SAVES:
                self._save()
                saved = time.monotonic()
        self._save()

    def _save(self) -> None:
        """Record which rows are filled, after their values have been written to disk."""
        for name, array in self.arrays.items():
            if name == _DONE:  # the last one
                array[:] = self.is_made
            assert isinstance(array, np.memmap)
            array.flush()


class _BadImageError(Exception):
    """An image cannot be decoded."""


def find_size(images: ImageList) -> int:
    """Return the median of the shorter sides of some images, in pixels."""
    rows = np.unique(np.linspace(0, len(images) - 1, _NUM_TRIED).astype(np.int64))
    sizes = []
    for _, content in images.source.read(rows):
        with suppress(_BadImageError):
            sizes.append(min(_decode(content, _MAX_PIXELS).size))
    if not sizes:
        raise ValueError(f"cannot decode any of {len(rows)} sampled images")
    return sorted(sizes)[len(sizes) // 2]


def decode_images(
    images: ImageList,
    rows: NDArray[np.int64],
    size: int,
    bad: BadImages,
    progress: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[NDArray[np.int64], Pixels]]:
    """Decode some images, a batch at a time, in their order on disk.

    Files are read only as batches are taken, so that at most a few hundred images are in memory.
    Order and pixels do not depend on the number of threads, which is that of the CPUs. Rows of the
    list, shape (n,), may have any order; bad images are recorded and skipped.

    Yields:
        Row numbers, shape (b,), and RGB pixels, shape (b, size, size, 3).
    """
    batch_size = max(1, min(_MAX_BATCH_IMAGES, _MAX_BATCH_BYTES // (3 * size * size)))
    batch: list[tuple[int, Pixels]] = []
    num_decoded = 0
    start = reported = time.monotonic()
    for num_done, (row, result) in enumerate(_results(images, rows, size), 1):
        if isinstance(result, str):
            bad.add(images.source.name(row), result)
        else:
            batch.append((row, result))
            num_decoded += 1
        if len(batch) == batch_size or (batch and num_done == len(rows)):
            yield np.array([row for row, _ in batch]), np.stack([pixels for _, pixels in batch])
            batch = []
        now = time.monotonic()
        if now - reported >= _SECONDS_BETWEEN_MESSAGES and num_done < len(rows):
            left = (now - start) / num_done * (len(rows) - num_done)
            progress(f"decoded {num_decoded} of {len(rows)} images, {left:.0f} s left")
            reported = now
    taken = time.monotonic() - start
    progress(f"decoded {num_decoded} of {len(rows)} images in {taken:.0f} s")


def _results(images: ImageList, rows: NDArray[np.int64], size: int) -> Iterator[_Result]:
    """Yield the results of rows in reading order."""
    contents, num_threads = images.source.read(rows), os.cpu_count() or 1
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="decode")
    tasks: deque[Future[list[_Result]]] = deque()
    try:
        while some := list(islice(contents, _IMAGES_PER_TASK)):
            tasks.append(pool.submit(_decode_some, some, size))
            if len(tasks) > _TASKS_PER_THREAD * num_threads:
                yield from tasks.popleft().result()
        while tasks:
            yield from tasks.popleft().result()
    finally:
        # Also runs if the caller stops early or there are too many bad images.
        pool.shutdown(cancel_futures=True)


def _decode_some(contents: list[tuple[int, Content]], size: int) -> list[_Result]:
    results: list[_Result] = []
    for row, content in contents:
        try:
            results.append((row, _square(_decode(content, size), size)))
        except _BadImageError as error:
            results.append((row, str(error)))
    return results


class _Jpeg(JpegImageFile):
    """A JPEG whose EXIF block is ignored.

    Pillow reads the resolution from it, which is not needed here, and warns if it is damaged.
    ImageNet has such images, and their pixels are intact.
    """

    def _read_dpi_from_exif(self) -> None:
        pass


def _decode(content: Content, size: int) -> Image.Image:
    """Return the image in RGB; large JPEGs may be decoded at a fraction of their size.

    Raises:
        _BadImageError: If it is missing, empty, damaged, too large, or neither JPEG nor PNG.
        OSError: If the file cannot be read for another reason.
    """
    if isinstance(content, Path):
        # Read before decoding, to tell disk errors from image errors.
        try:
            content = content.read_bytes()
        except FileNotFoundError:
            raise _BadImageError("no such file") from None
    if not content:
        raise _BadImageError("empty")
    # Image.open warns of large images before their size can be checked, and warnings cannot be
    # caught in several threads at once.
    kinds = {b"\xff\xd8\xff": _Jpeg, b"\x89PNG\r\n\x1a\n": PngImageFile}
    kind = next((kind for start, kind in kinds.items() if content.startswith(start)), None)
    if kind is None:
        raise _BadImageError("not a JPEG or PNG image")
    try:
        image: Image.Image = kind(io.BytesIO(content))
        width, height = image.size
        if width * height > _MAX_PIXELS:
            raise _BadImageError(f"{width} x {height} pixels, more than the limit of {_MAX_PIXELS}")
        # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size. At twice the wanted size or more, the
        # final scaling is still ours and not the coarser one of the decoder.
        image.draft(None, (2 * size, 2 * size))
        image.load()
        image.info.pop("transparency", None)  # avoids a warning that it is lost
        # 16 bits per pixel: convert would clip instead of scale.
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert("RGB")
    except (_BadImageError, MemoryError):
        raise
    except Exception as error:
        # The bytes are in memory, so any error of Pillow (OSError, SyntaxError, struct.error and
        # more) comes from the image. A damaged image must not end a job of many hours.
        raise _BadImageError(" ".join(str(error).split()) or type(error).__name__) from error


def _square(image: Image.Image, size: int) -> Pixels:
    """Return the central square of an RGB image, shape (size, size, 3)."""
    width, height = image.size
    if (width, height) != (size, size):
        # Crop in whole pixels and scale in one step. The filter also covers pixels beyond the crop,
        # so this equals scaling before cropping, without rounding the longer side.
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    return np.asarray(image)

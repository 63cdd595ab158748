"""From image files to pixels, in parallel and in a fixed order.

Every picture is scaled until its shorter side has the wanted size, and cut to the square in its
middle. Pictures that cannot be decoded are skipped and kept on record, up to a share that the
caller allows.
"""

import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from cpaan.data.table import name_some
from cpaan.representation.images import Content, ImageList

_MAX_BATCH_IMAGES, _MAX_BATCH_BYTES = 256, 1 << 24
_IMAGES_PER_TASK = 8  # fewer would spend a good part of the time on handing over small pictures
_TASKS_PER_THREAD = 2
_NUM_TRIED = 21
_SECONDS_BETWEEN_REPORTS = 10.0

Pixels = NDArray[np.uint8]


class BadImages:
    """The images that could not be decoded, by name with the reason."""

    def __init__(self, max_share: float, total: int) -> None:
        """Allow that share of all images to be bad.

        Args:
            max_share: From 0 (none) to 1.
            total: The number of images that the share is of.

        Raises:
            ValueError: If the share is not from 0 to 1.
        """
        if not 0 <= max_share <= 1:
            raise ValueError(f"the share of bad images must be from 0 to 1, got {max_share}")
        self.max_share = max_share
        self.total = total
        self.reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, name: str, reason: str) -> None:
        """Record a bad image; the same one counts once.

        Raises:
            ValueError: If these are now more than allowed.
        """
        self.reasons[name] = reason
        if len(self) > self.max_share * self.total:
            images = [f"{name} ({reason})" for name, reason in self.reasons.items()]
            raise ValueError(
                f"{len(self)} of {self.total} images cannot be decoded, more than the "
                f"{self.max_share} allowed: {name_some('image', images)}"
            )


def find_size(images: ImageList) -> int:
    """Return the shorter side that images have, in pixels: the median of some of them.

    Raises:
        ValueError: If none of these can be decoded.
    """
    rows = np.unique(np.linspace(0, len(images) - 1, _NUM_TRIED).astype(np.int64))
    sizes = []
    for _, content in images.read(rows):
        with suppress(_BadImageError):
            sizes.append(min(_decode(content, Image.MAX_IMAGE_PIXELS or sys.maxsize).size))
    if not sizes:
        raise ValueError(f"none of {len(rows)} images that were tried can be decoded")
    return sorted(sizes)[len(sizes) // 2]


class _BadImageError(Exception):
    """One picture cannot be decoded."""


def decode_images(
    images: ImageList,
    rows: NDArray[np.int64],
    size: int,
    *,
    num_threads: int | None = None,
    bad: BadImages | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[tuple[NDArray[np.int64], Pixels]]:
    """Decode some images, a batch at a time, in the order in which they lie on disk.

    The order and the pixels depend on the images, the rows and the size alone. Files are read as
    batches are taken: no more than a few hundred images are in memory.

    Args:
        images: The list of R images.
        rows: Which of them, shape (n,), each in [0, R); in any order.
        size: Width and height of the result in pixels.
        num_threads: Number of decoding threads; without it, one for each CPU.
        bad: Record of the images that are skipped. Without it, none may be bad.
        progress: Called with a line about every ten seconds and at the end.

    Returns:
        An iterator over batches: row numbers, shape (b,), and RGB pixels, shape
        (b, size, size, 3).

    Raises:
        ValueError: If a row, the size or the number of threads is out of range; while decoding, if
            more images are bad than allowed, or a Parquet file is damaged.
        OSError: If a file cannot be read for a reason other than its absence.
    """
    rows = np.asarray(rows, dtype=np.int64)
    num_threads = (os.cpu_count() or 1) if num_threads is None else num_threads
    if size < 1 or num_threads < 1:
        raise ValueError(f"size {size} and number of threads {num_threads} must be at least 1")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(images)):
        raise ValueError(f"rows go from {rows.min()} to {rows.max()} in {len(images)} images")
    bad = BadImages(0.0, len(rows)) if bad is None else bad
    return _batches(images, rows, size, num_threads, bad, progress or (lambda line: None))


def _batches(
    images: ImageList,
    rows: NDArray[np.int64],
    size: int,
    num_threads: int,
    bad: BadImages,
    progress: Callable[[str], None],
) -> Iterator[tuple[NDArray[np.int64], Pixels]]:
    batch_size = max(1, min(_MAX_BATCH_IMAGES, _MAX_BATCH_BYTES // (3 * size * size)))
    batch: list[tuple[int, Pixels]] = []
    num_decoded = 0
    start = last_report = time.monotonic()
    for num_done, (row, result) in enumerate(_results(images, rows, size, num_threads), 1):
        if isinstance(result, str):
            bad.add(images.name(row), result)
        else:
            batch.append((row, result))
            num_decoded += 1
        if len(batch) == batch_size or (batch and num_done == len(rows)):
            yield np.array([row for row, _ in batch]), np.stack([pixels for _, pixels in batch])
            batch = []
        now = time.monotonic()
        if now - last_report >= _SECONDS_BETWEEN_REPORTS and num_done < len(rows):
            left = (now - start) / num_done * (len(rows) - num_done)
            progress(f"decoded {num_decoded} of {len(rows)} images, {left:.0f} s left")
            last_report = now
    taken = time.monotonic() - start
    progress(f"decoded {num_decoded} of {len(rows)} images in {taken:.0f} s")


def _results(
    images: ImageList, rows: NDArray[np.int64], size: int, num_threads: int
) -> Iterator[tuple[int, Pixels | str]]:
    """Yield each row with its pixels or with what is wrong, in reading order."""
    contents = images.read(rows)
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="decode")
    tasks: deque[Future[list[tuple[int, Pixels | str]]]] = deque()
    try:
        while some := list(islice(contents, _IMAGES_PER_TASK)):
            tasks.append(pool.submit(_decode_some, some, size))
            if len(tasks) > _TASKS_PER_THREAD * num_threads:
                yield from tasks.popleft().result()
        while tasks:
            yield from tasks.popleft().result()
    finally:
        # Also when the caller takes no further batch, or an image is one bad image too many.
        pool.shutdown(cancel_futures=True)


def _decode_some(contents: list[tuple[int, Content]], size: int) -> list[tuple[int, Pixels | str]]:
    results: list[tuple[int, Pixels | str]] = []
    for row, content in contents:
        try:
            results.append((row, _square(_decode(content, size), size)))
        except _BadImageError as error:
            results.append((row, str(error)))
    return results


class _Jpeg(JpegImageFile):
    """A JPEG whose EXIF block is left alone.

    Pillow reads the resolution from it, which nobody here wants, and warns where it is damaged;
    ImageNet has such images, and their pictures are sound.
    """

    def _read_dpi_from_exif(self) -> None:
        pass


def _decode(content: Content, size: int) -> Image.Image:
    """Return the picture in RGB, large ones perhaps at a fraction of their size.

    Raises:
        _BadImageError: If it is missing, empty, damaged, too large, or neither JPEG nor PNG.
        OSError: If the file cannot be read for another reason.
    """
    if isinstance(content, Path):
        # Reading it here, apart from decoding, tells an error of the disk from one of the picture.
        try:
            content = content.read_bytes()
        except FileNotFoundError:
            raise _BadImageError("no such file") from None
    if not content:
        raise _BadImageError("empty")
    # Not Image.open: it warns of large pictures before anybody can look at the size, and warnings
    # cannot be caught in several threads at once.
    kinds = {b"\xff\xd8\xff": _Jpeg, b"\x89PNG\r\n\x1a\n": PngImageFile}
    kind = next((kind for start, kind in kinds.items() if content.startswith(start)), None)
    if kind is None:
        raise _BadImageError("neither JPEG nor PNG")
    try:
        image: Image.Image = kind(io.BytesIO(content))
        width, height = image.size
        if Image.MAX_IMAGE_PIXELS is not None and width * height > Image.MAX_IMAGE_PIXELS:
            raise _BadImageError(
                f"{width} x {height} pixels, more than the {Image.MAX_IMAGE_PIXELS} allowed"
            )
        # JPEG can be decoded at 1/2, 1/4 or 1/8 of its size. What is left has twice the wanted
        # size or more, so that the last step is still ours and not the rough one of the decoder.
        image.draft(None, (2 * size, 2 * size))
        image.load()
        image.info.pop("transparency", None)  # Pillow would warn that it is lost, as it should be
        # 16 bits a pixel, which convert would clip rather than scale.
        if image.mode.startswith("I"):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        return image.convert("RGB")
    except (_BadImageError, MemoryError):
        raise
    except Exception as error:
        # The bytes are in memory, so whatever Pillow raises (OSError, SyntaxError, struct.error,
        # and more) is about the picture; no damaged picture may end a job of many hours.
        raise _BadImageError(" ".join(str(error).split()) or type(error).__name__) from error


def _square(image: Image.Image, size: int) -> Pixels:
    """Return the middle of an RGB picture, shape (size, size, 3)."""
    width, height = image.size
    if (width, height) != (size, size):
        # Cut out in whole pixels and scaled in one step. The filter still sees the pixels beyond
        # the cut, so this is scaling first and cutting then, without rounding the longer side.
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    return np.asarray(image)

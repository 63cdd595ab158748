"""Test that pixels do not depend on the threads, and that a bad image affects no others."""

import io
import struct
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpaan.representation import decoding
from cpaan.representation.decoding import BadImages, decode_images
from cpaan.representation.images import ImageList, open_images
from helpers.images import (
    CLASSES,
    Picture,
    encoded,
    noise,
    some_pictures,
    write_folders,
    write_parquet,
)

RED = (255, 0, 0)


def listed(path: Path, contents: list[bytes]) -> ImageList:
    """Return an image list that starts with the given images."""
    train = [Picture("a", "train", "", content) for content in contents]
    return open_images(
        write_parquet(path / "i.parquet", [*train, Picture("a", "test", "", b"")]), ["a"]
    )


def decode_one(path: Path, content: bytes, size: int) -> np.ndarray:
    images = listed(path, [content])
    ((_, pixels),) = decode_images(images, np.array([0]), size, BadImages(0.0, 1))
    assert pixels.dtype == np.uint8
    return pixels[0]


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def bicubic(image: Image.Image, width: int, height: int) -> np.ndarray:
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def decoded_images() -> dict[str, tuple[bytes, int, object, int]]:
    """Return files, the size to decode them at, the expected pixels and their largest error."""
    landscape, jpeg = noise(0, 19, 8), encoded(noise(0, 64, 64))
    middle = landscape[:, 5:13]
    board = np.repeat((np.indices((64, 64)).sum(0) % 2 * 255)[..., None], 3, axis=2)
    wide = noise(0, 80, 40)  # scales to 20 x 10 without rounding
    no_cyan = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    deep = Image.fromarray(np.full((16, 16), 100 * 256, np.uint16))
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    channels = [np.tile(ramp, (512, 1)), np.tile(ramp[:, None], 512), np.full((512, 512), 9)]
    large = encoded(np.stack(channels, axis=2).astype(np.uint8))
    forms = ["L JPEG", "CMYK JPEG", "L PNG", "RGBA PNG", "LA PNG", "P PNG", "1 PNG"]
    options = {"P PNG": {"transparency": bytes(range(256))}}
    white = Image.new("RGB", (16, 16), "white")
    return {
        "landscape": (encoded(landscape, "PNG"), 8, middle, 0),
        "portrait": (encoded(landscape.swapaxes(0, 1), "PNG"), 8, middle.swapaxes(0, 1), 0),
        "same size": (jpeg, 64, np.asarray(Image.open(io.BytesIO(jpeg))), 0),
        "enlarged": (encoded(np.full((3, 1, 3), RED, np.uint8), "PNG"), 16, RED, 0),
        "averaged": (encoded(board.astype(np.uint8), "PNG"), 8, 127, 3),
        "cropped": (encoded(wide, "PNG"), 10, bicubic(Image.fromarray(wide), 20, 10)[:, 5:15], 1),
        "CMYK is not inverted": (saved(no_cyan, "JPEG", quality=95), 16, RED, 9),
        "16 bits are scaled, not clipped": (saved(deep), 16, 100, 0),
        "decoded at a fraction": (large, 64, bicubic(Image.open(io.BytesIO(large)), 64, 64), 4),
        **{
            form: (saved(white.convert(mode), kind, **options.get(form, {})), 16, 255, 0)
            for form, (mode, kind) in ((form, form.split()) for form in forms)
        },
    }


@pytest.mark.parametrize("case", decoded_images())
def test_images_are_cut_to_their_middle_scaled_and_become_rgb(tmp_path, case):
    content, size, expected, largest_error = decoded_images()[case]

    pixels = decode_one(tmp_path, content, size)

    assert pixels.shape == (size, size, 3)
    assert np.abs(pixels.astype(int) - expected).max() <= largest_error


@pytest.mark.parametrize(("width", "scale"), [(127, 1), (255, 1), (256, 2), (512, 4), (5000, 8)])
def test_large_jpegs_are_decoded_at_twice_the_size_or_more(width, scale):
    content = encoded(np.zeros((width, width + 7, 3), np.uint8))

    image = decoding._decode(content, 64)

    assert image.height == -(-width // scale)
    assert scale == 1 or image.height >= 128


def test_results_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch):
    contents = [encoded(noise(seed, 20 + seed % 7, 20)) for seed in range(300)]
    contents[5] = b"bad"
    images = listed(tmp_path, contents)
    rows = np.random.default_rng(0).permutation(300)

    runs = []
    for num_threads in (1, 2, 7):
        monkeypatch.setattr(decoding.os, "cpu_count", lambda count=num_threads: count)
        bad = BadImages(1.0, 300)
        runs.append([*decode_images(images, rows, 8, bad)])
        assert bad.reasons == {"i.parquet row 5": "not a JPEG or PNG image"}

    assert [len(rows) for rows, _ in runs[0]] == [256, 43]
    for batches in runs[1:]:
        for batch, first in zip(batches, runs[0], strict=True):
            assert all(map(np.array_equal, batch, first))


def test_batches_of_large_images_are_smaller(tmp_path):
    images = listed(tmp_path, [encoded(noise(0))] * 9)

    batches = decode_images(images, np.arange(9), 1200, BadImages(0.0, 9))

    assert [len(rows) for rows, _ in batches] == [3, 3, 3]  # 4 MB each


def png_header(width: int, height: int) -> bytes:
    """Return a PNG with a size in its header and without pixels."""
    content = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for name, data in ((b"IHDR", header), (b"IDAT", b""), (b"IEND", b"")):
        checksum = zlib.crc32(name + data)
        content += struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)
    return content


def bad_contents() -> dict[str, bytes | None]:
    jpeg, png = encoded(noise(0, 50, 50)), encoded(noise(0, 50, 50), "PNG")
    broken = bytearray(png)
    broken[60] ^= 255
    return {
        "truncated": jpeg[: len(jpeg) // 2],
        "Truncated": jpeg[:30],
        "image file is truncated": png[: len(png) // 2],
        "broken": bytes(broken),
        "empty": None,
        "not a JPEG or PNG image": b"<html>404 Not Found</html>",
        "not a JPEG or PNG": saved(Image.fromarray(noise(0)), "GIF"),
        # Pillow warns about the first one and refuses the second.
        f"pixels, more than the limit of {Image.MAX_IMAGE_PIXELS}": png_header(10_000, 10_000),
        "60000 x 10000 pixels": png_header(60_000, 10_000),
    }


@pytest.mark.parametrize("reason", bad_contents())
def test_a_bad_image_is_named_counted_and_skipped(tmp_path, reason):
    contents = [encoded(noise(k)) for k in range(9)]
    contents[4] = bad_contents()[reason]
    bad = BadImages(0.1, 10)

    ((rows, pixels),) = decode_images(listed(tmp_path, contents), np.arange(9), 8, bad)

    assert rows.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert pixels.shape == (8, 8, 8, 3)
    assert list(bad.reasons) == ["i.parquet row 4"]
    assert reason in bad.reasons["i.parquet row 4"]


def test_a_missing_file_is_a_bad_image_and_an_error_of_the_disk_is_not(tmp_path):
    root = write_folders(tmp_path, some_pictures())
    (root / "train" / "n01" / "link.JPEG").symlink_to("nowhere.JPEG")
    images = open_images(root, CLASSES)
    (root / "train" / "n01" / "n01_1.JPEG").unlink()
    bad = BadImages(0.5, 16)

    ((rows, _),) = decode_images(images, np.arange(16), 8, bad)

    assert len(rows) == 14
    assert bad.reasons == dict.fromkeys(
        ["train/n01/link.JPEG", "train/n01/n01_1.JPEG"], "no such file"
    )
    (root / "train" / "n01" / "n01_1.JPEG").mkdir()  # even root cannot read a folder as a file
    with pytest.raises(IsADirectoryError, match=r"n01_1\.JPEG"):
        list(decode_images(images, np.arange(16), 8, BadImages(1.0, 16)))


def test_damaged_exif_is_no_reason_to_lose_an_image(tmp_path):
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0\x1a\x01\x05\0\xff"
    content = saved(Image.fromarray(noise(0, 16, 16)), "JPEG", exif=exif)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        Image.open(io.BytesIO(content))

    assert decode_one(tmp_path, content, 16).shape == (16, 16, 3)


def test_more_bad_images_than_allowed_are_an_error_that_names_them():
    bad = BadImages(0.25, 8)
    for name in ("a", "b", "a"):  # the same image again, as in a second pass
        bad.add(name, "empty")

    message = r"^3 of 8 images cannot .* allowed share 0\.25 \(--max-bad\): images a \(empty\), "
    with pytest.raises(ValueError, match=message):
        bad.add("c", "empty")
    with pytest.raises(ValueError, match=r"must be from 0 to 1, got 1\.5"):
        BadImages(1.5, 10)


def test_few_images_are_read_ahead_and_no_threads_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding.os, "cpu_count", lambda: 2)
    images, read = listed(tmp_path, [encoded(noise(0))] * 1000), []

    class Noting:
        def read(self, rows):
            for row, content in images.source.read(rows):
                read.append(row)
                yield row, content

    noting = replace(images, source=Noting())
    batches = decode_images(noting, np.arange(1000), 64, BadImages(0.0, 1000))
    next(batches)
    batches.close()

    assert len(read) <= 256 + 8 * (2 * 2 + 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("decode")]

"""Small images, and their files and folders."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CLASSES = ("n01", "n02", "n03")
VAL_CLASSES = ("n02", "n01", "n03", "n02", "n03", "n01")


class Picture(NamedTuple):
    class_name: str
    partition: str
    file: str
    content: bytes


def encoded(pixels: np.ndarray, form: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def noise(seed: int, width: int = 12, height: int = 10) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def some_pictures() -> list[Picture]:
    """Return three train and two test images for each of three classes, in alternating order."""
    train = [(name, "train", f"{name}_{k}.JPEG") for k in range(3) for name in reversed(CLASSES)]
    test = [(name, "test", f"ILSVRC2012_val_0000000{k}.JPEG") for k, name in enumerate(VAL_CLASSES)]
    return [
        Picture(*about, encoded(noise(seed=k, width=12 + k)))
        for k, about in enumerate(train + test)
    ]


def write_parquet(
    path: Path, pictures: Sequence[Picture], group_size: int = 2, **columns: pa.Array | None
) -> Path:
    """Write pictures in small row groups; replace given columns, and leave out those of None."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {
        "wnid": pa.array([picture.class_name for picture in pictures], pa.string()),
        "partition": pa.array([picture.partition for picture in pictures], pa.string()),
        "jpeg": pa.array([picture.content for picture in pictures], pa.binary()),
        **columns,
    }
    table = {name: column for name, column in table.items() if column is not None}
    pq.write_table(pa.table(table), path, row_group_size=group_size)
    return path


def write_folders(root: Path, pictures: Sequence[Picture], *, flat: bool = False) -> Path:
    for picture in pictures:
        folder = root / ("train" if picture.partition == "train" else "val")
        if picture.partition == "train" or not flat:
            folder /= picture.class_name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / picture.file).write_bytes(picture.content)
    return root

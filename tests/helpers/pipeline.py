"""Small runs from image files to features."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from cpaan.data.splits import Phase, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable
from cpaan.representation.backbone_training import train_backbone
from cpaan.representation.config import BackboneConfig
from cpaan.representation.images import open_images
from cpaan.representation.pipeline import FeatureJob, represent
from helpers.images import Picture, encoded, write_folders, write_parquet

CPU = torch.device("cpu")
GROUPS = {"validation": (("b1", "b2"), ("n1",)), "test": (("b3",), ("n2",))}
SPLIT = Split(*(Phase(base, novel) for base, novel in GROUPS.values()))
CLASSES = ("b1", "b2", "b3", "n1", "n2")
NUM_TRAIN, NUM_TEST, SIZE = 10, 3, 8
CONFIG = BackboneConfig(image_size=SIZE, num_epochs=3, batch_size=8, learning_rate=0.02)

Pictures = dict[tuple[str, str, int], bytes]


def pictures() -> Pictures:
    """Return JPEG images, as in ImageNet, with a noisy colour for each class."""
    rng = np.random.default_rng(0)
    images = {}
    for number, name in enumerate(CLASSES):
        colour = np.random.default_rng(number).integers(40, 216, 3)
        for partition, count in ((TRAIN, NUM_TRAIN), (TEST, NUM_TEST)):
            for index in range(count):
                noise = rng.integers(-40, 40, (SIZE, SIZE, 3))
                images[name, partition, index] = encoded((colour + noise).astype(np.uint8))
    return images


def as_list(content: Pictures) -> list[Picture]:
    return [
        Picture(name, partition, f"{index:03d}.JPEG", data)
        for (name, partition, index), data in content.items()
    ]


def as_parquet(folder: Path, content: Pictures) -> Path:
    return write_parquet(folder / "images_0.parquet", as_list(content)).parent


def as_folders(folder: Path, content: Pictures) -> Path:
    return write_folders(folder, as_list(content))


def job_of(folder: Path, holdout: float = 0.3, **changes: object) -> FeatureJob:
    images, config = open_images(folder, CLASSES), CONFIG.with_overrides(changes)
    return FeatureJob(images=images, split=SPLIT, config=config, seed=0, holdout=holdout)


def run(
    job: FeatureJob,
    out: Path,
    *,
    max_bad: float = 0.0,
    said: Callable[[str], None] = lambda line: None,
) -> tuple[FeatureTable, dict]:
    def train(folder: Path, num_classes: int, config: BackboneConfig, seed: int) -> None:
        train_backbone(folder, num_classes, config, seed, device=CPU, progress=said)

    return represent(job, out, train, max_bad=max_bad, device=CPU, progress=said)

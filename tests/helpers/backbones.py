"""A small backbone and images that it can learn."""

import numpy as np

from cpaan.representation.config import BackboneConfig


def small_config(**changes: object) -> BackboneConfig:
    settings = {"image_size": 8, "num_epochs": 4, "batch_size": 16, "learning_rate": 0.05}
    return BackboneConfig(**{**settings, **changes})


def striped_images(num_images: int = 48, size: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return noise images of three classes: horizontal, vertical or no stripes; equal colours."""
    rng = np.random.default_rng(0)
    labels = np.arange(num_images) % 3
    images = rng.integers(0, 120, (num_images, size, size, 3))
    stripes = 130 * (np.arange(size) // 2 % 2)
    images[labels == 0] += stripes[:, None, None]
    images[labels == 1] += stripes[None, :, None]
    return images.astype(np.uint8), labels.astype(np.int64)

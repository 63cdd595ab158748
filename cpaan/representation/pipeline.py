"""From images to a feature table: store, train, make features, write; each step goes on if killed.

Shapes: R = images.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpaan.core.files import load_state, replacing, save_state, write_whole
from cpaan.core.provenance import describe_run
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable, name_some
from cpaan.representation.backbone_training import BACKBONE, LABELS, load_backbone
from cpaan.representation.config import BackboneConfig
from cpaan.representation.decoding import BadImages, Pixels
from cpaan.representation.images import ImageList
from cpaan.representation.layout import (
    ABOUT,
    FEATURES,
    check_same,
    read_made,
    refuse_foreign,
)
from cpaan.representation.quality import centroid_quality, top_accuracies
from cpaan.representation.resnet import FEATURE_DIM
from cpaan.representation.stores import RowStore

_WORK, _JOB = "work", "job.json"

Train = Callable[[Path, int, BackboneConfig, int], None]
"""Trains on a folder's images of so many classes with some settings and a seed, and leaves the
checkpoint there: `backbone_training.train_alone`, or its like on several workers."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What decides a feature table.

    Raises:
        ValueError: If the holdout is no share.
    """

    images: ImageList
    split: Split
    config: BackboneConfig
    seed: int
    holdout: float
    """Share of each base class's train images, the last ones, that the backbone is not fitted to;
    these become the class's train rows. With zero, all images are both, and base classes look far
    tighter than novel ones."""

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout must be from 0 to below 1, got {self.holdout}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")

    @property
    def base_classes(self) -> list[str]:
        """Base classes of both phases, sorted: the labels that the backbone learns."""
        return sorted(self.split.base_classes(VALIDATION_PHASE))

    @cached_property
    def base_labels(self) -> NDArray[np.int64]:
        """The position of each image's class among the base classes, shape (R,); or -1."""
        number_of = {name: number for number, name in enumerate(self.base_classes)}
        of_class = [number_of.get(name, -1) for name in self.images.class_names]
        return np.array(of_class, dtype=np.int64)[self.images.labels]

    @cached_property
    def is_fitted(self) -> NDArray[np.bool_]:
        """Which images the backbone is fitted to, shape (R,).

        Raises:
            ValueError: If the holdout leaves a class nothing to fit, or nothing to keep.
        """
        mask = np.zeros(len(self.images), dtype=np.bool_)
        labels = self.base_labels
        for label, name in enumerate(self.base_classes):
            rows = np.flatnonzero((labels == label) & self.images.is_train)
            num_kept = round(self.holdout * len(rows))
            if num_kept == len(rows) or (self.holdout and num_kept == 0):
                raise ValueError(
                    f"class {name} has {len(rows)} train images, of which a holdout of "
                    f"{self.holdout} keeps {num_kept}: some must be kept and some fitted"
                )
            mask[rows[: len(rows) - num_kept]] = True
        return mask

    def num_train_rows(self) -> dict[str, int]:
        """Return how many train rows each base class will have, if all images can be decoded."""
        labels, is_row = self.base_labels, self.images.is_train.copy()
        if self.holdout:
            is_row &= ~self.is_fitted
        counts = np.bincount(labels[is_row & (labels >= 0)], minlength=len(self.base_classes))
        return dict(zip(self.base_classes, counts.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, images by their digest; in the form in which JSON gives it back."""
        classes = {name: self.split.phase(name) for name in (VALIDATION_PHASE, TEST_PHASE)}
        return {
            "images": self.images.digest,
            "base classes": {name: list(phase.base) for name, phase in classes.items()},
            "novel classes": {name: list(phase.novel) for name, phase in classes.items()},
            "seed": self.seed,
            "holdout": self.holdout,
            **self.config.to_dict(),
        }


def represent(
    job: Job,
    out: Path,
    train: Train,
    *,
    max_bad: float,
    device: torch.device,
    progress: Callable[[str], None],
) -> tuple[FeatureTable, dict[str, Any]]:
    """Make the feature table of some images, and leave it in a folder.

    Whatever of the work is already there is used.

    Args:
        job: What to do.
        out: Where ``features.parquet``, ``about.json`` and ``backbone.pt`` are left.
        train: How the backbone is trained.
        max_bad: Share of all images that may be impossible to decode.
        device: Where features are made.
        progress: Called with a line now and then.

    Returns:
        The table, and where it comes from: training, accuracies, images that could not be decoded.

    Raises:
        ValueError: If the folder holds the work of another job, too many images are bad, or
            training diverges.
    """
    work = out / _WORK
    if made := read_made(out, job.to_dict()):
        progress(f"{out / FEATURES} is already there")
        shutil.rmtree(work, ignore_errors=True)  # should it have been killed just before
        return open_features(out / FEATURES), made
    refuse_foreign(out, out / ABOUT, work / _JOB)
    # What can be refused is refused before anything is written that another run would trip over.
    bad = BadImages(max_bad, len(job.images))
    rows_to_fit = np.flatnonzero(job.is_fitted)
    if (work / _JOB).exists():
        check_same(json.loads((work / _JOB).read_text()), job.to_dict(), work)
    write_whole(work / _JOB, json.dumps(job.to_dict()))

    fitted = work / "fitted"
    num_fitted = _store_fitted(job, rows_to_fit, fitted, bad, progress)
    train(fitted, len(job.base_classes), job.config, job.seed)
    state = load_state(fitted / BACKBONE)
    progress(f"trained for {state['seconds']:.0f} s on {state['device']}")
    table, of_classifier = _make_features(job, work, state, bad, device, progress)

    quality = centroid_quality(table, job.base_classes)
    about = {
        "job": job.to_dict(),
        "backbone": table.backbone,
        "classes": job.base_classes,
        "fitted_images": num_fitted,
        "epochs": job.config.num_epochs,
        "seed": job.seed,
        "run": describe_run(),
        "training_run": state["run"],
        "training_seconds": state["seconds"],
        "training_device": state["device"],
        "training_workers": state["workers"],
        "classifier": of_classifier,
        "centroid": {**asdict(quality), "gap": quality.gap},
        "bad_images": bad.reasons,
        "fingerprint": table.fingerprint,
    }
    write_features(out / FEATURES, table, about)
    kept = {name: state["training"][name] for name in ("config", "model")}
    save_state(out / BACKBONE, {"training": kept, "classes": job.base_classes})
    about["log"] = state["log"]
    write_whole(out / ABOUT, json.dumps(about, indent=1))
    shutil.rmtree(work)
    return table, about


def _store_fitted(
    job: Job,
    rows: NDArray[np.int64],
    folder: Path,
    bad: BadImages,
    progress: Callable[[str], None],
) -> int:
    """Decode the images that the backbone is fitted to; return their number."""
    count, size = len(job.base_classes), job.config.image_size
    progress(f"decoding {len(rows)} images of {count} base classes, at {size} pixels, to fit")
    store = RowStore(folder, rows, {"images": ((size, size, 3), np.uint8)})
    store.fill(job.images, size, lambda own, pixels: {"images": pixels}, bad, progress)
    labels = np.where(store.is_made, job.base_labels[rows], -1)
    lost = [name for label, name in enumerate(job.base_classes) if label not in labels]
    if lost:
        raise ValueError(f"none of the images to fit can be decoded of {name_some('class', lost)}")
    with replacing(folder / LABELS) as file:
        np.save(file, labels)
    return int(store.is_made.sum())


def _make_features(
    job: Job,
    work: Path,
    state: dict[str, Any],
    bad: BadImages,
    device: torch.device,
    progress: Callable[[str], None],
) -> tuple[FeatureTable, dict[str, dict[str, float]]]:
    """Return the table, and the accuracy of the backbone's own classifier on base rows."""
    labels = job.base_labels
    rows = np.flatnonzero(~job.is_fitted) if job.holdout else np.arange(len(labels))
    progress(f"making features of {len(rows)} images")
    model = load_backbone(state, device)

    def make(own: NDArray[np.int64], pixels: Pixels) -> dict[str, NDArray[Any]]:
        features, scores = model.describe(torch.from_numpy(pixels).to(device))
        truth = torch.from_numpy(labels[rows[own]]).to(device)
        own_score = scores.gather(1, truth.clamp(min=0).unsqueeze(1))
        ranks = torch.where(truth >= 0, (scores >= own_score).sum(dim=1) - 1, -1)
        return {"features": features.half().cpu().numpy(), "ranks": ranks.cpu().numpy()}

    row = {"features": ((FEATURE_DIM,), np.float16), "ranks": ((), np.int32)}
    store = RowStore(work / "features", rows, row)
    store.fill(job.images, job.config.image_size, make, bad, progress)
    is_made, kept = store.is_made, rows[store.is_made]
    is_train, ranks = job.images.is_train[kept], store.arrays["ranks"][is_made]
    table = FeatureTable.from_arrays(
        store.arrays["features"][is_made],
        job.images.classes[kept].tolist(),
        np.where(is_train, TRAIN, TEST).tolist(),
        backbone=f"ResNet-10, {job.config.loss}, {job.config.num_epochs} epochs, seed {job.seed}",
        backbone_classes=job.base_classes,
    )
    return table, {
        "base_train": top_accuracies(ranks[(ranks >= 0) & is_train]),
        "base_test": top_accuracies(ranks[(ranks >= 0) & ~is_train]),
    }

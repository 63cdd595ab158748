"""From images to a feature table: decode, train, compute features, write. Each step can resume.

Shapes: R = images.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cpaan.core.files import pack_state, replacing, unpack_state, write_whole
from cpaan.data.splits import Split
from cpaan.data.table import TEST, TRAIN, FeatureTable, name_some
from cpaan.representation.backbone import FEATURE_DIM, Backbone
from cpaan.representation.backbone_training import BACKBONE, LABELS
from cpaan.representation.config import BackboneConfig
from cpaan.representation.decoding import BadImages, Pixels, RowStore
from cpaan.representation.feature_folder import check_same_job, read_made, write_made
from cpaan.representation.images import ImageList
from cpaan.training.drive import Progress

_WORK, _JOB = "work", "job.json"

Train = Callable[[Path, int, BackboneConfig, int], None]
"""Function that trains a backbone on a folder's images, given the number of classes, settings and a
seed. It writes the checkpoint there: `train_backbone`, or `cpaan.study.backbone.train_with_ray`."""


@dataclass(frozen=True, kw_only=True)
class FeatureJob:
    """Everything that determines a feature table."""

    images: ImageList
    split: Split
    config: BackboneConfig
    seed: int
    holdout: float
    """Share of each base class's train images, the last ones, that the backbone is not fitted to.
    They become the class's train rows. With zero, all images are both, and base classes are far
    tighter than novel ones."""

    def __post_init__(self) -> None:
        if not 0 <= self.holdout < 1:
            raise ValueError(f"holdout must be at least 0 and below 1, got {self.holdout}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")

    @property
    def base_classes(self) -> list[str]:
        """Base classes of both phases, sorted; their positions are the backbone's labels."""
        return sorted(self.split.base_classes())

    @cached_property
    def base_labels(self) -> NDArray[np.int64]:
        """Position of each image's class among the base classes, shape (R,); -1 for others."""
        number_of = {name: number for number, name in enumerate(self.base_classes)}
        of_class = [number_of.get(name, -1) for name in self.images.class_names]
        return np.array(of_class, dtype=np.int64)[self.images.labels]

    @cached_property
    def is_fitted(self) -> NDArray[np.bool_]:
        """Mask of the images that the backbone is fitted to, shape (R,)."""
        mask = np.zeros(len(self.images), dtype=np.bool_)
        labels = self.base_labels
        for label, name in enumerate(self.base_classes):
            rows = np.flatnonzero((labels == label) & self.images.is_train)
            num_kept = round(self.holdout * len(rows))
            if num_kept == len(rows) or (self.holdout and num_kept == 0):
                raise ValueError(
                    f"class {name} has {len(rows)} train images, and a holdout of {self.holdout} "
                    f"keeps {num_kept}; at least one must be held out and one fitted"
                )
            mask[rows[: len(rows) - num_kept]] = True
        return mask

    def num_train_rows(self) -> dict[str, int]:
        """Return the number of train rows of each base class if all images can be decoded."""
        labels, is_row = self.base_labels, self.images.is_train.copy()
        if self.holdout:
            is_row &= ~self.is_fitted
        counts = np.bincount(labels[is_row & (labels >= 0)], minlength=len(self.base_classes))
        return dict(zip(self.base_classes, counts.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the job as JSON values, with a digest for the images."""
        classes = self.split.phases
        return {
            "images": self.images.digest,
            "base classes": {name: list(phase.base) for name, phase in classes.items()},
            "novel classes": {name: list(phase.novel) for name, phase in classes.items()},
            "seed": self.seed,
            "holdout": self.holdout,
            **self.config.to_dict(),
        }


def represent(
    job: FeatureJob,
    out: Path,
    train: Train,
    *,
    max_bad: float,
    device: torch.device,
    progress: Progress,
) -> tuple[FeatureTable, dict[str, Any]]:
    """Make the feature table of some images, and write it into a folder.

    Resumes a previous run in the folder ``out``. It holds ``features.parquet``, ``about.json`` and
    ``backbone.pt`` in the end. ``max_bad`` is the largest share of images that cannot be decoded.

    Returns the table and its provenance: training, accuracies, images that could not be decoded.
    Raises ValueError if the folder holds the work of another job, too many images are bad, or
    training diverges.
    """
    work = out / _WORK
    if made := read_made(out, job.to_dict(), work / _JOB, progress):
        shutil.rmtree(work, ignore_errors=True)  # left by a run that was killed just before its end
        return made
    # All checks come before the first file: after it, a corrected command would be another job.
    bad = BadImages(max_bad, len(job.images))
    if (work / _JOB).exists():
        check_same_job(json.loads((work / _JOB).read_text()), job.to_dict(), work)
    what = f"{job.is_fitted.sum()} training images of {len(job.base_classes)} base classes"
    progress(f"decoding {what} at {job.config.image_size} pixels")
    write_whole(work / _JOB, json.dumps(job.to_dict()))

    fitted = work / "fitted"
    num_fitted = _store_fitted(job, fitted, bad, progress)
    train(fitted, len(job.base_classes), job.config, job.seed)
    state = unpack_state((fitted / BACKBONE).read_bytes())
    trained = state["run"]
    progress(f"the backbone: trained in {state['seconds']:.0f} s on {trained['device']}")
    table, of_classifier = _make_features(job, work, trained, bad, device, progress)
    weights = {name: trained[name] for name in ("config", "model")}
    content = pack_state({"training": weights, "classes": job.base_classes})
    write_whole(out / BACKBONE, content)
    about = write_made(
        *(out, table, job.to_dict(), job.base_classes),
        classes=job.base_classes,
        fitted_images=num_fitted,
        epochs=job.config.num_epochs,
        seed=job.seed,
        training_run=state["provenance"],
        training_seconds=state["seconds"],
        training_device=trained["device"],
        training_workers=trained["workers"],
        classifier=of_classifier,
        bad_images=bad.reasons,
        log=state["curve"],
    )
    shutil.rmtree(work)
    return table, about


def _store_fitted(job: FeatureJob, folder: Path, bad: BadImages, progress: Progress) -> int:
    """Decode the images that the backbone is fitted to; return their number."""
    rows, size = np.flatnonzero(job.is_fitted), job.config.image_size
    store = RowStore(folder, rows, {"images": ((size, size, 3), np.uint8)})
    store.fill(job.images, size, lambda places, pixels: {"images": pixels}, bad, progress)
    labels = np.where(store.is_made, job.base_labels[rows], -1)
    lost = [name for label, name in enumerate(job.base_classes) if label not in labels]
    if lost:
        raise ValueError(f"cannot decode any training image of {name_some('class', lost)}")
    with replacing(folder / LABELS) as file:
        np.save(file, labels)
    return int(store.is_made.sum())


def _make_features(
    job: FeatureJob,
    work: Path,
    state: dict[str, Any],
    bad: BadImages,
    device: torch.device,
    progress: Progress,
) -> tuple[FeatureTable, dict[str, dict[str, float]]]:
    """Return the table, and accuracies of the backbone's own classifier on base rows."""
    labels = job.base_labels
    rows = np.flatnonzero(~job.is_fitted) if job.holdout else np.arange(len(labels))
    progress(f"computing features of {len(rows)} images")
    model = Backbone(job.config, len(job.base_classes), torch.Generator())
    model.load_state_dict(state["model"])
    model.to(device)

    def make(places: NDArray[np.int64], pixels: Pixels) -> dict[str, NDArray[Any]]:
        features, scores = model.describe(torch.from_numpy(pixels).to(device))
        truth = torch.from_numpy(labels[rows[places]]).to(device)
        right_score = scores.gather(1, truth.clamp(min=0).unsqueeze(1))
        ranks = torch.where(truth >= 0, (scores >= right_score).sum(dim=1) - 1, -1)
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
    accuracies = {}
    for name, is_in in (("base_train", is_train), ("base_test", ~is_train)):
        of_base = ranks[(ranks >= 0) & is_in]
        accuracies[name] = {f"top{k}": 100 * float((of_base < k).mean()) for k in (1, 5)}
    return table, accuracies

"""Feature folders: the table, and ``about.json`` with the job that made it."""

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpaan.core.files import write_whole
from cpaan.core.provenance import describe_run
from cpaan.data.cache import open_features
from cpaan.data.parquet import write_features
from cpaan.data.table import TEST, TRAIN, FeatureTable

FEATURES, ABOUT = "features.parquet", "about.json"


def read_made(
    folder: Path, job: Mapping[str, Any], left: Path, progress: Callable[[str], None]
) -> tuple[FeatureTable, dict[str, Any]] | None:
    """Return the features of a folder and their provenance; None if they do not exist yet.

    The settings of the job determine the features. An unfinished run leaves the file ``left``.
    Raise ValueError if the folder holds features of another job.
    """
    path = folder / ABOUT
    if path.exists():
        try:
            about: dict[str, Any] = json.loads(path.read_text())
            before = about["job"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not from this command; use another folder") from error
        check_same_job(before, job, folder)
        if (folder / FEATURES).exists():
            progress(f"{folder / FEATURES} already exists")
            return open_features(folder / FEATURES), about
    elif (folder / FEATURES).exists() and not left.exists():
        raise ValueError(f"{folder / FEATURES} exists and would be overwritten; use another folder")
    return None


def check_same_job(before: Mapping[str, Any], job: Mapping[str, Any], folder: Path) -> None:
    """Raise a ValueError if a folder holds the work of another job."""
    for name, value in json.loads(json.dumps(job)).items():  # tuples become lists
        if before.get(name) != value:
            was, wanted = map(reprlib.repr, (before.get(name), value))
            raise ValueError(
                f"{folder} has a run with {name} = {was}, not {wanted}; use another folder, or "
                "delete this one"
            )


def write_made(
    folder: Path,
    table: FeatureTable,
    job: Mapping[str, Any],
    base_classes: Sequence[str],
    **more: Any,
) -> dict[str, Any]:
    """Write features and then ``about.json``, and return its content.

    ``more`` is what there is to say of the training. Only ``about.json`` includes the log.
    """
    about = {
        "job": job,
        "backbone": table.backbone,
        "run": describe_run(),
        "centroid": centroid_accuracy(table, base_classes),
        "fingerprint": table.fingerprint,
        **more,
    }
    without_log = {name: value for name, value in about.items() if name != "log"}
    write_features(folder / FEATURES, table, without_log)
    write_whole(folder / ABOUT, json.dumps(about, indent=1))
    return about


def centroid_accuracy(table: FeatureTable, base_classes: Sequence[str]) -> dict[str, float]:
    """Return the top-1 accuracy of nearest train centroids on rows of base classes, in percent.

    "gap" is the difference between train and test rows. A large gap means that the representation
    overfits these train rows: base classes are then tighter than novel classes can be.
    """
    train_rows, test_rows = (
        [table.gather(table.rows_of(name, partition)).float() for name in base_classes]
        for partition in (TRAIN, TEST)
    )
    centroids = torch.stack([rows.mean(dim=0) for rows in train_rows])

    def accuracy(rows_of: Sequence[Tensor]) -> float:
        nearest = [torch.cdist(rows, centroids).argmin(dim=1) for rows in rows_of]
        is_right = torch.cat([classes == label for label, classes in enumerate(nearest)])
        return 100 * int(is_right.sum()) / len(is_right)

    train, test = accuracy(train_rows), accuracy(test_rows)
    return {"base_train": train, "base_test": test, "gap": train - test}

"""Small feature tables and their files."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np

from cpaan.data.parquet import write_features
from cpaan.data.table import FeatureTable
from helpers.gaussians import GaussianClasses

LABEL_NAMES = ["n03", "n01", "n02"]  # not sorted, as in the benchmark


def write_hdf5(
    path: Path, features: np.ndarray, labels: list[int], key: str = "all_feats", padding: int = 3
) -> Path:
    """Write a file in the benchmark's format: rows padded to full batches, and their count."""
    with h5py.File(path, "w") as file:
        junk = np.full((padding, features.shape[1]), np.nan, dtype=features.dtype)
        file[key] = np.concatenate([features, junk])
        file["all_labels"] = np.array(labels + [0] * padding, dtype=np.int32)
        file["count"] = np.array([len(features)], dtype=np.int32)
    return path


def hdf5_pair(folder: Path, key: str = "all_feats") -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    features = np.arange(12, dtype=np.float32).reshape(6, 2)
    return (
        write_hdf5(folder / "train.hdf5", features[:4], [0, 1, 1, 2], key),
        write_hdf5(folder / "val.hdf5", features[4:], [2, 0], key),
    )


def assert_same_table(ours: FeatureTable, theirs: FeatureTable) -> None:
    np.testing.assert_array_equal(ours.features, theirs.features)
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_array_equal(ours.is_train, theirs.is_train)
    assert ours.class_names == theirs.class_names
    assert ours.fingerprint == theirs.fingerprint


def random_table(num_rows: int = 40, num_dims: int = 6, dtype: str = "float32") -> FeatureTable:
    rng = np.random.default_rng(0)
    names = [f"class{number % 4}" for number in range(num_rows)]
    partitions = ["train" if number % 3 else "test" for number in range(num_rows)]
    features = rng.normal(size=(num_rows, num_dims)).astype(dtype)
    return FeatureTable.from_arrays(features, names, partitions)


def table_with_counts(counts: dict[str, int]) -> FeatureTable:
    """Return a table with these numbers of train rows and one test row for each class."""
    names = [name for name in counts for _ in range(counts[name])] + list(counts)
    partitions = ["train"] * sum(counts.values()) + ["test"] * len(counts)
    return FeatureTable.from_arrays(np.zeros((len(names), 1), np.float32), names, partitions)


def poisoned(gaussians: GaussianClasses, is_allowed: Callable[[str, bool], bool]) -> FeatureTable:
    """Replace every row that a run must not read by large numbers."""
    table = gaussians.table
    features = np.array(table.features)
    for row, (label, is_train) in enumerate(zip(table.labels, table.is_train, strict=True)):
        if not is_allowed(table.class_names[label], bool(is_train)):
            features[row] = 1e4 * (1 + row % 7)
    return table.with_changes(features=features)


def in_other_order(table: FeatureTable, backbone_classes: tuple[str, ...] = ()) -> FeatureTable:
    """Return the same rows with the classes in reverse order."""
    order = np.argsort(-table.labels, kind="stable")
    return table.with_changes(
        features=table.features[order],
        labels=table.labels[order],
        is_train=table.is_train[order],
        backbone_classes=frozenset(backbone_classes),
    )


def write_data(folder: Path, data: GaussianClasses) -> Path:
    """Write ``features.parquet`` and ``split.json``, and return the path of the features."""
    write_features(folder / "features.parquet", data.table)
    groups = {"validation": asdict(data.split.validation), "test": asdict(data.split.test)}
    (folder / "split.json").write_text(json.dumps(groups))
    return folder / "features.parquet"

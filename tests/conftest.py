"""Small data for all tests, and a folder of its own for each."""

import os
from pathlib import Path

# Tests are small: with several threads each would mostly wait for the others. Before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

from cpaan.features import FeatureTable
from cpaan.splits import ShotRows, Split, draw_shots
from cpaan.synthetic import GaussianClasses, gaussian_classes
from cpaan.tasks import BaseSet, LowShotTask, Problem


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep caches, results and the log of test-phase reads out of the project."""
    monkeypatch.setenv("CPAAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def gaussians() -> GaussianClasses:
    """12 base and 12 novel classes a phase, in 8 dimensions."""
    return gaussian_classes(num_families=6, num_train=25, num_test=10, num_dims=8)


def shots_of(table: FeatureTable, split: Split, num_draws: int = 2, max_shots: int = 5) -> ShotRows:
    return draw_shots(table, split.validation, num_draws=num_draws, max_shots=max_shots, seed=0)


def small_task(
    base: list[list[list[float]]], shots: list[list[list[float]]], num_base: int | None = None
) -> LowShotTask:
    """One problem with all given shots: base examples by class, shots by novel class."""
    classes = [torch.tensor(rows, dtype=torch.float32) for rows in base]
    counts = torch.tensor([len(rows) for rows in classes])
    return LowShotTask(
        base=BaseSet(torch.cat(classes), counts),
        num_base=len(base) if num_base is None else num_base,
        shots=torch.tensor([shots], dtype=torch.float32),
        problems=(Problem(num_shots=len(shots[0]), draw=0),),
    )


def random_table(num_rows: int = 40, num_dims: int = 6, dtype: str = "float32") -> FeatureTable:
    rng = np.random.default_rng(0)
    names = [f"class{number % 4}" for number in range(num_rows)]
    partitions = ["train" if number % 3 else "test" for number in range(num_rows)]
    features = rng.normal(size=(num_rows, num_dims)).astype(dtype)
    return FeatureTable.from_arrays(features, names, partitions)

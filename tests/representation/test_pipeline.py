"""Test the pipeline from images to features, with bad images and interrupted runs."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cpaan.data.cache import open_features
from cpaan.data.parquet import read_about
from cpaan.data.table import TEST, TRAIN, FeatureTable
from helpers.images import encoded
from helpers.pipeline import (
    CLASSES,
    NUM_TEST,
    NUM_TRAIN,
    SIZE,
    as_folders,
    as_parquet,
    job_of,
    pictures,
    run,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, FeatureTable, dict]:
    """Return the images, table and provenance of an uninterrupted run on Parquet files."""
    folder = tmp_path_factory.mktemp("made")
    images = as_parquet(folder / "images", pictures())
    return images, *run(job_of(images), folder / "out")


def test_train_rows_of_base_classes_are_the_last_images_and_were_not_fitted(made):
    images, table, _ = made
    job = job_of(images)

    fitted = job.is_fitted

    assert fitted.sum() == 3 * 7
    assert not fitted[~job.images.is_train].any()
    assert not fitted[np.isin(job.images.classes, ["n1", "n2"])].any()
    counts = {name: len(table.rows_of(name, TRAIN)) for name in CLASSES}
    assert counts == {"b1": 3, "b2": 3, "b3": 3, "n1": 10, "n2": 10}
    assert all(len(table.rows_of(name, TEST)) == 3 for name in CLASSES)


def test_only_fitted_images_decide_the_backbone(made, tmp_path):
    """Changes of images that are not fitted do not change the features of other images."""
    _, table, _ = made
    content = pictures()
    for key in content:
        name, partition, index = key
        if name == "n1" or partition == TEST or index >= 7:
            content[key] = encoded(np.full((SIZE, SIZE, 3), 7, np.uint8))
    content["n2", TRAIN, 0] = pictures()["n2", TRAIN, 0]

    other, _ = run(job_of(as_parquet(tmp_path / "images", content)), tmp_path / "out")

    first, first_of_other = (made.rows_of("n2", TRAIN)[0] for made in (table, other))
    np.testing.assert_array_equal(table.features[first], other.features[first_of_other])
    assert table.fingerprint != other.fingerprint


def test_where_features_come_from_travels_with_them(made):
    images, table, about = made

    stored = read_about(images.parent / "out" / "features.parquet")

    assert stored["classes"] == ["b1", "b2", "b3"]
    assert (stored["fitted_images"], stored["epochs"], stored["seed"]) == (21, 3, 0)
    assert {"command", "commit", "torch"} <= set(stored["run"])
    assert table.backbone_classes == {"b1", "b2", "b3"}
    assert "ResNet-10" in (table.backbone or "")
    assert [entry["epoch"] for entry in about["log"]] == [1, 2, 3]
    centroid = about["centroid"]
    assert centroid["gap"] == pytest.approx(centroid["base_train"] - centroid["base_test"])
    assert open_features(images.parent / "out").fingerprint == table.fingerprint


def test_the_work_of_another_run_is_not_touched(made):
    images, *_ = made
    out = images.parent / "out"
    before = (out / "about.json").read_bytes()

    with pytest.raises(ValueError, match=r"learning_rate = 0\.02, not 0\.5"):
        run(job_of(images, learning_rate=0.5), out)
    with pytest.raises(ValueError, match=r"holdout = 0\.3, not 0\.5"):
        run(job_of(images, holdout=0.5), out)
    assert (out / "about.json").read_bytes() == before


def test_a_corrupt_image_is_named_and_left_out(tmp_path):
    content = pictures()
    content["b1", TRAIN, 2] = content["b1", TRAIN, 2][:60]  # one of the fitted images
    content["n1", TEST, 1] = b"no image"
    job = job_of(as_folders(tmp_path / "images", content), holdout=0.0, num_epochs=1)

    table, about = run(job, tmp_path / "out", max_bad=0.05)

    assert set(about["bad_images"]) == {"train/b1/002.JPEG", "val/n1/001.JPEG"}
    assert about["fitted_images"] == 30 - 1  # no holdout: all train images of base classes
    assert [len(table.rows_of(name, TRAIN)) for name in ("b1", "b2")] == [NUM_TRAIN - 1, NUM_TRAIN]
    assert len(table.rows_of("n1", TEST)) == NUM_TEST - 1


@pytest.mark.parametrize("key", [("b1", TRAIN, 2), ("n1", TEST, 1)])
def test_more_corrupt_images_than_allowed_end_the_run_and_nothing_is_lost(tmp_path, key):
    content = pictures()
    content[key] = b"no image"
    images = as_parquet(tmp_path / "images", content)

    with pytest.raises(ValueError, match=r"1 of 65 images cannot be decoded, .* share 0\.01"):
        run(job_of(images, num_epochs=1), tmp_path / "out", max_bad=0.01)

    _, about = run(job_of(images, num_epochs=1), tmp_path / "out", max_bad=0.02)
    assert len(about["bad_images"]) == 1


@pytest.mark.parametrize("stage", ["decoding", "the backbone: step 3", "computing features"])
def test_a_killed_run_resumes_to_the_same_features(made, tmp_path, stage):
    """Kill the run with SIGKILL when it logs the line of a stage."""
    images, table, _ = made
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from cpaan.training import drive
drive._SECONDS_BETWEEN_CHECKPOINTS = drive._SECONDS_BETWEEN_MESSAGES = 0.0
drive._MOST_STEPS_AT_ONCE = 1
from helpers.pipeline import job_of, run
def said(line):
    if line.startswith({stage!r}):
        os.kill(os.getpid(), signal.SIGKILL)
run(job_of(Path({str(images)!r})), Path({str(tmp_path / "out")!r}), said=said)
"""

    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / "out" / "features.parquet").exists()
    said: list[str] = []
    resumed, about = run(job_of(images), tmp_path / "out", said=said.append)

    assert resumed.fingerprint == table.fingerprint
    assert [entry["epoch"] for entry in about["log"]] == [1, 2, 3]

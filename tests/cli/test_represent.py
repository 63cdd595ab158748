"""Test the ``represent`` command: its files, and one line per error."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from cpaan.cli import main
from cpaan.data.cache import open_features
from cpaan.data.parquet import read_about
from cpaan.data.table import TEST, TRAIN
from helpers.commands import refused
from helpers.pipeline import GROUPS, as_folders, as_parquet, pictures

pytestmark = pytest.mark.slow

QUICK = ["--epochs", "1", "--set", "batch_size=8", "--set", "learning_rate=0.02"]
QUICK_EMBEDDING = [
    *("--embed", "pn", "--embed-set", "num_episodes=3"),
    *("--embed-set", "episode_shots=1", "--embed-set", "num_queries=1"),
]


def write_images(folder: Path) -> Path:
    """Write images and their split into one folder."""
    as_parquet(folder, pictures())
    groups = {name: {"base": base, "novel": novel} for name, (base, novel) in GROUPS.items()}
    (folder / "split.json").write_text(json.dumps(groups))
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Return a folder with features and an embedding, computed once for all tests."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as output:
        patch.chdir(folder)
        images = write_images(folder / "images")
        assert run(images, *QUICK_EMBEDDING) == 0
    (folder / "output.txt").write_text(output.getvalue())
    return folder


@pytest.fixture
def done(finished, tmp_path) -> Path:
    """Copy the finished folder to the current one, and return its folder of images."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "images"


def run(images: Path, *options: str) -> int:
    return main(["represent", "--images", str(images), "--out", "out", *QUICK, *options])


def test_features_can_be_evaluated_at_once(images, capsys):
    content = pictures()
    content["n1", TRAIN, 0] = b"no image"
    as_parquet(images, content)

    assert run(images, "--max-bad", "0.1") == 0

    output, progress = capsys.readouterr()
    assert "1 not decoded: image images_0.parquet row 39 (not a JPEG or PNG image)" in output
    assert "fitted to 21 images of 3 base classes" in output
    assert "a gap of" in output
    assert "Next: python -m cpaan evaluate --features out" in output
    assert "the backbone: step 2 of 2, 0 s left; loss " in progress
    only = ["--methods", "none", "--heads", "centroid", "--shots", "1"]
    assert main(["evaluate", "--features", "out", *only, "--out", "scores"]) == 0
    assert len(pd.read_csv("scores/results.csv")) > 0


def test_the_benchmarks_recipe(tmp_path, images):
    folders = as_folders(tmp_path / "folders", pictures())
    options = ["--split", str(images / "split.json"), "--as-in-benchmark", "--size", "16"]

    assert run(folders, *options) == 0

    job = read_about("out/features.parquet")["job"]
    assert (job["schedule"], job["weight_decay"], job["image_size"]) == ("steps", 1e-4, 16)


def test_an_embedded_table_is_written_beside(done):
    raw, embedded = map(open_features, ("out", "out/pn"))
    assert embedded.class_names == raw.class_names
    assert len(embedded.labels) == len(raw.labels)
    assert embedded.fingerprint != raw.fingerprint
    assert "prototypical" in embedded.backbone
    assert Path("output.txt").read_text().count("a gap of") == 2
    assert Path("out/pn/split.json").exists()
    job = read_about("out/features.parquet")["job"]
    assert (job["image_size"], job["batch_size"]) == (8, 8)  # the size of the images


def test_existing_features_can_be_embedded(done):
    status = main(["represent", "--features", "out", "--out", "other", *QUICK_EMBEDDING])

    assert status == 0
    assert open_features("other/pn").fingerprint == open_features("out/pn").fingerprint
    about = read_about("other/pn/features.parquet")
    assert about["made_from"]["made_from"]["fitted_images"] == 21


def test_the_same_command_again_makes_only_what_is_missing(done, capsys):
    first = open_features("out").fingerprint

    assert run(done, *QUICK_EMBEDDING) == 0
    progress = capsys.readouterr().err
    assert progress.count("already exists") == 2
    assert "step" not in progress
    Path("out/features.parquet").unlink()
    assert run(done) == 0
    assert open_features("out").fingerprint == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--holdout", "0.99"], "keeps 10; at least one must be held out"),
        (["--holdout", "1"], "holdout must be at least 0 and below 1, got 1.0"),
        (["--embed", "pn", "--embed-set", "loss=ce"], "unknown setting 'loss'"),
        (["--embed", "pn"], "class b1, the smallest of 3, has 3 train rows"),
        (["--max-bad", "2"], "share of bad images must be from 0 to 1, got 2.0"),
        (["--seed", "-1"], "seed must not be negative, got -1"),
        (["--split", "missing.json"], "no such file: missing.json"),
        (["--val-labels", "val.txt"], "val.txt is for a flat val folder"),
        (["--workers", "99"], "--workers 99: this machine has"),
        (["--images", "nowhere"], "no such file: nowhere"),
        (["--set", "learning_rate=1e30", "--set", "warmup=0"], "learning_rate is 1e+30"),
    ],
)
def test_a_mistake_is_one_line(images, options, message, capsys):
    line = refused(capsys, lambda given: run(images, *given), *options)

    assert line.startswith("python -m cpaan represent: error: ")
    assert message in line
    assert not Path("out/features.parquet").exists()


def test_a_corrected_command_is_not_another_job(images, capsys):
    """The error also names a class that cannot be fitted."""
    unreadable = {
        key: b"no image" if key[0] == "b3" and key[1] != TEST else data
        for key, data in pictures().items()
    }
    for mistake in (["--holdout", "0.01"], ["--max-bad", "2"]):
        assert run(images, *mistake) == 2

    assert main(["represent", "--images", str(images), "--out", "out", "--epochs", "2"]) == 0

    as_parquet(images, unreadable)
    assert run(images, "--max-bad", "0.5", "--out", "other") == 2
    assert "cannot decode any training image of class b3" in capsys.readouterr().err


def test_options_that_would_do_nothing_are_refused(capsys):
    for options, message in (
        (["--embed", "pn", "--epochs", "3"], "--epochs is for --images, not for --features"),
        (["--embed", "pn", "--as-in-benchmark"], "--as-in-benchmark is for --images"),
        (["--embed-set", "num_queries=2"], "--embed-set needs --embed"),
        ([], "--features needs --embed"),
    ):
        data = ("represent", "--features", "out", "--out", "other")
        assert message in refused(capsys, main, *data, *options)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("features.parquet", "precious", "out/features.parquet exists and would be overwritten"),
        ("about.json", "hello", "out/about.json is not from this command"),
        ("about.json", "[1]", "out/about.json is not from this command"),
    ],
)
def test_files_of_others_are_not_replaced(images, file, content, message, capsys):
    Path("out").mkdir()
    Path("out", file).write_text(content)

    assert run(images) == 2

    assert message in capsys.readouterr().err
    assert Path("out", file).read_text() == content

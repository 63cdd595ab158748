"""Test that the built-in data set is complete and small, and records its source."""

import numpy as np
import pandas as pd
import pytest

from cpaan.cli import main
from cpaan.data.builtin import FOLDER, builtin_features
from cpaan.data.parquet import read_about
from cpaan.data.table import TEST, TRAIN

pytestmark = pytest.mark.usefixtures("builtin_cache")


def test_it_has_all_classes_and_all_rows():
    table, split = builtin_features()

    for phase, num_base, num_novel in ((split.validation, 40, 56), (split.test, 36, 68)):
        assert (len(phase.base), len(phase.novel)) == (num_base, num_novel)
        assert {len(table.rows_of(name, TRAIN)) for name in phase.base} == {150}
        assert {len(table.rows_of(name, TRAIN)) for name in phase.novel} == {100}
        assert {len(table.rows_of(name, TEST)) for name in phase.base + phase.novel} == {50}
    assert table.features.shape == (33_800, 512)
    assert table.features.min() == 0
    assert table.backbone_classes == {*split.validation.base, *split.test.base}


def test_pandas_opens_it_and_it_is_small():
    frame = pd.read_parquet(FOLDER / "features.parquet")
    table, _ = builtin_features()

    features = np.stack(frame["feature"])
    np.testing.assert_array_equal(features, table.features)
    assert len(np.unique(features)) == 204  # multiples of 0.05
    assert frame["class"].tolist() == [table.class_names[label] for label in table.labels]
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 12_000_000


def test_it_says_where_it_comes_from():
    about = read_about(FOLDER / "features.parquet")

    assert about is not None
    assert about["run"]["command"].startswith("python -m cpaan represent --images")
    assert len(about["run"]["commit"]) == 40
    assert about["seed"] == 0
    assert about["fitted_images"] == 76 * 350
    card = (FOLDER / "README.md").read_text()
    assert about["run"]["command"] in card
    assert about["run"]["commit"][:7] in card
    assert f"{about['classifier']['base_test']['top1']:.1f}" in card


def test_it_is_what_is_evaluated_when_nothing_is_named(capsys):
    options = ["--methods", "none", "--heads", "centroid", "--shots", "1,20", "--draws", "1"]

    assert main(["evaluate", *options, "--out", "out"]) == 0

    assert "40 base and 56 novel classes, 4800 queries" in capsys.readouterr().out
    scores = pd.read_csv("out/results.csv").set_index(["column", "shots"])["top5"]
    chance = 100 * 5 / 56
    assert scores["novel", 1] > 3 * chance
    assert scores["novel", 20] > scores["novel", 1]
    assert np.isfinite(scores).all()

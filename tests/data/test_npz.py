"""Test features in ``.npz`` files, and the command that a refused pickle is converted with."""

import pickle
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cpaan.data.cache import open_features
from cpaan.data.table import FeatureTable
from helpers.tables import assert_same_table

CAT = np.arange(22, dtype=np.float32).reshape(11, 2)
ANT = -CAT[:5]
NAMES = ["ant"] * 5 + ["cat"] * 11
PARTITIONS = (["train"] * 4 + ["test"]) * 3 + ["train"]  # rows 5 of ant, 5 and 10 of cat


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_each_class_is_an_array_and_every_fifth_row_is_a_test_row(tmp_path):
    expected = FeatureTable.from_arrays(np.concatenate([ANT, CAT]), NAMES, PARTITIONS)
    (tmp_path / "two").mkdir()
    parts = [save(tmp_path / "two/train.npz", cat=CAT), save(tmp_path / "two/test.npz", ant=ANT)]
    together = save(tmp_path / "all.npz", cat=CAT.astype(np.float64), ant=ANT)

    for files in ([together], parts, parts[::-1], [tmp_path / "two"]):
        assert_same_table(open_features(*files), expected)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"cat": np.array([{}, {}])}, "a.npz: refused: the array of class cat has objects"),
        ({"cat": np.ones(3)}, r"class cat needs an array of shape \(rows, D\), got shape \(3,\)"),
        ({"cat": np.ones((3, 2), int)}, "class cat: features must be .* floating-point numbers"),
        ({"cat": np.array([[1.0], [np.nan]])}, "class cat: NaN or infinity in .* row 1"),
        ({"cat": CAT, "dog": np.ones((5, 3), "f4")}, "row 11 has 3 dimensions .* have 2"),
        ({"cat": CAT, "ant": ANT}, "b.npz: class ant is in these files twice"),
        ({}, "the table has no rows"),
    ],
)
def test_unsound_arrays_are_refused(tmp_path, arrays, message):
    other = [save(tmp_path / "b.npz", ant=ANT)] if "ant" in arrays else []

    with pytest.raises(ValueError, match=message):
        open_features(save(tmp_path / "a.npz", **arrays), *other)


def test_damaged_archives_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    for write, start in ((np.savez, 200), (np.savez_compressed, 60)):
        write(path, cat=CAT)
        whole = path.read_bytes()
        changed = whole[:start] + bytes(10) + whole[start + 10 :]
        for content in (whole[:-50], changed):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"a\.npz.* may be truncated or damaged"):
                open_features(path)


@pytest.mark.parametrize("name", ["mine.pkl", "mine.plk", "mine.pt", "old.pkl"])
def test_pickles_are_refused_with_a_command_that_converts_them(tmp_path, name):
    if name == "mine.pt":
        torch.save({7: torch.from_numpy(CAT), "ant": torch.from_numpy(ANT)}, tmp_path / name)
    else:  # numbers as names and lists of rows, as other projects write them
        content = pickle.dumps({7: list(CAT), "ant": ANT}, protocol=0 if name == "old.pkl" else 4)
        (tmp_path / name).write_bytes(content)

    with pytest.raises(ValueError, match=f"{name}: refused: a pickle can run code") as told:
        open_features(tmp_path / name)

    command = str(told.value).partition("convert it: python ")[2]
    subprocess.run([sys.executable, *shlex.split(command)], cwd=tmp_path, check=True)
    table = open_features((tmp_path / name).with_suffix(".npz"))
    assert table.class_names == ("7", "ant")
    np.testing.assert_array_equal(table.features, np.concatenate([CAT, ANT]))

"""Test that splits and draws are read from every format, and unsound files refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from cpaan.data.split_files import copy_split, find_split, read_draws, read_split
from cpaan.data.splits import Phase, Split
from cpaan.data.table import FeatureTable
from helpers.tables import table_with_counts

VALIDATION = Phase(base=("a", "b"), novel=("c", "d"))
TEST = Phase(base=("e",), novel=("f",))
SPLIT = Split(validation=VALIDATION, test=TEST)
BENCHMARK = Split(validation=VALIDATION, test=TEST, label_names=tuple("dfacbe"))
IN_PROJECT = {
    "classes": {"a": "some words"},
    "validation": {"base": ["a", "b"], "novel": ["c", "d"]},
    "test": {"base": ["e"], "novel": ["f"]},
}
IN_BENCHMARK = {  # group 1 is validation, and group 2 is test
    "label_names": list("dfacbe"),
    "base_classes": [2, 4, 5],
    "base_classes_1": [2, 4],
    "novel_classes_1": [3, 0],
    "base_classes_2": [5],
    "novel_classes_2": [1],
}


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content", "split"),
    [("split.json", IN_PROJECT, SPLIT), ("label_idx.json", IN_BENCHMARK, BENCHMARK)],
)
def test_the_formats_of_the_project_and_of_the_benchmark_are_read(tmp_path, name, content, split):
    assert read_split(write_json(tmp_path / name, content)) == split


def write_lists(folder: Path, lists: dict[str, str]) -> Path:
    for name, content in lists.items():
        (folder / name).write_text(content)
    return folder


def test_the_lists_of_mini_imagenet_name_a_class_for_each_image(tmp_path):
    names = [f"n{number:08d}" for number in range(100, 0, -1)]  # not sorted
    groups = {"train.csv": names[:64], "val.csv": names[64:80], "test.csv": names[80:]}
    for file, classes in groups.items():
        images = [f"{name}{image:08d}.jpg,{name}" for image in range(3) for name in classes]
        write_lists(tmp_path, {file: "\n".join(["filename,label", *images])})

    split = read_split(tmp_path)

    assert split == Split.from_classes(*groups.values())
    assert [len(phase.novel) for phase in split.phases.values()] == [16, 20]
    assert find_split(str(tmp_path)) == find_split(str(tmp_path / "test.csv")) == str(tmp_path)


@pytest.mark.parametrize(
    "lists",
    [
        {"train.csv": "a\nb\n", "val.csv": "label\n\nc\n", "test.csv": '"d"\r\n e \r\n'},
        {"base.csv": "\ufeffClass\na\nb", "validation.csv": "c", "novel.csv": "class\nd\ne"},
        # tieredImageNet has no header, and superclasses in a second column
        {"train.csv": "a,animal\nb,animal", "val.csv": "c,tool", "test.csv": "d,food\ne,food"},
        # CUB has rows that are longer than the header
        {"train.csv": "filename, label, x\n1,a,0,0\n2,b,0", "val.txt": "c", "test.txt": "d\ne\n"},
    ],
)
def test_lists_of_classes_come_in_several_forms(tmp_path, lists):
    expected = Split.from_classes(base=["a", "b"], validation=["c"], test=["d", "e"])

    assert read_split(write_lists(tmp_path, lists)) == expected


def test_without_a_list_for_validation_there_is_only_the_test_phase(tmp_path):
    write_lists(tmp_path, {"train.csv": "a", "test.txt": "red, or blue"})

    copy_split(str(tmp_path), tmp_path / "copy")

    expected = Split.from_classes(base=["a"], test=["red, or blue"])  # text has no columns
    assert read_split(tmp_path) == read_split(tmp_path / "copy" / "split.json") == expected


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"test.csv": "a"}, "no split.json or label_idx.json in .*, and no lists of classes"),
        ({"train.csv": "a", "val.csv": "b"}, r": it needs one list of test classes, found \[\]"),
        ({"train.csv": "a", "base.csv": "b"}, r"base classes, found \['train.csv', 'base.csv'\]"),
        ({"train.csv": "a", "test.csv": "label\n"}, "test.csv has no class name in row 1"),
        ({"train.csv": "x,label\n1,a\n2\n"}, "train.csv has no class name in row 2"),
        ({"train.csv": "a\nb", "test.csv": "b"}, "class b is in the base classes of test and in"),
        ({"train.csv": "a" * 200_000, "test.csv": "b"}, "field larger than field limit"),
    ],
)
def test_unsound_lists_are_refused_with_their_folder(tmp_path, lists, message):
    with pytest.raises(ValueError, match=message) as told:
        read_split(write_lists(tmp_path, lists))
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a split"),
        ('{"validation": {"base": ["a"]}}', "a group of classes is missing"),
        ('{"validation": {"base": "a", "novel": ["c"]}}', "must be a list of strings"),
        (json.dumps({"base_classes_1": [0]}), "a group of classes is missing"),
        ('{"label_names": ["a"], "base_classes_1": [5]}', "must contain labels from 0 to 0"),
        ('{"label_names": ["a", "a"], "base_classes_1": [0]}', "label_names has duplicate names"),
        ('{"validation": {"base": [], "novel": ["c"]}}', "validation phase has no base classes"),
    ],
)
def test_a_file_that_is_no_split_is_refused(tmp_path, content, message):
    (tmp_path / "split.json").write_text(content)

    with pytest.raises(ValueError, match=message):
        read_split(tmp_path / "split.json")


def test_explicit_draws_are_taken_as_they_are(tmp_path):
    table = table_with_counts({"c": 3, "d": 3})
    draws = [{"c": [2, 0], "d": [3, 5]}, {"c": [1, 2], "d": [4, 3]}]
    path = write_json(tmp_path / "draws.json", {"phase": "validation", "draws": draws})

    shots = read_draws([path], table, SPLIT, "validation", max_shots=2)

    assert shots.tolist() == [[[2, 0], [3, 5]], [[1, 2], [4, 3]]]


def test_index_files_have_row_numbers_of_the_train_features_in_any_order(tmp_path):
    # Rows are not sorted by class, and test rows are among them.
    names = list("dbfacefdcaeb")
    partitions = ["train"] * 4 + ["test"] + ["train"] * 7
    table = FeatureTable.from_arrays(np.zeros((12, 1), np.float32), names, partitions)
    # One row per label name: d, f, a, c, b, e. Train rows after row 4 count one less.
    index = write_json(tmp_path / "1.json", [[0, 6], [2, 5], [3, 8], [7, 7], [1, 10], [4, 9]])

    shots = read_draws([index], table, BENCHMARK, "validation", max_shots=1)

    assert shots.tolist() == [[[8], [0]]]  # of the novel classes c and d
    with pytest.raises(ValueError, match=r"index file for 6 classes, .* has 0 label names"):
        read_draws([index], table, SPLIT, "validation", max_shots=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"phase": "test", "draws": [{}]}, "draws of the test phase, not of validation"),
        ({"draws": []}, "has no draws"),
        ({"draws": [{"c": [4, 5]}]}, "draw 0: class d needs 2 row numbers, got none"),
        ({"draws": [{"c": [4], "d": [6, 7]}]}, "class c needs 2 row numbers, got"),
        ({"draws": [{"c": ["4", "5"], "d": [6, 7]}]}, "class c needs 2 row numbers"),
        ({"draws": [{"c": [[4], [5, 4]], "d": [6, 7]}]}, "class c needs 2 row numbers"),
        ({"draws": [{"c": [4, 6], "d": [6, 7]}]}, "distinct train rows of this class: row 6"),
        ({"draws": [{"c": [4, 4], "d": [6, 7]}]}, "a row is repeated"),
        ([[0, 1], [2]], "index file for 2 classes, .* has 6 label names"),
        ([[0, 2], [1, 3], [4, 5], [6, 7], [8, 9], [10, 11]], "distinct train rows of this class"),
        ([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 12]], "from 0 to 12, .* 12 train rows"),
    ],
)
def test_unsound_draws_and_index_files_are_refused(tmp_path, content, message):
    path = write_json(tmp_path / "draws.json", content)

    with pytest.raises(ValueError, match=message):
        read_draws(
            [path], table_with_counts(dict.fromkeys("abcdef", 2)), BENCHMARK, "validation", 2
        )

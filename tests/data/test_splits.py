import json
from pathlib import Path

import numpy as np
import pytest

from cpaan.data.splits import Phase, Split, draw_shots, read_draws, read_split
from cpaan.data.table import FeatureTable
from helpers.tasks import shots_of

VALIDATION = Phase(base=("a", "b"), novel=("c", "d"))
TEST = Phase(base=("e",), novel=("f",))


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def label_index(sizes: dict[str, int]) -> dict[str, list]:
    """A file of the benchmark's form: groups of labels, scattered over the numbers."""
    total = sum(sizes.values())
    labels = np.random.default_rng(0).permutation(total).tolist()
    content: dict[str, list] = {"label_names": [f"n{(7 * i) % total:08d}" for i in range(total)]}
    for name, size in sizes.items():
        content[name], labels = labels[:size], labels[size:]
    content["base_classes"] = content["base_classes_1"] + content["base_classes_2"]
    return content


def table_of(counts: dict[str, int], classes_in_order: list[str] | None = None) -> FeatureTable:
    """Train rows by class, and one test row of each."""
    names = [name for name in classes_in_order or counts for _ in range(counts[name])]
    names += list(counts)
    partitions = ["train"] * sum(counts.values()) + ["test"] * len(counts)
    return FeatureTable.from_arrays(np.zeros((len(names), 1), np.float32), names, partitions)


def test_the_project_form_is_read(tmp_path):
    content = {
        "classes": {"a": "some words"},
        "validation": {"base": ["a", "b"], "novel": ["c", "d"]},
        "test": {"base": ["e"], "novel": ["f"]},
    }

    split = read_split(write_json(tmp_path / "split.json", content))

    assert split == Split(validation=VALIDATION, test=TEST)


def test_group_1_of_the_benchmark_is_validation_and_group_2_is_test(tmp_path):
    sizes = {"base_classes_1": 193, "base_classes_2": 196}
    sizes |= {"novel_classes_1": 300, "novel_classes_2": 311}
    content = label_index(sizes)

    split = read_split(write_json(tmp_path / "label_idx.json", content))

    assert [len(split.validation.base), len(split.validation.novel)] == [193, 300]
    assert [len(split.test.base), len(split.test.novel)] == [196, 311]
    assert split.test.novel[0] == content["label_names"][content["novel_classes_2"][0]]
    groups = split.validation.base + split.validation.novel + split.test.base + split.test.novel
    assert len(set(groups)) == 1000


def test_the_phases_own_base_classes_come_first():
    split = Split(validation=VALIDATION, test=TEST)

    assert split.base_classes("validation") == ("a", "b", "e")
    assert split.base_classes("test") == ("e", "a", "b")


@pytest.mark.parametrize(
    ("validation", "test", "message"),
    [
        (Phase((), ("c",)), TEST, "no base classes of validation"),
        (VALIDATION, Phase(("e",), ()), "no novel classes of test"),
        (Phase(("a",), ("a",)), TEST, "class a is in the base .* and in the novel classes"),
        (VALIDATION, Phase(("e",), ("c",)), "class c is in the novel classes of validation and in"),
        (Phase(("a", "a"), ("c",)), TEST, "class a is twice in the base classes of validation"),
    ],
)
def test_unsound_groups_are_refused(validation, test, message):
    with pytest.raises(ValueError, match=message):
        Split(validation=validation, test=test)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is no split"),
        ('{"validation": {"base": ["a"]}}', "lacks a group of classes"),
        ('{"validation": {"base": "a", "novel": ["c"]}}', "must be a list of strings"),
        (json.dumps({"base_classes_1": [0]}), "lacks a group of classes"),
        (
            json.dumps({"label_names": ["a"], "base_classes_1": [5], "novel_classes_1": [0]}),
            "base_classes_1 must hold labels from 0 to 0",
        ),
    ],
)
def test_a_file_that_is_no_split_is_refused(tmp_path, content, message):
    (tmp_path / "split.json").write_text(content)

    with pytest.raises(ValueError, match=message):
        read_split(tmp_path / "split.json")


def test_label_names_must_differ(tmp_path):
    content = {"label_names": ["a", "b", "c", "d", "a"]}
    content |= {"base_classes_1": [0], "base_classes_2": [1]}
    content |= {"novel_classes_1": [2], "novel_classes_2": [3]}

    with pytest.raises(ValueError, match="label_names has a name twice"):
        read_split(write_json(tmp_path / "label_idx.json", content))


def test_shots_are_distinct_train_rows_of_their_class(gaussians):
    shots = shots_of(gaussians.table, gaussians.split, max_shots=20)

    for position, name in enumerate(gaussians.split.validation.novel):
        allowed = set(gaussians.table.rows_of(name, "train").tolist())
        for rows in shots[:, position].tolist():
            assert len(set(rows)) == 20
            assert set(rows) <= allowed


def test_fewer_shots_are_the_first_of_more(gaussians):
    many = shots_of(gaussians.table, gaussians.split, max_shots=20)

    np.testing.assert_array_equal(
        shots_of(gaussians.table, gaussians.split, max_shots=5), many[..., :5]
    )


def test_more_draws_leave_the_first_ones_as_they_are(gaussians):
    many = shots_of(gaussians.table, gaussians.split, num_draws=7)

    np.testing.assert_array_equal(shots_of(gaussians.table, gaussians.split, num_draws=2), many[:2])
    assert len({draw.tobytes() for draw in many}) == 7


def test_a_class_has_the_same_shots_in_any_company(gaussians):
    novel = gaussians.split.validation.novel
    alone = draw_shots(gaussians.table, Phase(("x",), novel[3:4]), num_draws=2, max_shots=5, seed=0)

    np.testing.assert_array_equal(alone[:, 0], shots_of(gaussians.table, gaussians.split)[:, 3])


def test_draws_stay_what_they_were_from_version_to_version():
    shots = draw_shots(table_of({"c": 30, "d": 30}), VALIDATION, num_draws=2, max_shots=4, seed=0)

    assert shots.tolist() == [
        [[27, 21, 28, 14], [39, 34, 44, 54]],
        [[26, 12, 16, 10], [47, 48, 46, 59]],
    ]


def test_a_class_with_too_few_rows_is_named():
    with pytest.raises(ValueError, match="class d has 4 train rows, but 5 shots are wanted"):
        draw_shots(table_of({"c": 9, "d": 4}), VALIDATION, num_draws=1, max_shots=5, seed=0)


def test_explicit_draws_are_taken_as_they_are(tmp_path):
    table = table_of({"c": 3, "d": 3})
    split = Split(validation=VALIDATION, test=TEST)
    draws = [{"c": [2, 0], "d": [3, 5]}, {"c": [1, 2], "d": [4, 3]}]
    path = write_json(tmp_path / "draws.json", {"phase": "validation", "draws": draws})

    shots = read_draws([path], table, split, "validation", max_shots=2)

    assert shots.tolist() == [[[2, 0], [3, 5]], [[1, 2], [4, 3]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"phase": "test", "draws": [{}]}, "draws of the test phase, not of validation"),
        ({"draws": []}, "holds no draws"),
        ({"draws": [5]}, "holds no draws"),
        ({"draws": [{"c": [[0], [1, 2]], "d": [4, 5]}]}, "class c needs 2 row numbers"),
        ([[0, 1], [2]], "index file of 2 classes"),
        ({"draws": [{"c": [0, 1]}]}, "draw 0: no shots for class d"),
        ({"draws": [{"c": [0], "d": [3, 4]}]}, "class c needs 2 row numbers, got"),
        ({"draws": [{"c": [0, 3], "d": [4, 5]}]}, "distinct train rows of it, .* row 3"),
        ({"draws": [{"c": [0, 6], "d": [4, 5]}]}, "distinct train rows of it, .* row 6"),
        ({"draws": [{"c": [0, 0], "d": [4, 5]}]}, "a row named twice"),
        ({"draws": [{"c": ["0", "1"], "d": [4, 5]}]}, "class c needs 2 row numbers"),
    ],
)
def test_unsound_draws_are_refused(tmp_path, content, message):
    split = Split(validation=VALIDATION, test=TEST)
    path = write_json(tmp_path / "draws.json", content)

    with pytest.raises(ValueError, match=message):
        read_draws([path], table_of({"c": 3, "d": 3}), split, "validation", max_shots=2)


def benchmark_split() -> Split:
    return Split(validation=VALIDATION, test=TEST, label_names=("d", "f", "a", "c", "b", "e"))


def test_index_files_count_train_images_in_the_order_of_the_label_names(tmp_path):
    # Two train rows a class; the table has the classes in another order than the label names.
    table = table_of(dict.fromkeys("abcdef", 2))
    first = write_json(tmp_path / "1.json", [[1, 0], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]])
    second = write_json(tmp_path / "2.json", [[0, 1], [2, 3], [4, 5], [7, 6], [8, 9], [10, 11]])

    shots = read_draws([first, second], table, benchmark_split(), "validation", max_shots=2)

    # In the table c has rows 4 and 5, d has rows 6 and 7.
    assert shots.tolist() == [[[4, 5], [7, 6]], [[5, 4], [6, 7]]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([[0, 1]], "index file of 1 classes; .* which has 6"),
        ([[0, 2], [1, 3], [4, 5], [6, 7], [8, 9], [10, 11]], "distinct train rows of it"),
        (
            [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 12]],
            "positions from 0 to 12, .* 12 train rows",
        ),
    ],
)
def test_index_files_that_do_not_fit_the_table_are_refused(tmp_path, content, message):
    path = write_json(tmp_path / "1.json", content)

    with pytest.raises(ValueError, match=message):
        read_draws([path], table_of(dict.fromkeys("abcdef", 2)), benchmark_split(), "validation", 2)

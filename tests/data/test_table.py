import numpy as np
import pytest

from cpaan.data.table import FeatureTable, align_rows, name_some

FEATURES = np.arange(8, dtype=np.float32).reshape(4, 2)
CLASSES = ["cat", "ant", "cat", "cat"]
PARTITIONS = ["train", "test", "test", "train"]


def test_rows_are_found_by_class_and_partition():
    table = FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS)

    assert table.rows_of("cat", "train").tolist() == [0, 3]
    assert table.rows_of("cat", "test").tolist() == [2]
    assert table.rows_of("ant", "train").tolist() == []


def test_gather_returns_rows_in_the_order_asked():
    table = FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS)

    assert table.gather(np.array([[3], [0]])).tolist() == [[[6.0, 7.0]], [[0.0, 1.0]]]


@pytest.mark.parametrize(
    "change",
    [
        lambda f, c, p: (f + 1, c, p),
        lambda f, c, p: (f, ["cat", "ant", "cat", "ant"], p),
        lambda f, c, p: (f, c, ["train"] * 4),
        lambda f, c, p: (f, [name.upper() for name in c], p),
    ],
)
def test_the_fingerprint_changes_with_every_part_of_the_table(change):
    original = FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS)

    changed = FeatureTable.from_arrays(*change(FEATURES, CLASSES, PARTITIONS))

    assert FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS).fingerprint == (
        original.fingerprint
    )
    assert changed.fingerprint != original.fingerprint


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_non_finite_values_are_named(bad):
    features = FEATURES.copy()
    features[[1, 3], 0] = bad

    with pytest.raises(ValueError, match="NaN or infinity in the features of rows 1, 3"):
        FeatureTable.from_arrays(features, CLASSES, PARTITIONS)


def test_what_float32_cannot_hold_is_infinite():
    with pytest.raises(ValueError, match="infinity in the features of row 2"):
        FeatureTable.from_arrays(np.array([[1.0], [2.0], [1e300], [4.0]]), CLASSES, PARTITIONS)


def test_an_odd_partition_is_named():
    with pytest.raises(ValueError, match=r"partition of row 2 is 'val', .* 'train' or 'test'"):
        FeatureTable.from_arrays(FEATURES, CLASSES, ["train", "test", "val", "train"])


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="4 features, 3 classes and 4 partitions"):
        FeatureTable.from_arrays(FEATURES, CLASSES[:3], PARTITIONS)


@pytest.mark.parametrize("features", [np.arange(4.0), np.arange(8).reshape(4, 2), np.ones((4, 0))])
def test_only_matrices_of_floating_point_numbers_are_features(features):
    with pytest.raises(ValueError, match="must be a matrix of floating-point numbers"):
        FeatureTable.from_arrays(features, CLASSES, PARTITIONS)


def test_an_unknown_class_is_refused():
    table = FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS)

    with pytest.raises(ValueError, match="no class dog"):
        table.rows_of("dog", "train")


def test_long_lists_are_cut_in_messages():
    assert name_some("row", [3]) == "row 3"
    assert name_some("class", list("abcdefg")) == "classes a, b, c, d, e and 2 more"


def test_the_nth_row_of_a_class_and_partition_is_taken_for_the_nth_of_the_other_table():
    to = FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS)
    others = np.array([[50.0], [30.0], [10.0], [20.0]], np.float32)
    table = FeatureTable.from_arrays(
        others,
        ["ant", "cat", "cat", "cat"],
        ["test", "test", "train", "train"],
        backbone="cosine",
    )

    aligned = align_rows(table, to)

    # Train rows of cat are 10 and 20, its test row is 30; in the other order, ant stands second.
    assert aligned.features.tolist() == [[10.0], [50.0], [30.0], [20.0]]
    assert aligned.backbone == "cosine"
    twin = FeatureTable.from_arrays(aligned.features, CLASSES, PARTITIONS)
    assert aligned.fingerprint == twin.fingerprint
    assert aligned.rows_of("cat", "train").tolist() == [0, 3]
    assert align_rows(aligned, to) is aligned


@pytest.mark.parametrize(
    ("classes", "partitions", "message"),
    [
        (["cat", "ant", "cat", "ant"], PARTITIONS, "class ant has 1 train rows and not 0"),
        (CLASSES, ["train", "test", "train", "train"], "class cat has 3 train rows and not 2"),
        (["cat", "bee", "cat", "cat"], PARTITIONS, "class ant has 0 test rows and not 1"),
    ],
)
def test_tables_with_other_counts_are_not_of_the_same_rows(classes, partitions, message):
    to = FeatureTable.from_arrays(FEATURES, CLASSES, PARTITIONS)

    with pytest.raises(ValueError, match=f"^{message}$"):
        align_rows(FeatureTable.from_arrays(FEATURES, classes, partitions), to)

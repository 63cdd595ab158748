import numpy as np
import pytest

from cpaan.data.table import FeatureTable, align_rows

FEATURES = np.arange(8, dtype=np.float32).reshape(4, 2)
CLASSES = ["cat", "ant", "cat", "cat"]
PARTITIONS = ["train", "test", "test", "train"]


def table_of(features=FEATURES, classes=CLASSES, partitions=PARTITIONS) -> FeatureTable:
    return FeatureTable.from_arrays(features, classes, partitions)


def test_rows_are_found_by_class_and_partition_and_come_in_the_order_asked():
    table = table_of()

    assert table.rows_of("cat", "train").tolist() == [0, 3]
    assert table.rows_of("cat", "test").tolist() == [2]
    assert table.rows_of("ant", "train").tolist() == []
    assert table.gather(np.array([[3], [0]])).tolist() == [[[6.0, 7.0]], [[0.0, 1.0]]]
    with pytest.raises(ValueError, match="no class dog"):
        table.rows_of("dog", "train")


@pytest.mark.parametrize(
    "change",
    [
        {"features": FEATURES + 1},
        {"classes": ["cat", "ant", "cat", "ant"]},
        {"partitions": ["train"] * 4},
        {"classes": [name.upper() for name in CLASSES]},
    ],
)
def test_the_fingerprint_changes_with_every_part_of_the_table(change):
    assert table_of().fingerprint == table_of().fingerprint != table_of(**change).fingerprint


def features_with(value: float) -> np.ndarray:
    return np.array([[1.0], [value], [3.0], [value]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": features_with(np.nan)}, "NaN or infinity in the features of rows 1, 3"),
        ({"features": features_with(-np.inf)}, "NaN or infinity in the features of rows 1, 3"),
        ({"features": features_with(1e300)}, "infinity in the features"),  # infinite in float32
        ({"partitions": ["train", "test", "val", "train"]}, "row 2 is 'val', .* 'train' or 'test'"),
        ({"classes": CLASSES[:3]}, "4 features, 3 classes and 4 partitions"),
        ({"features": np.arange(4.0)}, "must be a matrix of floating-point numbers"),
        ({"features": np.arange(8).reshape(4, 2)}, "must be a matrix of floating-point numbers"),
        ({"features": np.ones((4, 0))}, "must be a matrix of floating-point numbers"),
    ],
)
def test_unsound_arrays_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        table_of(**change)


def test_the_nth_row_of_a_class_and_partition_is_taken_for_the_nth_of_the_other_table():
    others = np.array([[50.0], [30.0], [10.0], [20.0]], np.float32)
    table = table_of(others, ["ant", "cat", "cat", "cat"], ["test", "test", "train", "train"])

    aligned = align_rows(table, table_of())

    # Class cat has train rows 10 and 20 and test row 30; ant is second in the other order.
    assert aligned.features.tolist() == [[10.0], [50.0], [30.0], [20.0]]
    assert aligned.fingerprint == table_of(aligned.features).fingerprint
    assert aligned.rows_of("cat", "train").tolist() == [0, 3]
    assert align_rows(aligned, table_of()) is aligned


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ["cat", "ant", "cat", "ant"]}, "class ant has 1 train rows and not 0"),
        ({"partitions": ["train", "test", "train", "train"]}, "class cat has 3 train rows and not"),
        ({"classes": ["cat", "bee", "cat", "cat"]}, "class ant has 0 test rows and not 1"),
    ],
)
def test_tables_with_other_counts_are_not_of_the_same_rows(change, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        align_rows(table_of(**change), table_of())

"""Test the groups of a split, and that draws of shots depend on little and never change."""

import numpy as np
import pytest

from cpaan.data.splits import Phase, Split, check_shots, draw_shots
from helpers.tables import table_with_counts
from helpers.tasks import shots_of

VALIDATION = Phase(base=("a", "b"), novel=("c", "d"))


def test_phases_may_share_base_classes_and_one_may_be_missing():
    split = Split.from_classes(base=["a", "b"], validation=["c"], test=["d", "e"])

    assert split == Split(Phase(("a", "b"), ("c",)), Phase(("a", "b"), ("d", "e")))
    assert split.base_classes("test") == split.base_classes() == ("a", "b")
    separate = Split(VALIDATION, Phase(base=("e",), novel=("f",)))
    assert separate.base_classes("validation") == ("a", "b", "e")  # those of the phase first
    assert separate.base_classes("test") == ("e", "a", "b")
    only_test = Split.from_classes(base=["a", "b"], test=["d"])
    assert list(only_test.phases) == ["test"]
    with pytest.raises(ValueError, match="the split has no validation phase"):
        only_test.phase("validation")
    with pytest.raises(ValueError, match="neither a validation phase nor a test phase"):
        Split.from_classes(base=["a"])


@pytest.mark.parametrize(
    ("validation", "test", "message"),
    [
        (("ab", "cd"), ("e", ""), "test phase has no novel classes"),
        (("a", "a"), None, "class a is in the base .* and in the novel classes"),
        (("ab", "cd"), ("e", "c"), "class c is in the novel classes of validation and in"),
        (("aa", "c"), None, "class a is in the base .* and in the base classes"),
    ],
)
def test_groups_that_are_empty_or_share_a_novel_class_are_refused(validation, test, message):
    phases = (classes and Phase(*map(tuple, classes)) for classes in (validation, test))

    with pytest.raises(ValueError, match=message):
        Split(*phases)


def test_shots_are_train_rows_and_fewer_shots_draws_or_classes_are_a_part_of_more(gaussians):
    table, split = gaussians.table, gaussians.split
    many = shots_of(table, split, num_draws=7, max_shots=20)

    alone = Phase(("x",), split.validation.novel[3:4])
    few = draw_shots(table, alone, num_draws=2, max_shots=5, seed=0)

    check_shots(many, table, split.validation, 20)  # distinct train rows of the class
    np.testing.assert_array_equal(few[:, 0], many[:2, 3, :5])
    assert len({draw.tobytes() for draw in many}) == 7


def test_draws_stay_what_they_were_from_version_to_version():
    shots = draw_shots(
        table_with_counts({"c": 30, "d": 30}), VALIDATION, num_draws=2, max_shots=4, seed=0
    )

    assert shots.tolist() == [
        [[27, 21, 28, 14], [39, 34, 44, 54]],
        [[26, 12, 16, 10], [47, 48, 46, 59]],
    ]


def test_a_class_with_too_few_rows_is_named():
    with pytest.raises(ValueError, match=r"class d has 4 train rows.*--shots with numbers up to 4"):
        draw_shots(
            table_with_counts({"c": 9, "d": 4}), VALIDATION, num_draws=1, max_shots=5, seed=0
        )

import json

import numpy as np
import pytest
import torch

from cpaan.core.provenance import TEST_READS, command, count_test_reads
from cpaan.core.randomness import new_rng
from cpaan.data.splits import Phase, Split
from cpaan.data.table import FeatureTable
from cpaan.protocol.tasks import BaseSet, Problem, check_phase, read_phase
from helpers.tasks import small_task

SPLIT = Split(validation=Phase(("a", "b"), ("c",)), test=Phase(("d",), ("e",)))


def table_of(rows: dict[str, tuple[int, int]], **about) -> FeatureTable:
    """Return a table with (train, test) rows by class; a feature is its row number."""
    names, partitions = [], []
    for name, (num_train, num_test) in rows.items():
        names += [name] * (num_train + num_test)
        partitions += ["train"] * num_train + ["test"] * num_test
    features = np.arange(len(names), dtype=np.float32).reshape(-1, 1)
    return FeatureTable.from_arrays(features, names, partitions, **about)


FULL = dict.fromkeys("abcde", (3, 2))  # class a has rows 0-4, class b 5-9 and so on


def test_a_task_holds_base_train_rows_shots_and_queries():
    shot_rows = np.array([[[12, 10]], [[11, 12]]])

    task, queries = read_phase(
        table_of(FULL), SPLIT, "validation", shot_rows, (1, 2), torch.device("cpu")
    )

    base = [rows.flatten().tolist() for rows in task.base.by_class()]
    assert base == [[0, 1, 2], [5, 6, 7], [15, 16, 17]]
    assert task.base.prototypes.flatten().tolist() == [1, 6, 16]
    assert task.base.variance == pytest.approx(2 / 3)  # squared distance to the class mean
    assert task.num_base == 2
    assert task.problems == (Problem(1, 0), Problem(1, 1), Problem(2, 0), Problem(2, 1))
    assert task.support(Problem(2, 1)).flatten().tolist() == [11, 12]
    assert task.novel_prototypes.flatten().tolist() == [12, 11, 11, 11.5]
    assert queries.features.flatten().tolist() == [3, 4, 8, 9, 13, 14]
    assert queries.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_every_read_of_the_test_phase_is_written_down_and_of_no_other():
    table = table_of(FULL)
    of_phase = {"validation": np.array([[[10]]]), "test": np.array([[[20]]])}

    for phase in ("test", "validation", "test"):
        read_phase(table, SPLIT, phase, of_phase[phase], (1,), torch.device("cpu"))

    entries = [json.loads(line) for line in TEST_READS.read_text().splitlines()]
    assert len(entries) == count_test_reads(table.fingerprint) == 2
    assert set(entries[0]) == {"time", "command", "commit", "features"}
    assert entries[0]["command"] == command()
    assert count_test_reads("another table") == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({**FULL, "c": (0, 0)}, "the features lack class c of the split"),
        ({**FULL, "a": (0, 2)}, "no train rows for class a"),
        ({**FULL, "d": (0, 2)}, "no train rows for class d"),  # generators use it
        ({**FULL, "b": (3, 0), "c": (3, 0)}, "no test rows for classes b, c"),
    ],
)
def test_a_table_that_cannot_serve_the_phase_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        check_phase(table_of(rows), SPLIT, "validation")


def test_only_the_phase_that_needs_a_class_misses_it_or_knows_it_already():
    table = table_of({**FULL, "d": (3, 0), "e": (0, 0)})
    trained = table_of(FULL, backbone="ResNet-10", backbone_classes=["a", "b", "c", "d"])

    check_phase(table, SPLIT, "validation")
    with pytest.raises(ValueError, match="class e of the split"):
        check_phase(table, SPLIT, "test")
    check_phase(trained, SPLIT, "test")
    with pytest.raises(ValueError, match=r"trained on 1 of 1 novel classes .* \(class c\)"):
        check_phase(trained, SPLIT, "validation")
    check_phase(trained, SPLIT, "validation", allow_trained_novel=True)


def test_the_order_of_names_is_the_same_for_both_phases():
    rows = torch.tensor([[0.0]] * 4 + [[1.0]] * 9 + [[2.0]] * 2)
    base = BaseSet(rows, torch.tensor([4, 9, 2]), ["b", "c", "a"])

    ordered = base.in_order_of_names()

    assert ordered.names == ("a", "b", "c")
    assert ordered.counts.tolist() == [2, 4, 9]
    assert ordered.prototypes[:, 0].tolist() == [2, 0, 1]
    assert ordered.fingerprint == base.fingerprint


def test_exemplars_are_of_their_classes_and_none_comes_twice_before_all_have_come():
    rows = [[[float(label), float(row)] for row in range(3 + 4 * label)] for label in range(3)]
    task = small_task(base=rows, shots=[[[0.0, 0.0]]], num_base=2)

    exemplars = task.draw_exemplars(6, new_rng(0))

    assert exemplars.shape == (2, 6, 2)
    assert (exemplars[..., 0] == torch.tensor([[0.0], [1.0]])).all()
    assert sorted(exemplars[0, :, 1].tolist()) == [0, 0, 1, 1, 2, 2]
    assert len(set(exemplars[1, :, 1].tolist())) == 6
    assert not torch.equal(exemplars, task.draw_exemplars(6, new_rng(1)))

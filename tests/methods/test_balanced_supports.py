"""Supports of a task's problems: how many, which, and in which order."""

from dataclasses import replace

import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.parts.balanced_supports import balanced_supports, encode_problems
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from helpers.tasks import reordered, small_task


def numbered_task() -> LowShotTask:
    """Every row says its class and its own number; base classes have 4, 9 and 2 rows."""
    counts = (4, 9, 2)
    rows = [[float(label), float(row)] for label, n in enumerate(counts) for row in range(n)]
    shots = [[[10.0 + label, float(row)] for row in range(3)] for label in range(2)]
    task = small_task([[[0.0, 0.0]]], shots)
    return LowShotTask(
        base=BaseSet(torch.tensor(rows), torch.tensor(counts), ["b", "c", "a"]),
        num_base=2,
        shots=task.shots,
        problems=(Problem(1, 0), Problem(3, 0)),
    )


def test_supports_of_a_task_are_balanced():
    task = numbered_task()
    blocks = {block.problems[0]: block for block in balanced_supports(task, 4, new_rng(0))}

    assert blocks[0].supports.shape == (1, 4, 4, 2)
    assert blocks[1].supports.shape == (1, 4, 6, 2)  # three shots, twice
    for block in blocks.values():
        assert block.supports[0, :, :, 0].unique(dim=1).flatten().tolist() == [0, 1, 10, 11]
    base, novel = blocks[0].supports[0].split(2)
    assert sorted(base[0, :, 1].tolist()) == [0, 1, 2, 3]  # all four rows, once each
    assert len(set(base[1, :, 1].tolist())) == 4
    assert novel[:, :, 1].unique().tolist() == [0]
    assert blocks[1].supports[0, 2, :, 1].tolist() == [0, 1, 2, 0, 1, 2]


def test_large_problems_are_encoded_one_after_the_other(monkeypatch):
    task = numbered_task()
    task = LowShotTask(task.base, 2, task.shots, (Problem(1, 0),) * 5)
    monkeypatch.setattr(
        "cpaan.methods.parts.balanced_supports._ROWS_PER_BLOCK", 40
    )  # a problem has 16 rows

    blocks = list(balanced_supports(task, 4, new_rng(0)))

    assert [block.problems for block in blocks] == [[0, 1], [2, 3], [4]]


def test_every_base_row_can_be_a_support():
    task = numbered_task()
    met = {
        number
        for seed in range(40)
        for number in next(balanced_supports(task, 4, new_rng(seed))).supports[0, 1, :, 1].tolist()
    }

    assert met == set(range(9))


def test_base_classes_in_another_order_have_the_same_supports():
    task = numbered_task()
    swapped = replace(task, base=reordered(task.base, [1, 0, 2]))

    ours, theirs = (next(balanced_supports(each, 3, new_rng(0))) for each in (task, swapped))

    assert torch.equal(ours.supports, theirs.supports)


def test_what_is_encoded_is_in_the_order_of_the_task():
    """Of three base classes whose names are in no order, and with one that is no answer."""
    base = BaseSet(torch.arange(4.0).view(4, 1), torch.ones(4).long(), ["d", "a", "c", "b"])
    task = LowShotTask(base, 3, torch.tensor([[[[9.0]]]]), (Problem(1, 0),))

    (block,) = balanced_supports(task, 1, new_rng(0))
    (encoded,) = encode_problems(task, 1, new_rng(0), lambda supports, rng: supports)

    assert block.supports.flatten().tolist() == [1, 2, 0, 9]
    assert encoded.flatten().tolist() == [0, 1, 2, 9]
    assert task.columns_from(base.order).tolist() == [3, 0, 2, 4]  # of all four, and the novel one

"""N-way K-shot tasks: drawn as described, and scored as by easyfsl."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cpaan.data.table import TRAIN
from cpaan.evaluation.few_shot import FewShotConfig, draw_tasks, evaluate_few_shot, few_shot_table
from cpaan.methods.registry import METHODS, ROWS
from cpaan.methods.table_row import FEATURES
from cpaan.protocol.config import EvaluationConfig
from helpers.runs import tiny

TASKS = FewShotConfig(num_ways=5, shots=(1, 3), num_queries=4, num_tasks=11)


def test_tasks_have_distinct_classes_shots_and_queries(gaussians) -> None:
    table, novel = gaussians.table, gaussians.split.validation.novel
    drawn = draw_tasks(table, novel, TASKS)
    assert drawn.shots.shape == (11, 5, 3)
    assert drawn.queries.shape == (11, 5, 4)
    assert table.is_train[drawn.shots].all()
    assert not table.is_train[drawn.queries].any()
    labels = table.labels[drawn.shots]
    assert (labels == labels[:, :, :1]).all()
    assert (labels[:, :, :1] == table.labels[drawn.queries]).all()
    for rows in (drawn.shots, drawn.queries, labels[:, :, 0]):
        assert all(len(np.unique(task)) == task.size for task in rows)
    fewer = draw_tasks(table, novel, replace(TASKS, num_tasks=4))
    assert np.array_equal(fewer.shots, drawn.shots[:4])
    assert len({tuple(sorted(task)) for task in labels[:, :, 0]}) > 5


@pytest.mark.parametrize("shots", [1, 3])
def test_accuracy_is_that_of_easyfsl(easyfsl, gaussians, shots: int) -> None:
    """Their prototypical networks and SimpleShot, with their own evaluation."""
    from easyfsl.utils import evaluate

    table, split = gaussians.table, gaussians.split
    drawn = draw_tasks(table, split.validation.novel, TASKS)
    config = EvaluationConfig(heads=("centroid", "cosine"))
    scores = evaluate_few_shot(table, split, methods=["none"], tasks=TASKS, config=config)
    supports, queries = drawn.shots[:, :, :shots], drawn.queries
    # Our cosines are measured from the mean base prototype.
    base = np.concatenate([table.rows_of(name, TRAIN) for name in split.base_classes()])
    middle = torch.from_numpy(table.features[base].mean(axis=0))
    for head, theirs, centre in [
        ("centroid", easyfsl.PrototypicalNetworks(), 0),
        ("cosine", easyfsl.SimpleShot(), middle),
    ]:
        tasks = [
            (
                table.gather(supports[task]).flatten(0, 1) - centre,
                torch.arange(5).repeat_interleave(shots),
                table.gather(queries[task]).flatten(0, 1) - centre,
                torch.arange(5).repeat_interleave(4),
                list(range(5)),
            )
            for task in range(11)
        ]
        ours = scores[(scores["head"] == head) & (scores["shots"] == shots)]["top1"]
        accuracy = evaluate(theirs, tasks, use_tqdm=False, device="cpu")
        assert ours.mean() == pytest.approx(100 * accuracy)


def test_every_row_solves_tasks(gaussians) -> None:
    table, split = gaussians.table, gaussians.split
    names = [name for name in METHODS if ROWS[name].features == FEATURES]
    settings = {name: tiny(METHODS[name].config) for name in names}
    tasks = FewShotConfig(num_ways=3, shots=(1, 2), num_queries=2, num_tasks=3)
    config = EvaluationConfig(linear_num_steps=2)
    scores = evaluate_few_shot(
        table, split, methods=names, tasks=tasks, config=config, settings=settings
    )
    assert set(scores["method"]) == set(names)
    assert (scores.groupby(["method", "head", "shots"]).size() == 3).all()
    assert scores["top1"].between(0, 100).all()
    num_rows = scores.groupby(["method", "head"]).ngroups
    assert len(few_shot_table(scores).splitlines()) == 1 + num_rows


def test_impossible_tasks_are_refused(gaussians) -> None:
    table, split = gaussians.table, gaussians.split
    for changes, message in [
        ({"num_ways": 13}, "13 ways need as many novel classes, got 12"),
        ({"shots": (26,)}, "has 25 train rows, but 26 are needed; use a smaller --shots"),
        ({"num_queries": 11}, "has 10 test rows, but 11 are needed"),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate_few_shot(table, split, methods=["none"], tasks=replace(TASKS, **changes))
    with pytest.raises(ValueError, match="num_ways must be 2 or more"):
        FewShotConfig(num_ways=1)

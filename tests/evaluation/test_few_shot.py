"""N-way K-shot tasks: drawn as described, and scored as by easyfsl."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cpaan.data.splits import Split
from cpaan.data.table import TRAIN, FeatureTable
from cpaan.evaluation.few_shot import FewShotConfig, draw_tasks, evaluate_few_shot, few_shot_table
from cpaan.methods.registry import METHODS, ROWS
from cpaan.methods.table_row import FEATURES
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig

NOVEL = tuple(f"n{number}" for number in range(7))
TASKS = FewShotConfig(num_ways=5, shots=(1, 3), num_queries=4, num_tasks=11)


@pytest.fixture(scope="module")
def data() -> tuple[FeatureTable, Split]:
    rng = np.random.default_rng(0)
    names = [*(f"a{number:02d}" for number in range(16)), *NOVEL, "z"]
    features = rng.normal(size=(len(names), 6)).repeat(40, axis=0)
    features += rng.normal(size=features.shape)
    partitions = np.tile(["train"] * 30 + ["test"] * 10, len(names))
    table = FeatureTable.from_arrays(features.astype(np.float32), np.repeat(names, 40), partitions)
    phases = {"base": names[:8], "novel": list(NOVEL)}, {"base": names[8:16], "novel": ["z"]}
    return table, Split.from_dict(dict(zip(("validation", "test"), phases, strict=True)))


def test_tasks_have_distinct_classes_shots_and_queries(data) -> None:
    table, _ = data
    drawn = draw_tasks(table, NOVEL, TASKS)
    assert drawn.shots.shape == (11, 5, 3)
    assert drawn.queries.shape == (11, 5, 4)
    assert table.is_train[drawn.shots].all()
    assert not table.is_train[drawn.queries].any()
    labels = table.labels[drawn.shots]
    assert (labels == labels[:, :, :1]).all()
    assert (labels[:, :, :1] == table.labels[drawn.queries]).all()
    for rows in (drawn.shots, drawn.queries, labels[:, :, 0]):
        assert all(len(np.unique(task)) == task.size for task in rows)
    fewer = draw_tasks(table, NOVEL, replace(TASKS, num_tasks=4))
    assert np.array_equal(fewer.shots, drawn.shots[:4])
    assert len({tuple(sorted(task)) for task in labels[:, :, 0]}) > 5


@pytest.mark.parametrize("shots", [1, 3])
def test_accuracy_is_that_of_easyfsl(easyfsl, data, shots: int) -> None:
    """Their prototypical networks and SimpleShot, with their own evaluation."""
    from easyfsl.utils import evaluate

    table, split = data
    drawn = draw_tasks(table, NOVEL, TASKS)
    scores = evaluate_few_shot(
        table,
        split,
        methods=["none"],
        tasks=TASKS,
        config=EvaluationConfig(heads=("centroid", "cosine")),
    )
    supports, queries = drawn.shots[:, :, :shots], drawn.queries
    # Our cosines are measured from the mean base prototype.
    base = np.concatenate([table.rows_of(f"a{number:02d}", TRAIN) for number in range(16)])
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
        assert ours.mean() == pytest.approx(
            100 * evaluate(theirs, tasks, use_tqdm=False, device="cpu")
        )


def test_every_row_solves_tasks(data) -> None:
    table, split = data
    sizes = {"num_episodes": 1, "num_ways": 3, "episode_shots": (1,), "hidden_dim": 8}
    sizes |= {"batch_size": 12, "ky_fan_order": 2, "num_clusters": 3, "num_covariance_classes": 1}
    names = [name for name in METHODS if ROWS[name].features == FEATURES]
    settings = {
        name: ROWS[name].config.with_overrides(
            {key: value for key, value in sizes.items() if key in ROWS[name].config.to_dict()}
        )
        for name in names
    }
    tasks = FewShotConfig(num_ways=3, shots=(1, 2), num_queries=2, num_tasks=3)
    config = EvaluationConfig(linear_num_steps=2)
    scores = evaluate_few_shot(
        table, split, methods=names, tasks=tasks, config=config, settings=settings
    )
    assert set(scores["method"]) == set(names)
    assert isinstance(settings["PN"], EmbeddingConfig)
    assert (scores.groupby(["method", "head", "shots"]).size() == 3).all()
    assert scores["top1"].between(0, 100).all()
    assert (
        len(few_shot_table(scores).splitlines()) == 1 + scores.groupby(["method", "head"]).ngroups
    )


def test_impossible_tasks_are_refused(data) -> None:
    table, split = data
    for changes, message in [
        ({"num_ways": 8}, "8 ways need as many novel classes, got 7"),
        ({"shots": (31,)}, "class n0 has 30 train rows, but 31 are needed; use a smaller --shots"),
        ({"num_queries": 11}, "class n0 has 10 test rows, but 11 are needed"),
    ]:
        with pytest.raises(ValueError, match=message):
            evaluate_few_shot(table, split, methods=["none"], tasks=replace(TASKS, **changes))
    with pytest.raises(ValueError, match="num_ways must be 2 or more"):
        FewShotConfig(num_ways=1)

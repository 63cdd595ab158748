"""Test heads against scikit-learn, against their plain definition, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neighbors import NearestCentroid as SklearnCentroid

from cpaan.bench.evaluate import compare_logits
from cpaan.core.randomness import new_rng
from cpaan.protocol.augmentation import mean_shift, synthesise
from cpaan.protocol.config import (
    HEADS,
    LINEAR_AS_IN_BENCHMARK,
    EvaluationConfig,
    NeighbourSettings,
)
from cpaan.protocol.heads import HEAD_CLASSES, Head, NovelPool, real_shares
from cpaan.protocol.tasks import BaseSet, LowShotTask, Queries, read_phase
from helpers.tasks import read_problems, small_task

CONFIG = EvaluationConfig()


@pytest.fixture
def data(gaussians) -> tuple[LowShotTask, Queries]:
    return read_problems(gaussians)


def fitted(
    name: str, task: LowShotTask, synthetic: torch.Tensor | None = None, **settings: object
) -> Head:
    head = HEAD_CLASSES[name](CONFIG.with_overrides(settings))
    head.fit(task, synthetic, new_rng(0))
    return head


def plain_training_set(task: LowShotTask, problem: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all examples of one problem and their labels."""
    classes = [*task.base.by_class()[: task.num_base], *task.support(task.problems[problem])]
    labels = np.repeat(np.arange(len(classes)), [len(rows) for rows in classes])
    return torch.cat(list(classes)).double().numpy(), labels


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("centroid", SklearnCentroid()), ("knn", KNeighborsClassifier(n_neighbors=1))],
)
def test_centroids_and_a_cold_soft_neighbourhood_predict_what_scikit_learn_does(data, name, theirs):
    task, queries = data

    predictions = fitted(name, task, knn_temperature=1e-4).scores(queries.features).argmax(dim=-1)

    for problem, ours in enumerate(predictions):
        theirs.fit(*plain_training_set(task, problem))
        np.testing.assert_array_equal(ours, theirs.predict(queries.features.double().numpy()))


def test_the_linear_head_predicts_what_scikit_learn_does(gaussians):
    """Both have the same loss: equal weights of classes, and weight decay on the bias."""
    weight_decay = 0.03
    rows = np.stack(
        [gaussians.table.rows_of(name, "train") for name in gaussians.split.validation.novel]
    )
    task, queries = read_phase(
        gaussians.table, gaussians.split, "validation", rows[None], (25,), torch.device("cpu")
    )
    settings = {"linear_unit_norm": False, "linear_weight_decay": weight_decay}
    settings |= {"linear_num_steps": 2000, "linear_batch_size": 24 * 25}  # all rows in every step

    (scores,) = fitted("linear", task, **settings).scores(queries.features)

    features, labels = plain_training_set(task, 0)
    with_ones = np.c_[features, np.ones(len(features))]
    theirs = LogisticRegression(
        C=1 / (weight_decay * len(features)), fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(with_ones, labels)
    probabilities = theirs.predict_proba(
        np.c_[queries.features.double().numpy(), np.ones(len(queries.labels))]
    )
    np.testing.assert_array_equal(scores.argmax(dim=-1), probabilities.argmax(axis=1))
    np.testing.assert_allclose(scores.softmax(dim=-1).numpy(), probabilities, atol=1e-5)


def test_all_problems_at_once_are_trained_as_the_benchmark_trains_one(data):
    """Compare with a plain loop over the batches of one problem."""
    task, queries = data
    few = {"linear_batch_size": 24 * 2, "mixing_weight": 0.5}
    config = CONFIG.with_overrides({**LINEAR_AS_IN_BENCHMARK, **few})
    neighbours = NeighbourSettings(perplexity=4)
    synthetic = synthesise(task, mean_shift, neighbours=neighbours, num_synthetic=7, rng=new_rng(1))

    assert compare_logits(task, synthetic, queries.features, config, num_steps=60, seed=0) < 1e-5


def test_a_batch_takes_rows_at_even_distances():
    """Over many random starts, rows are taken equally often, real and synthetic by weight."""
    task = small_task(base=[[[0.0]]], shots=[[[0.0], [1.0], [2.0]]])
    synthetic = torch.arange(10.0, 15.0).view(1, 1, 5, 1)
    config = CONFIG.with_overrides({"mixing_weight": 0.3})
    pool = NovelPool(task, synthetic, config, num_examples=4)
    starts = torch.rand(4000, 1, 2, generator=new_rng(0), dtype=torch.float64)

    taken = torch.cat([pool.pick(start).flatten().clone() for start in starts])

    values, counts = taken.unique(return_counts=True)
    shares = dict(zip(values.tolist(), (counts / len(taken)).tolist(), strict=True))
    assert shares == pytest.approx(
        {**dict.fromkeys([0.0, 1.0, 2.0], 0.1), **dict.fromkeys(range(10, 15), 0.14)}, abs=0.01
    )


def test_cosines_are_measured_from_the_mean_of_the_base_prototypes():
    # Prototypes are (1, 1) and (3, 1), and the shot is (2, 5). From the base mean (2, 1), they
    # are to the left, to the right and above.
    task = small_task(base=[[[1.0, 1.0]], [[3.0, 1.0]]], shots=[[[2.0, 5.0]]])

    ((scores,),) = fitted("cosine", task).scores(torch.tensor([[2.0, 1.5]]))

    torch.testing.assert_close(scores, torch.tensor([0.0, 0.0, 10.0]))  # ten times the cosine


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"mixing_weight": 0.3}, 0.3),
        ({"mixing_shots": 2.0}, 4 / 6),  # all synthetic examples together count as two shots
        ({"mixing_shots": None}, 4 / 104),  # all examples have the same weight
    ],
)
def test_the_weight_of_the_real_examples(settings, share):
    task = small_task(base=[[[0.0]]], shots=[[[1.0]] * 4])
    synthetic = torch.zeros(1, 1, 100, 1)

    shares = real_shares(task, synthetic, CONFIG.with_overrides(settings))

    assert shares.tolist() == [pytest.approx(share)]


def test_centroids_mix_real_and_synthetic_means():
    task = small_task(base=[[[0.0]], [[2.0]]], shots=[[[10.0], [12.0]]])
    synthetic = torch.tensor([[[[1.0], [2.0], [3.0]]]])

    # 0.25 * 11 + 0.75 * 2 = 4.25
    head = fitted("centroid", task, synthetic, mixing_weight=0.25)

    assert head.scores(torch.tensor([[4.25]]))[0, 0, 2] == pytest.approx(0.0, abs=1e-5)


def test_soft_neighbours_take_the_mean_over_a_classs_examples():
    # Squared distances of the query at 0: base class 1 and 9, shot 4, synthetic 16 and 16.
    task = small_task(base=[[[1.0], [3.0]]], shots=[[[2.0]]])
    synthetic = torch.tensor([[[[4.0], [-4.0]]]])

    head = fitted("knn", task, synthetic, knn_temperature=2.0, mixing_weight=0.75)

    ((scores,),) = head.scores(torch.zeros(1, 1))

    assert task.base.variance == 1.0  # of 1 and 3, so the temperature is 2
    base = (np.exp(-1 / 2) + np.exp(-9 / 2)) / 2
    novel = 0.75 * np.exp(-4 / 2) + 0.25 * np.exp(-16 / 2)
    np.testing.assert_allclose(scores, np.log([base, novel]), rtol=1e-5)


def transformed(task: LowShotTask, factor: float = 1.0, by: float = 0.0) -> LowShotTask:
    base = BaseSet(factor * task.base.features + by, task.base.counts)
    return replace(task, base=base, shots=factor * task.shots + by)


@pytest.mark.parametrize("name", ["centroid", "cosine", "knn"])
def test_points_far_from_zero_keep_their_neighbours(data, name):
    """Expanding the square of the difference would lose the digits of the distance."""
    task, queries = data

    here = fitted(name, task).scores(queries.features)
    there = fitted(name, transformed(task, by=1e4)).scores(queries.features + 1e4)

    assert (here.argmax(-1) == there.argmax(-1)).double().mean() > 0.99


def test_the_linear_head_does_not_depend_on_the_scale_of_the_features(data):
    task, queries = data

    scores = fitted("linear", task).scores(queries.features)

    scaled = fitted("linear", transformed(task, factor=1024))  # powers of two cause no rounding
    torch.testing.assert_close(scaled.scores(1024 * queries.features), scores)


@pytest.mark.parametrize("name", HEADS)
def test_with_all_weight_on_the_shots_synthetic_examples_change_nothing(data, name):
    task, queries = data
    nonsense = torch.full((len(task.problems), task.num_novel, 3, 8), 100.0)

    with_synthetic, without = (
        fitted(name, task, rows, mixing_weight=1.0, linear_num_steps=20).scores(queries.features)
        for rows in (nonsense, None)
    )

    torch.testing.assert_close(with_synthetic, without)


@pytest.mark.parametrize("name", HEADS)
def test_a_problem_is_solved_alike_alone_and_among_others(data, name):
    task, queries = data

    together, alone = (
        fitted(name, problems, linear_num_steps=30).scores(queries.features)
        for problems in (task, replace(task, problems=task.problems[2:3]))
    )

    torch.testing.assert_close(together[2:3], alone, atol=1e-4, rtol=1e-4)

"""Matching and Prototype Matching Networks: what both have in common."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.data.splits import draw_shots
from cpaan.methods.base import MetaLearned
from cpaan.methods.matching import Matching, MatchingConfig
from cpaan.methods.prototype_matching import PrototypeMatching, PrototypeMatchingConfig
from cpaan.protocol.accuracy import score
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from helpers.runs import assert_goes_on, flat
from helpers.tasks import reordered, shots_of

SMALL = {"num_episodes": 4, "episode_shots": (1, 2), "num_queries": 2, "num_examples": 5}
LEARNING = {
    "num_episodes": 150,
    "context_gate": 1.0,
    "learning_rate": 2e-2,
    "dropout": 0.0,
    "weight_decay": 0.0,
}
MAKERS: dict[str, Callable[..., MetaLearned]] = {
    "MN": lambda **settings: Matching(MatchingConfig(**{**SMALL, **settings})),
    "PMN": lambda **settings: PrototypeMatching(PrototypeMatchingConfig(**{**SMALL, **settings})),
}
every_method = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@pytest.fixture(scope="module")
def data(gaussians) -> tuple[LowShotTask, Queries]:
    rows = shots_of(gaussians.table, gaussians.split, num_draws=4)
    return read_phase(
        gaussians.table, gaussians.split, "validation", rows, (1, 5), torch.device("cpu")
    )


def top5(method: MetaLearned, data: tuple[LowShotTask, Queries], column: str) -> float:
    """Mean over problems, in percent."""
    scored = [each.top5 for each in score(method, *data) if each.column == column]
    return sum(scored) / len(scored)


@every_method
def test_training_helps_with_classes_that_it_has_not_met(make, data):
    """Families of classes share directions of spread; all classes lie around one middle."""
    untrained, trained = (make(**LEARNING) for _ in range(2))
    untrained.begin(data[0].base, new_rng(0))  # what others drive is taken as it is
    for method in (untrained, trained):
        method.fit(data[0], new_rng(0))

    for column in ("novel", "all"):
        assert top5(trained, data, column) > top5(untrained, data, column) + 2


@every_method
def test_scores_are_finite_and_have_a_place_for_every_class(make, data):
    task, queries = data
    method = make()
    method.fit(task, new_rng(0))

    scores = method.predict(queries.features)[OWN]

    assert scores.shape == (8, len(queries.features), task.num_base + task.num_novel)
    assert scores.isfinite().all()
    assert method.predict(1e4 * queries.features)[OWN].isfinite().all()


@every_method
def test_equal_seeds_give_equal_scores_whatever_the_global_state(make, data):
    task, queries = data
    scores = []
    for seed in (0, 0, 1):
        method = make()
        method.fit(task, new_rng(seed))
        scores.append(method.predict(queries.features)[OWN])
        torch.rand(3)  # another state

    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])


@every_method
def test_the_order_of_base_classes_decides_nothing(make, data):
    task, queries = data
    order = [*reversed(range(task.num_base)), *range(task.num_base, len(task.base.counts))]
    columns = [*order[: task.num_base], *range(task.num_base, task.num_base + task.num_novel)]
    method, other = make(), make()

    method.fit(task, new_rng(0))
    other.fit(replace(task, base=reordered(task.base, order)), new_rng(0))

    expected = method.predict(queries.features)[OWN][:, :, columns]
    torch.testing.assert_close(other.predict(queries.features)[OWN], expected)


@every_method
def test_a_run_serves_both_phases(make, gaussians):
    rows = shots_of(gaussians.table, gaussians.split)
    test_rows = draw_shots(gaussians.table, gaussians.split.test, num_draws=2, max_shots=5, seed=0)
    tasks = [
        read_phase(gaussians.table, gaussians.split, phase, each, (1,), torch.device("cpu"))[0]
        for phase, each in (("validation", rows), ("test", test_rows))
    ]

    runs = [make().begin(task.base, new_rng(0)) for task in tasks]
    for run in runs:
        run.advance(3)

    assert tasks[0].base.names != tasks[1].base.names
    assert torch.equal(flat(runs[0]), flat(runs[1]))


@every_method
def test_going_on_equals_never_having_stopped(make, data):
    assert_goes_on(lambda: make().begin(data[0].base, new_rng(0)))


@every_method
def test_settings_that_make_no_sense_are_refused_by_name(make):
    for setting in ({"num_examples": 0}, {"dropout": 1.0}, {"num_ways": 1}, {"num_queries": 0}):
        with pytest.raises(ValueError, match=f"^{next(iter(setting))} must be"):
            make(**setting)

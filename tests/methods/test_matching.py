"""Matching Networks: attention over supports by hand and against easyfsl, and what is learnt."""

import math

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.matching import (
    PUBLISHED,
    Matching,
    MatchingConfig,
    class_log_probabilities,
)
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from helpers.tasks import shots_of, small_task

SMALL = MatchingConfig(num_episodes=4, episode_shots=(1, 2), num_queries=2, num_examples=5)
PLAIN = {"context_gate": 0.0, "learns_gate": False, "normalisation": "none", "scale": "one"}
ONE = torch.tensor(1.0)


@pytest.fixture(scope="module")
def data(gaussians) -> tuple[LowShotTask, Queries]:
    rows = shots_of(gaussians.table, gaussians.split, num_draws=4)
    return read_phase(
        gaussians.table, gaussians.split, "validation", rows, (1, 5), torch.device("cpu")
    )


def adapted(task: LowShotTask, **settings: object) -> Matching:
    """Return a method without any training, adapted to a task."""
    few = {"episode_shots": (1,), "num_queries": 1, "num_examples": 1, **PLAIN, **settings}
    method = Matching(SMALL.with_overrides(few))
    method.begin(task.base, new_rng(0))
    method.fit(task, new_rng(0))
    return method


def test_attention_by_hand():
    """Supports of the first class in the query's direction and across, of the second opposite."""
    supports = torch.tensor([[[5.0, 0.0], [0.0, 0.1]], [[-3.0, 0.0], [-3.0, 0.0]]])
    query = torch.tensor([[2.0, 0.0]])

    logs = class_log_probabilities(query, supports, ONE)

    weights = torch.tensor([math.exp(2) + math.exp(0), 2 * math.exp(-2)])
    torch.testing.assert_close(logs.exp()[0], weights / weights.sum(), atol=1e-4, rtol=1e-4)


def test_without_context_a_query_that_is_a_support_has_its_class():
    """One row of a class, orthogonal to all others: a query equal to it can be nothing else."""
    rows = 30 * torch.eye(5)
    task = small_task(
        base=[[rows[0].tolist()] * 2, [rows[1].tolist()] * 2, [rows[2].tolist()] * 2],
        shots=[[rows[3].tolist()], [rows[4].tolist()]],
    )
    method = adapted(task)

    probabilities = method.predict(rows)[OWN][0].exp()

    torch.testing.assert_close(probabilities, torch.eye(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(5))


def test_without_context_scores_are_those_of_easyfsl(easyfsl):
    """It adds a millionth to every probability."""
    rng = new_rng(0)
    rows = torch.randn((5, 3, 6), generator=rng)
    queries = torch.randn((7, 6), generator=rng)
    task = small_task(base=rows[:3].tolist(), shots=rows[3:].tolist())
    theirs = easyfsl.MatchingNetworks(feature_dimension=6)
    theirs.encode_query_features = lambda features: features
    theirs.contextualized_support_features = rows.flatten(0, 1)
    theirs.one_hot_support_labels = torch.eye(5).repeat_interleave(3, dim=0)

    scores = adapted(task, num_examples=3).predict(queries)[OWN][0]

    torch.testing.assert_close(scores, theirs(queries), atol=1e-3, rtol=1e-4)


def test_without_context_neither_order_nor_repeats_of_supports_matter():
    rng = new_rng(0)
    supports, queries = (torch.randn(shape, generator=rng) for shape in ((4, 3, 6), (5, 6)))
    expected = class_log_probabilities(queries, supports, ONE)

    for other in (supports.flip(1), supports.repeat(1, 4, 1)):
        torch.testing.assert_close(class_log_probabilities(queries, other, ONE), expected)


def test_shots_are_repeated_so_that_classes_are_balanced():
    """A novel class with one shot, a base class with four rows: both equal to the query."""
    task = small_task(base=[[[1.0, 0.0]] * 4, [[0.0, 1.0]] * 4], shots=[[[1.0, 0.0]]])
    method = adapted(task, num_examples=4)

    base, _, novel = method.predict(torch.tensor([[1.0, 0.0]]))[OWN][0, 0].tolist()

    assert base == pytest.approx(novel)


def test_far_classes_have_finite_scores_and_gradients():
    """As probabilities they would be zero, and their logarithms infinite."""
    supports = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    query = torch.tensor([[500.0, 0.0]], requires_grad=True)

    logs = class_log_probabilities(query, supports, ONE)
    logs[0, 1].backward()

    torch.testing.assert_close(logs[0], torch.tensor([0.0, -1000.0, -500.0]), atol=0.1, rtol=0)
    for gradient in (supports.grad, query.grad):
        assert gradient is not None
        assert gradient.isfinite().all()


def test_a_scale_of_one_stays(data):
    run = Matching(SMALL.with_overrides({"scale": "one"})).begin(data[0].base, new_rng(0))
    run.advance(3)

    assert float(run.learner.log_scale) == 0


def test_the_published_recipe_has_nothing_of_ours():
    assert (PUBLISHED.scale, PUBLISHED.context_gate, PUBLISHED.attention_scale) == ("one", 1, 1)
    assert not PUBLISHED.learns_gate
    rates = [PUBLISHED.rate_after(episode) for episode in (0, 19_999, 20_000, 40_000)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001])

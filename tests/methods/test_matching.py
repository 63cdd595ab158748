"""Matching and Prototype Matching Networks: attention by hand, easyfsl, and what is learnt."""

import math
from collections.abc import Callable

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.base import MetaLearned
from cpaan.methods.matching import (
    Matching,
    MatchingConfig,
    PrototypeMatching,
    PrototypeMatchingConfig,
    class_logits,
)
from cpaan.protocol.accuracy import score
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES
from cpaan.protocol.tasks import LowShotTask, Queries
from helpers.tasks import read_problems, small_task

EPISODES = {"num_episodes": 4, "episode_shots": (1, 2), "num_queries": 2, "num_examples": 5}
SMALL = MatchingConfig(**EPISODES)
PLAIN = {"context_gate": 0.0, "learns_gate": False, "normalisation": "none", "scale": "one"}
ONE = torch.tensor(1.0)


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

    logs = class_logits(query, supports, ONE).log_softmax(dim=1)

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


def test_far_classes_have_finite_scores_and_gradients():
    """As probabilities they would be zero, and their logarithms infinite."""
    supports = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]], [[0.0, 0.0]]], requires_grad=True)
    query = torch.tensor([[500.0, 0.0]], requires_grad=True)

    logs = class_logits(query, supports, ONE).log_softmax(dim=1)
    logs[0, 1].backward()

    torch.testing.assert_close(logs[0], torch.tensor([0.0, -1000.0, -500.0]), atol=0.1, rtol=0)
    for gradient in (supports.grad, query.grad):
        assert gradient is not None
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("distance", "head"), [("cosine", "cosine"), ("euclidean", "centroid")])
def test_without_context_scores_are_those_of_a_centroid_head(gaussians, distance, head):
    """With all train rows of a base class, and up to the learnt scale."""
    task, queries = read_problems(gaussians, num_draws=4)
    settings = {"context_gate": 0.0, "learns_gate": False, "distance": distance}
    method = MAKERS["PMN"](**settings, num_examples=25)
    run = method.begin(task.base, new_rng(0))
    method.fit(task, new_rng(0))
    theirs = HEAD_CLASSES[head](EvaluationConfig(cosine_scale=1.0))
    theirs.fit(task, None, new_rng(0))

    scores = method.predict(queries.features)[OWN]

    expected = run.learner.matcher.log_scale.detach().exp() * theirs.scores(queries.features)
    torch.testing.assert_close(scores, expected, atol=1e-3, rtol=1e-3)


LEARNING = {
    "num_episodes": 150,
    "context_gate": 1.0,
    "learning_rate": 2e-2,
    "dropout": 0.0,
    "weight_decay": 0.0,
}
MAKERS: dict[str, Callable[..., MetaLearned]] = {
    "MN": lambda **settings: Matching(MatchingConfig(**{**EPISODES, **settings})),
    "PMN": lambda **settings: PrototypeMatching(
        PrototypeMatchingConfig(**{**EPISODES, **settings})
    ),
}
every_method = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def top5(method: MetaLearned, task: LowShotTask, queries: Queries, column: str) -> float:
    """Mean over problems, in percent."""
    scored = [each.top5 for each in score(method, task, queries) if each.column == column]
    return sum(scored) / len(scored)


@every_method
def test_training_helps_with_classes_that_it_has_not_met(make, gaussians):
    """Families of classes share directions of spread; all classes lie around one middle."""
    task, queries = read_problems(gaussians, num_draws=4)
    untrained, trained = (make(**LEARNING) for _ in range(2))
    untrained.begin(task.base, new_rng(0))  # what others drive is taken as it is
    for method in (untrained, trained):
        method.fit(task, new_rng(0))

    for column in ("novel", "all"):
        assert top5(trained, task, queries, column) > top5(untrained, task, queries, column) + 2

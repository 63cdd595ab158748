"""Prototype Matching Networks: without context they are nearest centroids, and what is learnt."""

from dataclasses import replace

import pytest
import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.prototype_matching import PrototypeMatching, PrototypeMatchingConfig
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES
from cpaan.protocol.tasks import LowShotTask, Queries, read_phase
from helpers.tasks import shots_of

SMALL = PrototypeMatchingConfig(num_episodes=4, episode_shots=(1, 2), num_queries=2, num_examples=5)


@pytest.fixture(scope="module")
def data(gaussians) -> tuple[LowShotTask, Queries]:
    rows = shots_of(gaussians.table, gaussians.split, num_draws=4)
    return read_phase(
        gaussians.table, gaussians.split, "validation", rows, (1, 5), torch.device("cpu")
    )


@pytest.mark.parametrize(("distance", "head"), [("cosine", "cosine"), ("euclidean", "centroid")])
def test_without_context_scores_are_those_of_a_centroid_head(data, distance, head):
    """With all train rows of a base class, and up to the learnt scale."""
    task, queries = data
    settings = {"context_gate": 0.0, "learns_gate": False, "distance": distance}
    method = PrototypeMatching(SMALL.with_overrides({**settings, "num_examples": 25}))
    run = method.begin(task.base, new_rng(0))
    method.fit(task, new_rng(0))
    theirs = HEAD_CLASSES[head](EvaluationConfig(cosine_scale=1.0))
    theirs.fit(task, None, new_rng(0))

    scores = method.predict(queries.features)[OWN]

    expected = run.learner.matcher.log_scale.detach().exp() * theirs.scores(queries.features)
    torch.testing.assert_close(scores, expected, atol=1e-3, rtol=1e-3)


def test_without_context_repeated_shots_have_the_mean_of_the_shots(data):
    """Five shots of which 12 supports are made: 15, so that each counts alike."""
    task, queries = data
    settings = {"context_gate": 0.0, "learns_gate": False}
    scores = []
    for num_examples in (1, 12):
        method = PrototypeMatching(SMALL.with_overrides({**settings, "num_examples": num_examples}))
        method.begin(task.base, new_rng(0))
        method.fit(task, new_rng(0))
        scores.append(method.predict(queries.features)[OWN][:, :, task.num_base :])

    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=1e-4)


def test_in_context_a_novel_class_depends_on_the_others(data):
    """Another novel class's shots change its score."""
    task, queries = data
    shots = task.shots.clone()
    shots[:, 1] += 3
    scores = []
    for each in (task, replace(task, shots=shots)):
        method = PrototypeMatching(SMALL.with_overrides({"context_gate": 1.0}))
        method.begin(task.base, new_rng(0))
        method.fit(each, new_rng(0))
        scores.append(method.predict(queries.features)[OWN][:, :, task.num_base])

    assert not torch.allclose(scores[0], scores[1], atol=1e-3)

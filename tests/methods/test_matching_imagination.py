"""Feature Imagination on PMN: where it starts, and what is refused."""

import torch

from cpaan.core.randomness import new_rng
from cpaan.methods.matching_imagination import (
    MatchingImagination,
    MatchingImaginationConfig,
)
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import LowShotTask, read_phase
from cpaan.training.learning import LearningRun
from helpers.tasks import shots_of

SMALL = MatchingImaginationConfig(
    num_episodes=20, episode_shots=(1, 2, 5), num_queries=3, num_augmented=10
)


def untrained(task: LowShotTask, **settings: object) -> tuple[MatchingImagination, LearningRun]:
    """A method as it is before its first episode, and its run."""
    made = MatchingImagination(SMALL.with_overrides(settings))
    run = made.begin(task.base, new_rng(0))
    made.fit(task, new_rng(0))
    return made, run


def test_before_training_imagination_is_a_matcher_of_repeated_shots(gaussians):
    rows = shots_of(gaussians.table, gaussians.split)
    task, queries = read_phase(
        gaussians.table, gaussians.split, "validation", rows, (1, 5), torch.device("cpu")
    )
    imagination, run = untrained(task)

    scores = imagination.predict(queries.features)[OWN]

    nothing, _ = untrained(task, num_augmented=1)  # shots are but repeated
    torch.testing.assert_close(scores, nothing.predict(queries.features)[OWN])
    for parameter in run.learner.hallucinator.parameters():
        parameter.data += 0.1
    imagination.fit(task, new_rng(0))
    assert not torch.allclose(imagination.predict(queries.features)[OWN], scores, rtol=0.01)

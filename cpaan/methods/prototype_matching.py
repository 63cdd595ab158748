"""Prototype Matching Networks (PMN). Wang, Girshick, Hebert & Hariharan (2018), Low-Shot Learning
from Imaginary Data.

The contextual encoders of Matching Networks, but a class is the mean of its encoded supports, as in
Prototypical Networks: a recurrent network reads all supports, another one lets a query look at
the class means, and the query's class is that of the mean it then resembles most.

Chosen where the source is silent: queries attend to class means and not to all supports; the
supports are read in random order, equally many of every class; similarities are cosines times a
learnt scale, by which centroids without context are better than by distance; what the recurrent
networks add is multiplied by a learnt gate that starts half open, and inputs have dropout, lest few
base classes are learnt by heart. `PUBLISHED` has neither gate nor dropout, and distances.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cpaan.core.settings import Choice, Range, SearchSpace
from cpaan.methods.base import MetaLearned
from cpaan.methods.parts.balanced_supports import encode_problems
from cpaan.methods.parts.contextual import MatcherSettings, PrototypeMatcher
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.few_shot_episodes import FewShotEpisodes, percent_right
from cpaan.training.learning import (
    EpisodeRngs,
    EpisodeSettings,
    Learner,
    LearningRun,
    LearningSettings,
)


@dataclass(frozen=True, kw_only=True)
class PrototypeMatchingConfig(MatcherSettings, EpisodeSettings, LearningSettings):
    """Everything that decides a Prototype Matching Network, apart from features and seed.

    Raises:
        ValueError: If a value makes no sense.
    """

    num_episodes: int = 1_000
    """Episodes of training."""
    episode_shots: tuple[int, ...] = (1, 2, 5)
    """Supports of a class; an episode draws one of these numbers."""
    learning_rate: float = 1e-3
    """At the start."""
    weight_decay: float = 5.0
    """Share of the matrices that a step takes away, in units of the learning rate."""
    num_examples: int = 20
    """Supports of a class when novel classes are learnt: random train rows of a base class; shots
    are repeated until there are as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_examples")


PUBLISHED = PrototypeMatchingConfig(
    num_episodes=60_000,
    optimiser="sgd",
    learning_rate=0.1,
    schedule="thirds",
    weight_decay=1e-3,
    episode_shots=(1, 2, 3, 4, 5),
    num_queries=1,
    normalisation="none",
    context_gate=1.0,
    learns_gate=False,
    attention_scale=1.0,
    dropout=0.0,
    distance="euclidean",
)
"""The recipe of Matching Networks, whose encoders these are: that of Wang et al. is not known."""

SPACE: SearchSpace = {
    "learning_rate": Range(3e-5, 3e-3, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    "context_gate": Range(0.01, 1.0, log=True),
    "distance": Choice("cosine", "euclidean"),
}


class PrototypeMatchingNetwork(Learner):
    """The matcher, and the episodes that it is trained by."""

    TERMS = ("query_loss", "query_top1")

    def __init__(
        self, base: BaseSet, config: PrototypeMatchingConfig, rng: torch.Generator
    ) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If there are too few examples, or they or their squares are not finite.
        """
        super().__init__()
        self.episodes = FewShotEpisodes(base, config)
        self.matcher = PrototypeMatcher(base, config, rng)

    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        """Return the cross-entropy of an episode's queries, and how many are right, in percent."""
        episode = self.episodes.draw_next(rngs)
        scores = self.matcher.scores(episode.supports, episode.queries, rngs.device)
        return [cross_entropy(scores, episode.labels), percent_right(scores, episode.labels)]

    def set_scale(self, rng: torch.Generator) -> None:
        """Do as the matcher does, by an episode."""
        episode = self.episodes.draw_middling(rng)
        self.matcher.set_scale(episode.supports, episode.queries, rng)


class PrototypeMatching(MetaLearned[PrototypeMatchingConfig]):
    """The most similar class mean, all in the context of all classes' supports."""

    NAME = "Prototype Matching"

    def new_learner(self, base: BaseSet, rng: torch.Generator) -> PrototypeMatchingNetwork:
        """Draw the network."""
        return PrototypeMatchingNetwork(base, self._config, rng)

    @torch.no_grad()
    def adapt(self, run: LearningRun, task: LowShotTask, rng: torch.Generator) -> None:
        """Encode the supports of every problem, and take class means."""
        assert isinstance(run.learner, PrototypeMatchingNetwork)
        self._matcher = run.learner.matcher
        self._prototypes = encode_problems(
            task, self._config.num_examples, rng, self._matcher.prototypes
        )

    @torch.no_grad()
    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return logits: scaled cosines, or scaled squared distances less than zero."""
        return {OWN: torch.stack([self._matcher.match(each, queries) for each in self._prototypes])}

"""Matching Networks (MN). Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra (2016), Matching
Networks for One Shot Learning.

A recurrent network reads all supports as one sequence, another one lets a query look at them
several times; the query then has the classes of the supports that it resembles, by a softmax over
all of them. `PUBLISHED` is what Hariharan & Girshick (2017) have trained on this benchmark.

Chosen where the source is silent: the supports are read in random order. Chosen otherwise than the
source has it: features are centred, and inner products have a learnt scale; what the recurrent
networks add is multiplied by a learnt gate that starts half open, and inputs have dropout, lest few
base classes are learnt by heart.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import nll_loss

from cpaan.core.settings import Range, SearchSpace
from cpaan.methods.base import MetaLearned
from cpaan.methods.parts.balanced_supports import encode_problems
from cpaan.methods.parts.contextual import ContextEncoders, ContextSettings
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.few_shot_episodes import FewShotEpisodes, percent_right
from cpaan.training.layers import find_log_scale
from cpaan.training.learning import (
    EpisodeRngs,
    EpisodeSettings,
    Learner,
    LearningRun,
    LearningSettings,
)

_LEAST_NORM = 1e-5  # is added to a support's norm, as published


@dataclass(frozen=True, kw_only=True)
class MatchingConfig(ContextSettings, EpisodeSettings, LearningSettings):
    """Everything that decides a Matching Network, apart from features and seed.

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
    scale: Literal["learnt", "one"] = "learnt"
    """What inner products of a query and the supports' directions are multiplied by. Learnt: at the
    start, predictions have half of the entropy that they could have. One, as published."""
    num_examples: int = 20
    """Supports of a class when novel classes are learnt: random train rows of a base class, 100 as
    published; shots are repeated until there are as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_examples")


PUBLISHED = MatchingConfig(
    num_episodes=60_000,
    optimiser="sgd",
    learning_rate=0.1,
    schedule="thirds",
    weight_decay=1e-3,
    num_ways=389,
    episode_shots=tuple(range(1, 11)),
    num_queries=1,
    normalisation="none",
    context_gate=1.0,
    learns_gate=False,
    attention_scale=1.0,
    dropout=0.0,
    scale="one",
    num_examples=100,
)
"""Hariharan & Girshick's recipe."""

SPACE: SearchSpace = {
    "learning_rate": Range(3e-5, 3e-3, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    "context_gate": Range(0.01, 1.0, log=True),
}


def class_log_probabilities(queries: Tensor, supports: Tensor, scale: Tensor) -> Tensor:
    """Return logarithms of class probabilities, shape (Q, N), as `log_softmax` gives them.

    A softmax over all supports of the query's product with each one's direction, summed by class.
    The sums are of logarithms' exponentials, so that a class far from a query keeps a finite score.

    Args:
        queries: Encoded, shape (Q, D); their norms make them more or less certain.
        supports: Encoded, shape (N, K, D).
        scale: What the products are multiplied by.
    """
    norms = supports.norm(dim=-1).flatten() + _LEAST_NORM
    products = scale * (queries @ supports.flatten(0, 1).T) / norms
    return products.unflatten(1, supports.shape[:2]).logsumexp(dim=2).log_softmax(dim=1)


class MatchingNetwork(Learner):
    """The encoders, and the scale of their products."""

    TERMS = ("query_loss", "query_top1")

    def __init__(self, base: BaseSet, config: MatchingConfig, rng: torch.Generator) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If there are too few examples, or they or their squares are not finite.
        """
        super().__init__()
        self.episodes = FewShotEpisodes(base, config)
        self.context = ContextEncoders(base, config, rng)
        self.log_scale = nn.Parameter(torch.zeros(()), requires_grad=config.scale == "learnt")

    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        """Return the surprise at an episode's queries, and how many are right, in percent."""
        episode, rng = self.episodes.draw_next(rngs), rngs.device
        supports = self.context.encode_supports(episode.supports, rng, rng)
        logs = self.log_probabilities(supports, episode.queries, rng)
        return [nll_loss(logs, episode.labels), percent_right(logs, episode.labels)]

    def log_probabilities(
        self, supports: Tensor, queries: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Return logarithms of class probabilities, shape (Q, N).

        Args:
            supports: Encoded, shape (N, K, D).
            queries: As they are, shape (Q, D).
            for_dropout: Given in training.
        """
        encoded = self.context.encode_queries(queries, supports.flatten(0, 1), for_dropout)
        return class_log_probabilities(encoded, supports, self.log_scale.exp())

    @torch.no_grad()
    def set_scale(self, rng: torch.Generator) -> None:
        """Choose the scale at which an episode's predictions have half of the entropy they could.

        Args:
            rng: Decides the episode, and the order of its supports; on their device.
        """
        if not self.log_scale.requires_grad:
            return
        episode = self.episodes.draw_middling(rng)
        supports = self.context.encode_supports(episode.supports, rng)
        queries = self.context.encode_queries(episode.queries, supports.flatten(0, 1)).double()
        supports, one = supports.double(), queries.new_ones(())
        self.log_scale.fill_(
            find_log_scale(lambda scale: class_log_probabilities(queries, supports, scale * one))
        )


class Matching(MetaLearned[MatchingConfig]):
    """The classes of the supports that a query resembles, all in the context of all supports."""

    NAME = "Matching"

    def new_learner(self, base: BaseSet, rng: torch.Generator) -> MatchingNetwork:
        """Draw the network."""
        return MatchingNetwork(base, self._config, rng)

    @torch.no_grad()
    def adapt(self, run: LearningRun, task: LowShotTask, rng: torch.Generator) -> None:
        """Encode the supports of every problem.

        All are kept: at the benchmark's size, 25 problems of 507 classes and 512 dimensions need
        half a gigabyte with 20 supports of a class, and 2.6 with 100.
        """
        assert isinstance(run.learner, MatchingNetwork)
        self._network = run.learner
        self._supports = encode_problems(
            task, self._config.num_examples, rng, self._network.context.encode_supports
        )

    @torch.no_grad()
    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return logarithms of class probabilities."""
        network = self._network
        return {
            OWN: torch.stack([network.log_probabilities(each, queries) for each in self._supports])
        }

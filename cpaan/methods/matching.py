"""Matching Networks (MN). Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra (2016), Matching
Networks for One Shot Learning; and Prototype Matching Networks (PMN). Wang, Girshick, Hebert &
Hariharan (2018), Low-Shot Learning from Imaginary Data.

MN: supports and queries are encoded in the context of all supports; a query then has the classes of
the supports that it resembles, by a softmax over all of them. PMN has the same encoders, but a
class is the mean of its encoded supports, as in Prototypical Networks, and a query's class is that
of the mean it resembles most. `PUBLISHED` is the recipe of Hariharan & Girshick (2017) for MN on
this benchmark; that of Wang et al. for PMN is not known.

Chosen where the sources are silent: supports are read in random order, equally many of every class;
queries of PMN attend to class means and not to all supports, and its similarities are cosines times
a learnt scale, by which centroids without context are better than by distance. Chosen otherwise
than the sources: features are centred, inner products of MN have a learnt scale, the outputs of the
recurrent networks are multiplied by a learnt gate that starts half open, and inputs have dropout,
because few base classes are soon learnt by heart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from cpaan.methods.context import (
    CONTEXT_SPACE,
    PUBLISHED_RECIPE,
    ContextSettings,
    Matcher,
    PrototypeMatcher,
    PrototypeMatchingConfig,
)
from cpaan.methods.table_row import Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.layers import find_log_scale

_LEAST_NORM = 1e-5  # is added to a support's norm, as published


@dataclass(frozen=True, kw_only=True)
class MatchingConfig(ContextSettings):
    """Everything that decides a Matching Network, apart from features and seed."""

    scale: Literal["learnt", "one"] = "learnt"
    """What inner products of a query and the supports' directions are multiplied by. Learnt: at the
    start, predictions have half of the entropy that they could have. One, as published."""


PUBLISHED = MatchingConfig(
    **PUBLISHED_RECIPE,
    num_ways=389,
    episode_shots=tuple(range(1, 11)),
    scale="one",
    num_examples=100,
)
PROTOTYPE_PUBLISHED = PrototypeMatchingConfig(
    **PUBLISHED_RECIPE, episode_shots=(1, 2, 3, 4, 5), distance="euclidean"
)
SPACE: SearchSpace = {**CONTEXT_SPACE, "context_gate": Range(0.01, 1.0, log=True)}


def class_logits(queries: Tensor, supports: Tensor, scale: Tensor) -> Tensor:
    """Return logits of classes, shape (Q, N).

    A softmax over all supports of the query's product with each one's direction, summed by class.
    The sums are of logarithms' exponentials, so that a class far from a query keeps a finite score.

    Args:
        queries: Encoded, shape (Q, D); the larger their norms, the more certain they are.
        supports: Encoded, shape (N, K, D).
        scale: What the products are multiplied by.
    """
    norms = supports.norm(dim=-1).flatten() + _LEAST_NORM
    products = scale * (queries @ supports.flatten(0, 1).T) / norms
    return products.unflatten(1, supports.shape[:2]).logsumexp(dim=2)


class SupportMatcher(Matcher):
    """MN: queries in context have the classes of the single supports that they resemble."""

    def __init__(self, base: BaseSet, config: MatchingConfig, rng: torch.Generator) -> None:
        super().__init__(base, config, rng)
        self.log_scale.requires_grad_(config.scale == "learnt")

    def match(
        self, encoded: Tensor, queries: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Return logits of queries, shape (Q, N), for supports, shape (N, K, D)."""
        in_context = self.encode_queries(queries, encoded.flatten(0, 1), for_dropout)
        return class_logits(in_context, encoded, self.log_scale.exp())

    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Encode the supports; scores are logarithms of class probabilities."""
        logits = super().solve(task, rng)
        return lambda queries: logits(queries).log_softmax(dim=-1)

    @torch.no_grad()
    def set_scale(self, rng: torch.Generator) -> None:
        """Choose the scale at which predictions have half of the possible entropy, if learnt."""
        if not self.log_scale.requires_grad:
            return
        episode = self.episodes.draw_middling(rng)
        encoded = self.encode(episode.supports, rng)
        in_context = self.encode_queries(episode.queries, encoded.flatten(0, 1)).double()
        encoded, one = encoded.double(), in_context.new_ones(())
        self.log_scale.fill_(
            find_log_scale(
                lambda scale: class_logits(in_context, encoded, scale * one).log_softmax(dim=1)
            )
        )


_QUICK: dict[str, Any] = {"num_episodes": 20, "num_ways": 20, "episode_shots": (1, 2)}

ROWS = [
    learned_row(
        "MN",
        SupportMatcher,
        config=MatchingConfig(),
        published=PUBLISHED,
        space=SPACE,
        quick=_QUICK,
    ),
    learned_row(
        "PMN",
        PrototypeMatcher,
        config=PrototypeMatchingConfig(),
        published=PROTOTYPE_PUBLISHED,
        space={**SPACE, "distance": ("cosine", "euclidean")},
        quick=_QUICK,
    ),
]

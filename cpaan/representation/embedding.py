"""A prototypical network on cached features: an embedding in which class means classify well.

Snell, Swersky & Zemel (2017), Prototypical Networks for Few-shot Learning: a small network is
trained by episodes, in each of which queries must be nearer to the mean of their own class's few
supports than to those of other classes. Train rows of base classes are all that it ever sees. What
comes out is a feature table like the one that went in.

Shapes: D = feature dimension, N = ways, K = shots, Q = queries of a class.
"""

import dataclasses
import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpaan.core.randomness import new_rng
from cpaan.data.table import FeatureTable, as_feature_block, finish_fingerprint
from cpaan.protocol.tasks import BaseSet
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.few_shot_episodes import FewShotEpisode, FewShotEpisodes, percent_right
from cpaan.training.layers import Perceptron, find_log_scale
from cpaan.training.learning import EpisodeRngs, LearningRun
from cpaan.training.workers import ALONE, Workers

_ROWS_PER_BLOCK = 8192


def prototype_scores(supports: Tensor, queries: Tensor) -> Tensor:
    """Return minus the mean squared difference of queries and class means, shape (queries, N).

    Args:
        supports: Shape (N, K, D).
        queries: Shape (queries, D).
    """
    prototypes = supports.mean(dim=1)
    # From their middle, distances of points that are far from zero keep their digits.
    middle = prototypes.detach().mean(dim=0)
    prototypes, queries = prototypes - middle, queries - middle
    squared = queries.square().sum(dim=1, keepdim=True) + prototypes.square().sum(dim=1)
    return (2 * queries @ prototypes.T - squared) / queries.shape[1]


class PrototypicalNetwork(Perceptron):
    """The embedding, and what distances in it are multiplied by."""

    TERMS = ("query_loss", "query_top1")

    def __init__(self, base: BaseSet, config: EmbeddingConfig, rng: torch.Generator) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If there are too few examples, or they or their squares are not finite.
        """
        super().__init__(base, config, rng)
        self.episodes = FewShotEpisodes(base, config)
        self.log_scale = nn.Parameter(torch.zeros(()))

    @torch.no_grad()
    def embed(self, rows: Tensor) -> Tensor:
        """Embed rows of any shape (..., D), block by block: there may be many."""
        blocks = rows.flatten(0, -2).split(_ROWS_PER_BLOCK)
        return torch.cat([self(block) for block in blocks]).view(rows.shape)

    def embed_base(self, base: BaseSet) -> BaseSet:
        """Embed all rows of base classes: a gigabyte at the paper's scale.

        In the order of names: on a GPU, the last bits of a row depend on its place among others,
        and base classes must be the same to the last bit in both phases.
        """
        ordered = base.in_order_of_names()
        parts = self.embed(ordered.features).split(ordered.counts.tolist())
        part_of = {name: part for name, part in zip(ordered.names, parts, strict=True)}
        return BaseSet(torch.cat([part_of[name] for name in base.names]), base.counts, base.names)

    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        """Return the cross-entropy of an episode's queries, and how many are right, in percent."""
        episode = self.episodes.draw_next(rngs)
        scores = self.scores(episode, rngs.device)
        return [cross_entropy(scores, episode.labels), percent_right(scores, episode.labels)]

    def scores(self, episode: FewShotEpisode, rng: torch.Generator | None = None) -> Tensor:
        """Return scores of an episode's queries, shape (N * Q, N): logarithms of odds."""
        scores = prototype_scores(self(episode.supports, rng), self(episode.queries, rng))
        return self.log_scale.exp() * scores

    @torch.no_grad()
    def set_scale(self, rng: torch.Generator) -> None:
        """Choose the scale at which predictions have half of the entropy that they could."""
        episode = self.episodes.draw_middling(rng)
        scores = prototype_scores(self(episode.supports), self(episode.queries)).double()
        unit = scores.abs().mean().clamp(min=torch.finfo(torch.float32).tiny)
        log_scale = find_log_scale(lambda scale: (scale / unit * scores).log_softmax(dim=1))
        self.log_scale.fill_(log_scale - unit.log())


class EmbeddingRun(LearningRun):
    """Training of one embedding."""

    network: PrototypicalNetwork

    def __init__(
        self, base: BaseSet, config: EmbeddingConfig, seed: int, workers: Workers = ALONE
    ) -> None:
        """Draw the weights; ``base`` says on which device to train.

        Raises:
            ValueError: If there are too few examples, or they are not finite.
        """
        self.network = PrototypicalNetwork(base, config, new_rng(seed, 0))
        super().__init__("the embedding", self.network, base, config, seed, workers)


@torch.no_grad()
def embed_table(run: EmbeddingRun, table: FeatureTable) -> FeatureTable:
    """Return a table of the same rows, embedded.

    Features have the precision of the table, or float32 where float16 cannot hold a value. Where
    the backbone's classes are known, the base classes that the embedding knows are among them.

    Raises:
        ValueError: If the features have another dimension than those that the run was trained
            on, or an embedded one is not finite.
    """
    num_dims = run.base.features.shape[1]
    if table.num_dims != num_dims:
        raise ValueError(
            f"the features have {table.num_dims} dimensions, but the embedding was trained on "
            f"{num_dims}"
        )
    features = np.empty(table.features.shape, dtype=table.features.dtype)
    largest = np.finfo(features.dtype).max
    for start in range(0, len(features), _ROWS_PER_BLOCK):
        rows = np.arange(start, min(start + _ROWS_PER_BLOCK, len(features)))
        embedded = run.network(table.gather(rows).to(run.device)).cpu().numpy()
        block = as_feature_block(embedded, first_row=start)
        if np.abs(block).max() > largest:
            features, largest = features.astype(np.float32), np.finfo(np.float32).max
        features[rows] = block
    known = table.backbone_classes
    return dataclasses.replace(
        table,
        features=features,
        backbone=f"{table.backbone or 'unknown backbone'}, embedded by a prototypical network, "
        f"{run.episode} episodes, seed {run.seed}",
        backbone_classes=None if known is None else known | set(run.base.names),
        fingerprint=finish_fingerprint(
            hashlib.blake2b(features.data, digest_size=16),
            table.labels,
            table.is_train,
            table.class_names,
        ),
    )

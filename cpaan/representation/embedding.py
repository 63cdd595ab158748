"""A prototypical network on cached features: an embedding in which class means classify well.

Snell, Swersky & Zemel (2017), Prototypical Networks for Few-shot Learning. In each episode, queries
must be nearer to the mean of the few supports of their own class than to those of other classes.
The network is trained only on train rows of base classes.

Shapes: D = feature dimension, N = ways, K = shots, Q = queries of a class.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cpaan.core.randomness import new_rng
from cpaan.data.splits import Split
from cpaan.data.table import FeatureTable, as_feature_block
from cpaan.protocol.tasks import BaseSet, read_base
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.feature_folder import read_made, write_made
from cpaan.training.drive import Progress, train_to_end
from cpaan.training.few_shot_episodes import FewShotEpisode, FewShotEpisodes, FewShotLearner
from cpaan.training.layers import Perceptron, find_log_scale
from cpaan.training.learning import LearningRun
from cpaan.training.workers import ALONE, Workers

EMBEDDING = "embedding.pt"
_ROWS_PER_BLOCK = 8192


def prototype_scores(supports: Tensor, queries: Tensor) -> Tensor:
    """Return minus the mean squared difference of queries and class means, shape (queries, N).

    Supports have the shape (N, K, D), queries (queries, D).
    """
    prototypes = supports.mean(dim=1)
    # Centring keeps the precision of distances between points far from zero.
    middle = prototypes.detach().mean(dim=0)
    prototypes, queries = prototypes - middle, queries - middle
    squared = queries.square().sum(dim=1, keepdim=True) + prototypes.square().sum(dim=1)
    return (2 * queries @ prototypes.T - squared) / queries.shape[1]


class PrototypicalNetwork(Perceptron, FewShotLearner):
    """The embedding, and a learned scale of its distances."""

    def __init__(self, base: BaseSet, config: EmbeddingConfig, rng: torch.Generator) -> None:
        super().__init__(base, config, rng)
        self.episodes = FewShotEpisodes(base, config)
        self.log_scale = nn.Parameter(torch.zeros(()))

    @torch.no_grad()
    def embed(self, rows: Tensor) -> Tensor:
        """Embed rows of any shape (..., D), in blocks to bound memory."""
        blocks = rows.flatten(0, -2).split(_ROWS_PER_BLOCK)
        return torch.cat([self(block) for block in blocks]).view(rows.shape)

    def embed_base(self, base: BaseSet) -> BaseSet:
        """Embed all rows of base classes, in name order.

        On a GPU, the last bits of a row depend on its position among the others. Base classes must
        be bit-identical in both phases.
        """
        ordered = base.in_order_of_names()
        parts = self.embed(ordered.features).split(ordered.counts.tolist())
        part_of = dict(zip(ordered.names, parts, strict=True))
        return BaseSet(torch.cat([part_of[name] for name in base.names]), base.counts, base.names)

    def draw_logits(self, num_shots: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an episode; return its scores and labels."""
        episode = self.episodes.draw(num_shots, rng)
        return self.scores(episode, rng), episode.labels

    def scores(self, episode: FewShotEpisode, rng: torch.Generator | None = None) -> Tensor:
        """Return logits of an episode's queries, shape (N * Q, N)."""
        scores = prototype_scores(self(episode.supports, rng), self(episode.queries, rng))
        return self.log_scale.exp() * scores

    @torch.no_grad()
    def set_scale(self, rng: torch.Generator) -> None:
        """Set the scale so that predictions have half of the largest entropy."""
        episode = self.episodes.draw_with_median_shots(rng)
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
        self.network = PrototypicalNetwork(base, config, new_rng(seed, 0))
        super().__init__("the embedding", self.network, base, config, seed, workers)


@torch.no_grad()
def embed_table(run: EmbeddingRun, table: FeatureTable) -> FeatureTable:
    """Return a table of the same rows, embedded. Dimensions must match those of the embedding.

    Features have the precision of the table, or float32 if float16 cannot hold a value. If the
    classes of the backbone are known, the base classes of the embedding are added to them.
    """
    # Unlike np.empty, zeros can be cast without warnings before they are overwritten.
    features = np.zeros(table.features.shape, dtype=table.features.dtype)
    largest = np.finfo(features.dtype).max
    for start in range(0, len(features), _ROWS_PER_BLOCK):
        rows = np.arange(start, min(start + _ROWS_PER_BLOCK, len(features)))
        embedded = run.network(table.gather(rows).to(run.device)).cpu().numpy()
        block = as_feature_block(embedded, first_row=start)
        if np.abs(block).max() > largest:
            features, largest = features.astype(np.float32), np.finfo(np.float32).max
        features[rows] = block
    known = table.backbone_classes
    return table.with_changes(
        features=features,
        backbone=f"{table.backbone or 'unknown backbone'}, embedded by a prototypical network, "
        f"{run.episode} episodes, seed {run.seed}",
        backbone_classes=None if known is None else known | set(run.base.names),
    )


def embed(
    table: FeatureTable,
    split: Split,
    config: EmbeddingConfig,
    seed: int,
    out: Path,
    *,
    origin: Mapping[str, Any],
    device: torch.device,
    progress: Progress,
) -> tuple[FeatureTable, dict[str, Any]]:
    """Train an embedding on the base classes' train rows, and write the embedded table.

    Resumes a previous run in the folder ``out``. It holds ``features.parquet``, ``about.json`` and
    ``embedding.pt`` in the end. ``origin`` is the provenance of the table. Returns the embedded
    table and its provenance.
    """
    job = {"features": table.fingerprint, "seed": seed, **config.to_dict()}
    if made := read_made(out, job, out / EMBEDDING, progress):
        return made
    base_classes = sorted(split.base_classes())
    run = EmbeddingRun(read_base(table, base_classes, device), config, seed)
    train_to_end(run, out / EMBEDDING, progress=progress)
    embedded = embed_table(run, table)
    return embedded, write_made(out, embedded, job, base_classes, made_from=origin)

"""Prototypical Networks (PN). Snell, Swersky & Zemel (2017), Prototypical Networks for Few-shot
Learning.

A small network embeds the features, trained by episodes in which queries must be nearer to their
own class's mean of a few supports than to others'; novel classes are then learnt by their means in
the embedding. Wang et al. (2018) have two layers with a ReLU between on cached features, as we do.

Chosen where the source is silent on this benchmark: squared distances are means over dimensions
times a learnt scale; the network is a residual one with dropout, onto a sphere, because the plain
one (`EmbeddingConfig.plain`) learns a small data set's train rows by heart. Prototypes of base
classes are means of all their train rows. The learning rate falls along a half-cosine, also in
`PUBLISHED`, where the source halves it every 2,000 episodes.
"""

import torch

from cpaan.core.randomness import spawn
from cpaan.core.settings import Choice, Range, SearchSpace
from cpaan.methods.embedded import Embedded
from cpaan.protocol.tasks import BaseSet
from cpaan.representation.config import EmbeddingConfig
from cpaan.training.learning import Run
from cpaan.training.workers import ALONE, Workers

PUBLISHED = EmbeddingConfig.plain()
SPACE: SearchSpace = {
    "learning_rate": Range(3e-4, 1e-2, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    "output": Choice("sphere", "linear"),
}


class Prototypical(Embedded):
    """Heads on embedded features; the embedding is what is trained."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return the run of the embedding."""
        for_embedding, _ = spawn(rng, 2)
        return self._training.begin(base, for_embedding, workers)

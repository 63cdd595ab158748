"""Similarity of classes on a GPU: the search for a temperature in a few kernels."""

from torch import Tensor

from cpaan.gan.fast.kernels.episodes import soft_similarity
from cpaan.protocol import neighbours
from cpaan.protocol.config import NeighbourSettings


def similarity(novel: Tensor, base: Tensor, settings: NeighbourSettings) -> Tensor:
    """Compute `cpaan.protocol.neighbours.similarity`, with kernels if there are any for it."""
    scores: Tensor | None = None
    if settings.neighbours == "soft" and settings.perplexity is not None:
        scores = soft_similarity(
            novel, base, settings.perplexity, neighbours.TEMPERATURES, neighbours.PASSES
        )
    return neighbours.similarity(novel, base, settings) if scores is None else scores

"""Denoising weights (wDAE). After Gidaris & Komodakis (2019), Generating Classification Weights
with GNN Denoising Autoencoders for Few-Shot Learning.

The weights of a cosine classifier are estimated first, for base classes from all examples and for
novel classes from the mean of the shots. A graph network, in which a class receives messages from
its nearest classes, then corrects them. Its episodes treat base classes as novel. It learns to
restore base weights from noisy ones and to classify queries.

Differences from the source:
* Base weights are mean directions of centred, cached features, not those of a cosine classifier
  trained with the backbone. Corrections start at zero, so they are not normalised before the gate.
* Layer normalisation replaces batch normalisation, because the classes at test differ.
* Hidden layers are narrower, there is less noise, and episodes have several numbers of shots.
"""

import math
from bisect import bisect
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, leaky_relu, normalize

from cpaan.methods.fake_novel import FakeNovelSettings, WeightLearner
from cpaan.methods.table_row import Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet
from cpaan.training.layers import draw_linear, drop, set_to_zero

_SHOTS = (1, 2, 5, 10, 20)  # for which the source states shares of the correction


@dataclass(frozen=True, kw_only=True)
class DenoisingWeightsConfig(FakeNovelSettings):
    """Settings of the denoising network and its training."""

    num_episodes: int = 500
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    novel_share: float = 200 / 389
    num_layers: int = 2
    """Rounds of messages between classes."""
    hidden_dim: int = 256
    """Dimension of a message, and of the state that each round adds to a class."""
    num_neighbours: int = 10
    """Nearest classes, by cosine, that send messages to a class; all others if there are fewer."""
    temperature: float = 5.0
    """Factor of cosines in the softmax over messages; larger values favour the nearest class."""
    noise: float = 0.02
    """Standard deviation of the noise added in training to each dimension of a unit-length weight.
    With 512 dimensions, noise at the source's 0.08 is longer than the weight itself."""
    message_dropout: float = 0.7
    """Dropout rate of hidden units in training."""
    reconstruction_weight: float = 1.0
    """Weight of the squared distance to the weights computed from all examples of a class."""
    episodes_per_step: int = 1
    """Episodes whose losses are averaged in a training step; ``num_episodes`` counts steps."""
    corrections: tuple[float, ...] = (1.0,)
    """Shares of the correction that are applied at test, from 1, 2, 5, 10 and 20 shots on. The last
    share also holds for more shots."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_layers", "hidden_dim", "num_neighbours", "temperature")
        self._refuse_unless_positive("episodes_per_step")
        self._refuse(
            ["corrections"],
            lambda shares: 0 < len(shares) <= len(_SHOTS) and min(shares) > 0 and max(shares) <= 1,
            f"1 to {len(_SHOTS)} numbers above 0 and at most 1",
        )
        self._refuse_negative("noise", "reconstruction_weight")
        self._refuse_unless_below_one("message_dropout")


PUBLISHED = DenoisingWeightsConfig(
    num_episodes=15_000,
    episodes_per_step=4,
    optimiser="nesterov",
    learning_rate=0.01,  # the schedule of the source overrides the rate of 0.1 in its file
    schedule="last-third",
    weight_decay=5e-4,
    centred=False,
    episode_shots=(1,),
    num_queries=1,
    hidden_dim=1536,
    noise=0.08,
    corrections=(1.0, 1.0, 0.6, 0.4, 0.2),
)
SPACE: SearchSpace = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "noise": Range(0.005, 0.1, log=True),
    "hidden_dim": Range(64, 1024, log=True),
    "message_dropout": Range(0.0, 0.9),
    "reconstruction_weight": Range(0.1, 10.0, log=True),
}


def neighbours_of(
    weights: Tensor, num_neighbours: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the positions of each class's nearest other classes, and their softmax weights.

    Both have shape (classes, neighbours), for unit-length weights (classes, D).
    """
    cosines = weights @ weights.T
    cosines = cosines.masked_fill(torch.eye(len(weights), device=weights.device).bool(), -math.inf)
    nearest = cosines.topk(min(num_neighbours, len(weights) - 1), dim=-1)
    return nearest.indices, (temperature * nearest.values).softmax(dim=-1)


class Messages(nn.Module):
    """One round of messages: each pair of neighbours makes one, and a class receives their mean."""

    def __init__(self, num_in: int, num_out: int, dropout: float, rng: torch.Generator) -> None:
        super().__init__()
        self._dropout = dropout
        self.pair = draw_linear(num_in, num_out, rng)

    def forward(
        self, states: Tensor, nearest: Tensor, shares: Tensor, rng: torch.Generator | None = None
    ) -> Tensor:
        """Return the mean message of each class, (classes, out), from states (classes, in)."""
        ends = self.pair(states)  # shared by both ends of a pair, whose outputs are added
        messages = _activate(ends.unsqueeze(1) + ends[nearest], self._dropout, rng)
        return (shares.unsqueeze(-1) * messages).sum(dim=1)


class DenoisingNetwork(WeightLearner):
    """The graph network, with constant weights of base classes."""

    TERMS = ("loss", "query_loss", "reconstruction")

    _config: DenoisingWeightsConfig
    base_weights: Tensor

    def __init__(self, base: BaseSet, config: DenoisingWeightsConfig, rng: torch.Generator) -> None:
        super().__init__(base, config)
        self.register_buffer("base_weights", self.class_directions(base))
        num_dims, hidden, share = base.features.shape[1], config.hidden_dim, config.message_dropout
        self.messages = nn.ModuleList()
        self.updates = nn.ModuleList()
        width = num_dims
        for number in range(config.num_layers):
            self.messages.append(Messages(width, hidden, share, rng))
            if number < config.num_layers - 1:
                self.updates.append(draw_linear(width + hidden, hidden, rng))
                width += hidden
        self.correction = draw_linear(width + hidden, num_dims, rng)
        self.gate = draw_linear(width + hidden, num_dims, rng)
        set_to_zero(self.correction)

    def denoise(self, estimates: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Correct unit-length weights, shape (classes, D); an rng adds the noise of training."""
        config = self._config
        # Neighbours come from the weights without noise, so that noise does not change the graph.
        graph = neighbours_of(estimates, config.num_neighbours, config.temperature)
        if rng is not None and config.noise:
            noise = torch.randn(estimates.shape, generator=rng, device=estimates.device)
            estimates = normalize(estimates + config.noise * noise, dim=-1)
        states = estimates
        for number, messages in enumerate(self.messages):
            heard = torch.cat([states, messages(states, *graph, rng)], dim=-1)
            if number < len(self.updates):
                kept = _activate(self.updates[number](heard), config.message_dropout, rng)
                # Length one again, like the first states.
                states = torch.cat([states, normalize(kept, dim=-1)], dim=-1) / math.sqrt(2)
        return normalize(estimates + self.gate(heard).sigmoid() * self.correction(heard), dim=-1)

    def weights(self, base: Tensor, supports: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return the corrected weights of base and then novel classes, shape (B + N, D)."""
        estimates = torch.cat([self.base_weights[base], supports.mean(dim=1)])
        estimates = normalize(estimates, dim=-1)
        weights = self.denoise(estimates, rng)
        if rng is not None:
            return weights
        shares = self._config.corrections
        share = shares[min(bisect(_SHOTS, supports.shape[1]), len(shares)) - 1]
        return estimates.lerp(weights, share)

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Return the loss, the cross-entropy of the queries and the squared distance of weights."""
        episodes = [self._terms_of_one(shape, rng) for _ in range(self._config.episodes_per_step)]
        return list(torch.stack([torch.stack(terms) for terms in episodes]).mean(dim=0))

    def _terms_of_one(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        episode = self.draw(shape, rng)
        weights = self.weights(episode.classes[: -self._num_novel], episode.supports, rng)
        query_loss = cross_entropy(self.scores(episode.queries, weights), episode.labels)
        errors = weights - self.base_weights[episode.classes]
        reconstruction = errors.square().sum(dim=-1).mean()
        loss = query_loss + self._config.reconstruction_weight * reconstruction
        return [loss, query_loss, reconstruction]


def _activate(values: Tensor, dropout: float, rng: torch.Generator | None) -> Tensor:
    return leaky_relu(drop(layer_norm(values, values.shape[-1:]), dropout, rng), 0.01)


ROWS = [
    learned_row(
        "wDAE",
        "denoising autoencoder of weights, Gidaris et al. 2019",
        DenoisingNetwork,
        DenoisingWeightsConfig(),
        PUBLISHED,
        SPACE,
        {"num_episodes": 100},
        group="Later",
        is_printed=False,
    )
]

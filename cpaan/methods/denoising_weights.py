"""Denoising weights (wDAE). In the manner of Gidaris & Komodakis (2019), Generating Classification
Weights with GNN Denoising Autoencoders for Few-Shot Learning.

Weights of a cosine classifier are estimated first: base classes' by all of their examples, novel
ones' by the mean of their shots. A graph network, in which a class hears of its nearest classes,
then corrects all of them. It learns, by episodes that take base classes for novel, to bring back
the base classes' weights from noisy ones, and to classify queries with what it returns.

What differs from the source: its base weights are those of a cosine classifier that was trained
with the backbone, ours are mean directions of cached features, seen from the middle of the classes.
Corrections start at zero, so they are not brought to length one before they are gated; layers are
normalised one by one and not over a batch, which in use would be of other classes; hidden layers
are narrower, and there is less noise. One model serves all numbers of shots.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, layer_norm, leaky_relu, normalize

from cpaan.methods.fake_novel import FakeNovelSettings, WeightLearner
from cpaan.methods.table_row import Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet
from cpaan.training.layers import draw_linear, drop, set_to_zero


@dataclass(frozen=True, kw_only=True)
class DenoisingWeightsConfig(FakeNovelSettings):
    """Everything that decides the denoising, apart from features and seed."""

    num_episodes: int = 500
    learning_rate: float = 3e-4
    weight_decay: float = 0.1
    novel_share: float = 200 / 389
    num_layers: int = 2
    """Rounds of messages between classes."""
    hidden_dim: int = 256
    """Numbers of a message, and of what a class keeps of the messages of a round."""
    num_neighbours: int = 10
    """Classes that a class hears of: the nearest by cosine; all others where there are fewer."""
    temperature: float = 5.0
    """What cosines are multiplied by in the softmax that weighs messages."""
    noise: float = 0.02
    """Standard deviation of what is added, in training, to every number of a weight of length one.
    The source's 0.08 is longer than the weight itself where there are 512 dimensions."""
    message_dropout: float = 0.7
    """Share of hidden numbers that is left out in training."""
    reconstruction_weight: float = 1.0
    """Of the squared distance to the weights that all of a class's examples give."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_layers", "hidden_dim", "num_neighbours", "temperature")
        self._refuse_negative("noise", "reconstruction_weight")
        self._refuse_unless_below_one("message_dropout")


PUBLISHED = DenoisingWeightsConfig(
    num_episodes=60_000,
    # The source's 0.1, with Nesterov's momentum; here dampening takes nine tenths of a step.
    optimiser="sgd",
    learning_rate=1.0,
    schedule="thirds",
    weight_decay=5e-4,
    centred=False,
    num_queries=1,
    hidden_dim=1536,
    noise=0.08,
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
    """Return positions of each class's nearest other classes, and the share of each.

    Both have the shape (classes, neighbours), for weights (classes, D) of length one.
    """
    cosines = weights @ weights.T
    cosines = cosines.masked_fill(torch.eye(len(weights), device=weights.device).bool(), -math.inf)
    nearest = cosines.topk(min(num_neighbours, len(weights) - 1), dim=-1)
    return nearest.indices, (temperature * nearest.values).softmax(dim=-1)


class Messages(nn.Module):
    """A round of messages: each pair of neighbours makes one, and a class hears their mean."""

    def __init__(self, num_in: int, num_out: int, dropout: float, rng: torch.Generator) -> None:
        super().__init__()
        self._dropout = dropout
        self.pair = draw_linear(num_in, num_out, rng)

    def forward(
        self, states: Tensor, nearest: Tensor, shares: Tensor, rng: torch.Generator | None = None
    ) -> Tensor:
        """Return what classes hear, shape (classes, messages), of states (classes, in)."""
        ends = self.pair(states)  # the same for both ends of a pair, which are then added
        messages = _activate(ends.unsqueeze(1) + ends[nearest], self._dropout, rng)
        return (shares.unsqueeze(-1) * messages).sum(dim=1)


class DenoisingNetwork(WeightLearner):
    """The graph network, and the base classes' weights, which are constants."""

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
        """Correct weights of length one, shape (classes, D); with an rng, as in training."""
        config = self._config
        # Before there is noise: who is near is no part of what has to be learnt.
        graph = neighbours_of(estimates, config.num_neighbours, config.temperature)
        if rng is not None and config.noise:
            noise = torch.randn(estimates.shape, generator=rng, device=estimates.device)
            estimates = normalize(estimates + config.noise * noise, dim=-1)
        states = estimates
        for number, messages in enumerate(self.messages):
            heard = torch.cat([states, messages(states, *graph, rng)], dim=-1)
            if number < len(self.updates):
                kept = _activate(self.updates[number](heard), config.message_dropout, rng)
                # Of length one again, as the first states are.
                states = torch.cat([states, normalize(kept, dim=-1)], dim=-1) / math.sqrt(2)
        return normalize(estimates + self.gate(heard).sigmoid() * self.correction(heard), dim=-1)

    def weights(self, base: Tensor, supports: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return corrected weights of base classes and of novel ones, shape (B + N, D)."""
        estimates = torch.cat([self.base_weights[base], supports.mean(dim=1)])
        return self.denoise(normalize(estimates, dim=-1), rng)

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Return the loss, the queries' cross-entropy and the squared distance of weights."""
        episode = self.draw(shape, rng)
        weights = self.weights(episode.base, episode.supports, rng)
        query_loss = cross_entropy(self.scores(episode.queries, weights), episode.labels)
        wanted = self.base_weights[torch.cat([episode.base, episode.novel])]
        reconstruction = (weights - wanted).square().sum(dim=-1).mean()
        loss = query_loss + self._config.reconstruction_weight * reconstruction
        return [loss, query_loss, reconstruction]


def _activate(values: Tensor, dropout: float, rng: torch.Generator | None) -> Tensor:
    return leaky_relu(drop(layer_norm(values, values.shape[-1:]), dropout, rng), 0.01)


ROWS = [
    learned_row(
        "wDAE",
        DenoisingNetwork,
        DenoisingWeightsConfig(),
        PUBLISHED,
        SPACE,
        {"num_episodes": 100},
        group="Later",
        is_printed=False,
    )
]

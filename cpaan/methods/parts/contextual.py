"""Examples in the context of all others: what Matching and Prototype Matching Networks share.

Vinyals, Blundell, Lillicrap, Kavukcuoglu & Wierstra (2016), Matching Networks for One Shot
Learning: a support is encoded by a recurrent network that reads all supports as one sequence, a
query by one that looks at the encoded supports several times. Wang, Girshick, Hebert & Hariharan
(2018), Low-Shot Learning from Imaginary Data, then take each class's mean for the class.

Shapes: D = feature dimension, N = classes, K = supports of a class, Q = queries.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cpaan.core.settings import Settings
from cpaan.protocol.tasks import BaseSet
from cpaan.representation.embedding import prototype_scores
from cpaan.training.layers import Normalising, draw_weights, drop, find_log_scale


@dataclass(frozen=True, kw_only=True)
class ContextSettings(Settings):
    """How examples are encoded in the context of others.

    Raises:
        ValueError: If a value makes no sense.
    """

    normalisation: Literal["centred", "none"] = "centred"
    """Of features before the encoders. Centred: on the mean of the base prototypes, then scaled by
    one number so that a base example's mean squared distance to its class mean is D."""
    context_gate: float = 0.5
    """What the recurrent networks' outputs are multiplied by, when training starts, before they are
    added to an example: 0 for no context at all, 1 as published."""
    learns_gate: bool = True
    """Whether that number is learnt; if not, it stays."""
    num_read_outs: int = 5
    """How often a query looks at the supports."""
    attention_scale: float = 0.05
    """What inner products are multiplied by before the softmax of a query's attention: 1 as
    published, where one support has all of it; about 1 / sqrt(D) shares it."""
    dropout: float = 0.5
    """Share of every example's features that is left out in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_read_outs", "attention_scale")
        self._refuse_negative("context_gate")
        self._refuse_unless_below_one("dropout")


@dataclass(frozen=True, kw_only=True)
class MatcherSettings(ContextSettings):
    """How queries are matched with class means in context.

    Raises:
        ValueError: If a value makes no sense.
    """

    distance: Literal["cosine", "euclidean"] = "cosine"
    """Of a query and a class: a cosine, or minus the mean squared difference over dimensions;
    either is multiplied by a learnt scale."""


class SupportEncoder(nn.Module):
    """A bidirectional LSTM reads the supports one after the other: g_i = x_i + →h_i + ←h_i."""

    def __init__(self, num_dims: int, config: ContextSettings, rng: torch.Generator) -> None:
        """Draw the weights, as PyTorch's own LSTM does; ``rng`` is on the CPU."""
        super().__init__()
        self.lstm = nn.LSTM(num_dims, num_dims, bidirectional=True, device="meta")
        self.gate = _new_gate(config)
        _draw_weights(self.lstm, rng)

    def forward(self, supports: Tensor) -> Tensor:
        """Encode sequences of supports, shape (length, sequences, D); their order matters."""
        forwards, backwards = self.lstm(supports)[0].chunk(2, dim=-1)
        return supports + self.gate * (forwards + backwards)


class QueryEncoder(nn.Module):
    """An LSTM that is given, step after step, the query and what it has read out of a memory.

    Before each step the state h attends to the memory, r = softmax(scale · h·Mᵀ) M; then
    (h, c) = LSTM([x; r], (h, c)) and h ← h + x. It starts with h = x and c = 0.
    """

    def __init__(self, num_dims: int, config: ContextSettings, rng: torch.Generator) -> None:
        """Draw the weights, as PyTorch's own LSTM does; ``rng`` is on the CPU."""
        super().__init__()
        self._config = config
        self.cell = nn.LSTMCell(2 * num_dims, num_dims, device="meta")
        self.gate = _new_gate(config)
        _draw_weights(self.cell, rng)

    def forward(self, queries: Tensor, memory: Tensor) -> Tensor:
        """Encode queries, shape (Q, D), that look at a memory, shape (entries, D)."""
        hidden, cell = queries, torch.zeros_like(queries)
        for _ in range(self._config.num_read_outs):
            read_out = self.read_out(hidden, memory)
            output, cell = self.cell(torch.cat([queries, read_out], dim=1), (hidden, cell))
            hidden = queries + self.gate * output
        return hidden

    def read_out(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Return means of the memory, weighted by attention, shape (Q, D)."""
        return (self._config.attention_scale * hidden @ memory.T).softmax(dim=1) @ memory


class ContextEncoders(Normalising):
    """Normalisation, dropout, and the encoders of supports and queries."""

    def __init__(self, base: BaseSet, config: ContextSettings, rng: torch.Generator) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If examples or their squares are not finite.
        """
        super().__init__()
        self._dropout = config.dropout
        self.set_normalisation(base, config.normalisation)
        num_dims = base.features.shape[1]
        self.of_supports = SupportEncoder(num_dims, config, rng)
        self.of_queries = QueryEncoder(num_dims, config, rng)

    def encode_supports(
        self, supports: Tensor, rng: torch.Generator, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Encode the supports of one problem or several, each a sequence in random order.

        Args:
            supports: Shape (N, K, D), or (problems, N, K, D).
            rng: Decides the order of each sequence; on the device of the supports.
            for_dropout: Given in training.

        Returns:
            Encoded supports in the order in which they were given, of the same shape.
        """
        *problems, num_classes, num_shots, num_dims = supports.shape
        sequences = self._prepare(supports, for_dropout).view(-1, num_classes * num_shots, num_dims)
        keys = torch.rand(sequences.shape[:2], generator=rng, device=supports.device)
        order = keys.argsort(dim=1)
        shuffled = sequences.gather(1, order.unsqueeze(-1).expand_as(sequences))
        encoded = self.of_supports(shuffled.transpose(0, 1).contiguous()).transpose(0, 1)
        back = order.argsort(dim=1).unsqueeze(-1).expand_as(sequences)
        return encoded.gather(1, back).view(*problems, num_classes, num_shots, num_dims)

    def encode_queries(
        self, queries: Tensor, memory: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Encode queries, shape (Q, D), in the context of what is encoded, shape (entries, D)."""
        return self.of_queries(self._prepare(queries, for_dropout), memory)

    def _prepare(self, features: Tensor, rng: torch.Generator | None) -> Tensor:
        return drop(self.normalise(features), self._dropout, rng)


class PrototypeMatcher(nn.Module):
    """Matches queries in context with class means of supports in context.

    ν_k is the mean of class k's encoded supports. Queries attend to these means and not to all
    supports: that is cheap, and every class counts alike.
    """

    def __init__(self, base: BaseSet, config: MatcherSettings, rng: torch.Generator) -> None:
        """Draw the weights; ``rng`` is on the CPU. See `set_scale` for the rest.

        Raises:
            ValueError: If examples or their squares are not finite.
        """
        super().__init__()
        self._distance = config.distance
        self.context = ContextEncoders(base, config, rng)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def scores(self, supports: Tensor, queries: Tensor, rng: torch.Generator) -> Tensor:
        """Return logits of an episode of training, shape (Q, N).

        Args:
            supports: Shape (N, K, D).
            queries: Shape (Q, D).
            rng: Decides the order of the supports, and dropout; on their device.
        """
        prototypes = self.prototypes(supports, rng, rng)
        return self.match(prototypes, queries, rng)

    def prototypes(
        self, supports: Tensor, rng: torch.Generator, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Return ν for one problem or several, shape (..., N, D).

        Args:
            supports: Shape (N, K, D), or (problems, N, K, D).
            rng: Decides the order of the supports; on their device.
            for_dropout: Given in training.
        """
        return self.context.encode_supports(supports, rng, for_dropout).mean(dim=-2)

    def match(
        self, prototypes: Tensor, queries: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        """Return logits of queries, shape (Q, N), for encoded class means, shape (N, D)."""
        return self.log_scale.exp() * self._similarities(prototypes, queries, for_dropout)

    def _similarities(
        self, prototypes: Tensor, queries: Tensor, for_dropout: torch.Generator | None = None
    ) -> Tensor:
        encoded = self.context.encode_queries(queries, prototypes, for_dropout)
        if self._distance == "cosine":
            return normalize(encoded, dim=1) @ normalize(prototypes, dim=1).T
        return prototype_scores(prototypes.unsqueeze(1), encoded)

    @torch.no_grad()
    def set_scale(self, supports: Tensor, queries: Tensor, rng: torch.Generator) -> None:
        """Choose the scale at which an episode's predictions have half of the entropy they could.

        Args:
            supports: Shape (N, K, D).
            queries: Shape (Q, D).
            rng: Decides the order of the supports; on their device.
        """
        similarities = self._similarities(self.prototypes(supports, rng), queries).double()
        self.log_scale.fill_(
            find_log_scale(lambda scale: (scale * similarities).log_softmax(dim=1))
        )


def _new_gate(config: ContextSettings) -> nn.Parameter:
    return nn.Parameter(torch.tensor(float(config.context_gate)), requires_grad=config.learns_gate)


def _draw_weights(module: nn.LSTM | nn.LSTMCell, rng: torch.Generator) -> None:
    """Draw weights of a module that was made without memory, and so without global randomness."""
    module.to_empty(device="cpu")
    draw_weights(module, module.hidden_size, rng)

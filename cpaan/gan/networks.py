"""The generators G_n, G_b and the discriminators D_n, D_b.

All are three-layer perceptrons with leaky ReLU and without batch normalisation. Weights are drawn
from an ``rng`` on the CPU, with the distribution of PyTorch's linear layers.

Shapes: N = novel classes, M = examples translated into each, D = feature dimension, H = hidden
dimension, Z = noise dimension, K = shots.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cpaan.gan.config import TrainConfig
from cpaan.gan.fast.answers import answer_keys
from cpaan.gan.fast.kernels import kernels_for
from cpaan.gan.fast.pair_ops import Shared
from cpaan.gan.fast.perceptron import Activation, Layer, Question, perceptron, perceptron_for
from cpaan.training.layers import draw_linear, set_to_zero


class Chosen(NamedTuple):
    """One of a few examples of the class, for every pair."""

    table: Tensor  # (N, K, D)
    places: Tensor  # (N, M) from 0 to K - 1


Projected = tuple[Tensor, Tensor]
"""Products of source and target prototypes with the weights of a generator's first layer."""


class Generator(nn.Module):
    """Network that translates examples from one class to another.

    The paper's first layer takes the concatenation of example, prototypes and noise, which equals
    a sum of one product for each. So inputs that pairs of a class and an example share are
    multiplied once. Only inputs that differ between pairs are multiplied for every pair.
    """

    def __init__(
        self,
        num_dims: int,
        noise_dim: int,
        config: TrainConfig,
        is_positive: bool,
        rng: torch.Generator,
    ) -> None:
        """Draw the initial weights; with a ``noise_dim`` of zero, the generator has no noise."""
        super().__init__()
        width = config.hidden_dim
        num_inputs = 3 * num_dims + noise_dim
        self.residual = config.residual
        self.rectified = config.output == "relu" or (config.output == "match" and is_positive)
        self.from_example = draw_linear(num_dims, width, rng, num_inputs)
        self.from_source = draw_linear(num_dims, width, rng, num_inputs, has_bias=False)
        self.from_target = draw_linear(num_dims, width, rng, num_inputs, has_bias=False)
        self.from_noise = None
        if noise_dim:
            self.from_noise = draw_linear(noise_dim, width, rng, num_inputs, has_bias=False)
        self.hidden = draw_linear(width, width, rng)
        self.last = draw_linear(width, num_dims, rng)
        if self.residual != "none":
            set_to_zero(self.last)

    def project(self, source: Tensor, target: Tensor) -> Projected | None:
        """Multiply prototypes once for several calls; None on a CPU, which multiplies each time."""
        if kernels_for("pairs", source, target) is None:
            return None
        return self.from_source(source), self.from_target(target)

    def forward(
        self,
        examples: Tensor | Chosen,
        source: Tensor,
        target: Tensor,
        noise: Tensor | None = None,
        projected: Projected | None = None,
    ) -> Tensor:
        """Compute `translate_for` one use."""
        return self.translate_for(1, examples, source, target, noise, projected)[0]

    def translate_for(
        self,
        num_uses: int,
        examples: Tensor | Chosen,
        source: Tensor,
        target: Tensor,
        noise: Tensor | None = None,
        projected: Projected | None = None,
    ) -> list[Tensor]:
        """Translate examples from the class of the source prototype to that of the target.

        Inputs broadcast to (N, M, D), the noise to (N, M, Z). Products have the type of the
        examples. ``projected`` are the prototypes' products from `project`, if known. Returns the
        same for every use; see `perceptron_for`.
        """
        of_source, of_target = projected or (None, None)
        first: list[_Part] = [(examples, self.from_example, None)]
        first += [(source, self.from_source, of_source), (target, self.from_target, of_target)]
        if self.from_noise is not None:
            assert noise is not None, "this generator needs noise"
            first.append((noise, self.from_noise, None))
        kept = [examples] if self.residual != "none" else []
        if self.residual == "mean-shift":
            kept += [-source, target]

        shape = _shape_of_pairs([values for values, *_ in first])
        dtype = (examples.table if isinstance(examples, Chosen) else examples).dtype
        products, shared = _project(first)
        added, shared_by_last = combine(kept, self.last.bias)
        activation: Activation = "relu" if self.rectified else "none"
        layers = [
            Layer(products, shared),
            Layer([(None, self.hidden.weight)], Shared(self.hidden.bias)),
            Layer([(None, self.last.weight)], shared_by_last, added, activation),
        ]
        outputs = perceptron_for(num_uses, layers, shape=shape, dtype=dtype)
        views = {each: each.view(*shape, -1) for each in outputs}
        return [views[each] for each in outputs]


class Answers(NamedTuple):
    """Possible answers of a discriminator in one episode: classes, and last "fake"."""

    keys: Tensor  # (answers, H), padded with zeros
    biases: Tensor  # (answers,), padded with minus infinity
    fake: int


class Discriminator(nn.Module):
    """Network that classifies real examples by class, and translated examples as "fake".

    Classes change from episode to episode, so a class is identified by its prototype. Its logit
    is the product of the embedded example and the embedded prototype. The last logit, "fake",
    depends on the example alone. The layer that embeds an example is linear, and there are fewer
    answers than examples, so its weights are multiplied into the answers.
    """

    def __init__(self, num_dims: int, config: TrainConfig, rng: torch.Generator) -> None:
        super().__init__()
        width = config.hidden_dim
        self.first = draw_linear(num_dims, width, rng)
        self.hidden = draw_linear(width, width, rng)
        self.embed = draw_linear(width, width, rng)
        self.key = draw_linear(num_dims, width, rng, has_bias=False)
        self.fake = draw_linear(width, 1, rng)

    def answers(self, prototypes: Tensor, is_present: Tensor | None = None) -> Answers:
        """Return the answers for classes with these prototypes, shape (classes, D).

        A class cannot be the answer if its ``is_present``, shape (classes,), is False.
        """
        if kernels_for("pairs", prototypes, self.key.weight):
            return self._answers_at_once(prototypes, is_present)
        embedded = self.key(prototypes) / math.sqrt(self.embed.out_features)
        embedded = torch.cat([embedded, self.fake.weight])
        keys = embedded @ self.embed.weight
        biases = embedded @ self.embed.bias
        biases = torch.cat([biases[:-1], biases[-1:] + self.fake.bias])
        if is_present is not None:
            of_classes = biases[:-1].masked_fill(~is_present, -math.inf)
            biases = torch.cat([of_classes, biases[-1:]])
        return Answers(keys, biases, len(prototypes))

    def _answers_at_once(self, prototypes: Tensor, is_present: Tensor | None) -> Answers:
        """Return the same in fewer steps, padded: a GPU is slow if not for multiples of 16."""
        count = len(prototypes)
        possible = prototypes.new_full((count + 1 + -(count + 1) % 16,), -math.inf)
        if is_present is None:
            possible[:count] = 0.0
        else:
            possible[:count].masked_fill_(is_present, 0.0)
        parts = (self.key.weight, self.embed.weight, self.embed.bias)
        keys, biases = answer_keys(prototypes, possible, *parts, self.fake.weight, self.fake.bias)
        return Answers(keys, biases, count)

    def log_likelihood(
        self, examples: Tensor, answers: Answers, targets: Tensor | None, weights: Tensor
    ) -> Tensor:
        """Compute Σ weight · log D(target | example) over all examples, shape (..., D).

        Targets are positions of answers, or None for "fake"; they and the weights broadcast to
        shape (...).
        """
        return self.log_likelihoods([(examples, targets, weights)], answers)

    def log_likelihoods(
        self, batches: Sequence[tuple[Tensor, Tensor | None, Tensor]], answers: Answers
    ) -> Tensor:
        """Compute the sum of `log_likelihood` over batches of examples, targets and weights."""
        rows, targets, weights = [], [], []
        for examples, wanted, weight in batches:
            batch = examples.shape[:-1]
            if wanted is None:
                wanted = torch.full_like(examples[..., 0], answers.fake, dtype=torch.long)
            rows.append(examples.flatten(0, -2))
            targets.append(wanted.expand(batch).flatten())
            weights.append(weight.expand(batch).flatten())
        if len(rows) > 1 and rows[0].is_cuda:  # a GPU needs less time for one large batch
            rows, targets, weights = [[torch.cat(each)] for each in (rows, targets, weights)]
        values = [
            perceptron(
                self._layers(each),
                Question(None, answers.keys, answers.biases, target, weight),
                shape=(1, len(each)),
                dtype=each.dtype,
            )
            for each, target, weight in zip(rows, targets, weights, strict=True)
        ]
        return sum(values[1:], values[0])

    def embed_examples(self, examples: Tensor) -> Tensor:
        """Compute the last hidden layer, which is multiplied by the keys, shape (examples, H)."""
        rows = examples.flatten(0, -2)
        return perceptron(self._layers(rows), shape=(1, len(rows)), dtype=rows.dtype)

    def _layers(self, rows: Tensor) -> list[Layer]:
        return [
            Layer([(rows, self.first.weight)], Shared(self.first.bias)),
            Layer([(None, self.hidden.weight)], Shared(self.hidden.bias)),
        ]


_Part = tuple[Tensor | Chosen, nn.Linear, Tensor | None]
"""Inputs of a first layer, their weights and, if known, the product."""


def _shape_of_pairs(parts: Sequence[Tensor | Chosen]) -> tuple[int, int]:
    shapes = [part.places.shape if isinstance(part, Chosen) else part.shape[:-1] for part in parts]
    num_novel, num_examples = torch.broadcast_shapes(*shapes)
    return num_novel, num_examples


def _project(parts: Sequence[_Part]) -> tuple[list[tuple[Tensor, Tensor]], Shared]:
    """Return factors of the products that differ between pairs, and the sum of all others."""
    products: list[tuple[Tensor, Tensor]] = []
    tables: list[_Table] = []
    biases = [each.bias for _, each, _ in parts if each.bias is not None]
    for values, each, known in parts:
        if isinstance(values, Tensor) and 1 not in values.shape[:-1]:
            products.append((values.flatten(0, 1), each.weight))
        else:
            table, places = values if isinstance(values, Chosen) else (values, None)
            if known is None:
                known = linear(table.to(each.weight.dtype), each.weight)
            tables.append((known, places))
    return products, _to_shared(tables, sum(biases[1:], biases[0]))


def combine(
    parts: Sequence[Tensor | Chosen], bias: Tensor | None = None
) -> tuple[Tensor | None, Shared]:
    """Return the sum of the parts that differ between pairs, and that of all others.

    Parts broadcast to (N, M, W); the bias has shape (W,).
    """
    added = None
    tables: list[_Table] = []
    for values in parts:
        if isinstance(values, Tensor) and 1 not in values.shape[:-1]:
            rows = values.flatten(0, 1)
            added = rows if added is None else added + rows
        else:
            tables.append(values if isinstance(values, Chosen) else (values, None))
    return added, _to_shared(tables, bias)


_Table = tuple[Tensor, Tensor | None]
"""Table of shape (1 or N, any, W), and the places of pairs in it, shape (N, M), if any."""


def _to_shared(tables: Sequence[_Table], bias: Tensor | None) -> Shared:
    by_example = by_novel = places = None
    for table, chosen in tables:
        if chosen is None and len(table) == 1:
            rows = table.squeeze(0)
            by_example = rows if by_example is None else by_example + rows
        else:
            by_novel = table if by_novel is None else by_novel + table
            places = places if chosen is None else chosen
    if by_novel is None:
        return Shared(bias, by_example)
    if places is not None:
        first = torch.arange(len(places), device=places.device) * by_novel.shape[1]
        places = (first.unsqueeze(1) + places).flatten()
    return Shared(bias, by_example, by_novel.flatten(0, 1), places)

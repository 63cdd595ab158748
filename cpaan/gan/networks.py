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
from torch.nn.functional import linear, pad

from cpaan.gan.config import TrainConfig
from cpaan.gan.fast.pair_ops import Shared, layer, log_likelihood
from cpaan.training.layers import draw_linear, set_to_zero


class Chosen(NamedTuple):
    """One of a few examples of the class, for every pair."""

    table: Tensor  # (N, K, D)
    places: Tensor  # (N, M) from 0 to K - 1


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

    def forward(
        self, examples: Tensor | Chosen, source: Tensor, target: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Translate examples from the class of the source prototype to that of the target.

        Inputs broadcast to (N, M, D), the noise to (N, M, Z). Products have the type of the
        examples.
        """
        first = [(examples, self.from_example), (source, self.from_source)]
        first.append((target, self.from_target))
        if self.from_noise is not None:
            assert noise is not None, "this generator needs noise"
            first.append((noise, self.from_noise))
        kept = [examples] if self.residual != "none" else []
        if self.residual == "mean-shift":
            kept += [-source, target]

        shape = _shape_of_pairs([values for values, _ in first])
        dtype = (examples.table if isinstance(examples, Chosen) else examples).dtype
        products, shared = _project(first)
        hidden = layer(products, shared, shape=shape, dtype=dtype)
        hidden = layer(
            [(hidden, self.hidden.weight)], Shared(self.hidden.bias), shape=shape, dtype=dtype
        )
        added, shared = combine(kept, self.last.bias)
        output = layer(
            [(hidden, self.last.weight)],
            shared,
            shape=shape,
            dtype=dtype,
            added=added,
            activation="relu" if self.rectified else "none",
        )
        return output.view(*shape, -1)


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
        embedded = self.key(prototypes) / math.sqrt(self.embed.out_features)
        embedded = torch.cat([embedded, self.fake.weight])
        keys = embedded @ self.embed.weight
        biases = embedded @ self.embed.bias
        biases = torch.cat([biases[:-1], biases[-1:] + self.fake.bias])
        if is_present is not None:
            of_classes = biases[:-1].masked_fill(~is_present, -math.inf)
            biases = torch.cat([of_classes, biases[-1:]])
        if keys.is_cuda:  # a GPU is slow for sizes that are not multiples of 16
            missing = -len(keys) % 16
            keys = pad(keys, (0, 0, 0, missing))
            biases = pad(biases, (0, missing), value=-math.inf)
        return Answers(keys, biases, len(prototypes))

    def log_likelihood(
        self, examples: Tensor, answers: Answers, targets: Tensor | None, weights: Tensor
    ) -> Tensor:
        """Compute Σ weight · log D(target | example) over all examples, shape (..., D).

        Targets are positions of answers, or None for "fake"; they and the weights broadcast to
        shape (...).
        """
        batch = examples.shape[:-1]
        if targets is None:
            targets = torch.full_like(examples[..., 0], answers.fake, dtype=torch.long)
        return log_likelihood(
            self.embed_examples(examples),
            answers.keys,
            answers.biases,
            targets.expand(batch).flatten(),
            weights.expand(batch).flatten(),
        )

    def embed_examples(self, examples: Tensor) -> Tensor:
        """Compute the last hidden layer, which is multiplied by the keys, shape (examples, H)."""
        hidden = examples.flatten(0, -2)
        shape = (1, len(hidden))
        for each in (self.first, self.hidden):
            products = [(hidden, each.weight)]
            hidden = layer(products, Shared(each.bias), shape=shape, dtype=examples.dtype)
        return hidden


def _shape_of_pairs(parts: Sequence[Tensor | Chosen]) -> tuple[int, int]:
    shapes = [part.places.shape if isinstance(part, Chosen) else part.shape[:-1] for part in parts]
    num_novel, num_examples = torch.broadcast_shapes(*shapes)
    return num_novel, num_examples


def _project(
    parts: Sequence[tuple[Tensor | Chosen, nn.Linear]],
) -> tuple[list[tuple[Tensor, Tensor]], Shared]:
    """Return factors of the products that differ between pairs, and the sum of all others."""
    products: list[tuple[Tensor, Tensor]] = []
    tables: list[_Table] = []
    biases = [each.bias for _, each in parts if each.bias is not None]
    for values, each in parts:
        if isinstance(values, Tensor) and 1 not in values.shape[:-1]:
            products.append((values.flatten(0, 1), each.weight))
        else:
            table, places = values if isinstance(values, Chosen) else (values, None)
            tables.append((linear(table.to(each.weight.dtype), each.weight), places))
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
            by_example = table[0] if by_example is None else by_example + table[0]
        else:
            by_novel = table if by_novel is None else by_novel + table
            places = places if chosen is None else chosen
    if by_novel is None:
        return Shared(bias, by_example)
    if places is not None:
        first = torch.arange(len(places), device=places.device) * by_novel.shape[1]
        places = (first.unsqueeze(1) + places).flatten()
    return Shared(bias, by_example, by_novel.flatten(0, 1), places)

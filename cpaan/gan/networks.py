"""The generators G_n, G_b and the discriminators D_n, D_b.

All are three-layer perceptrons with leaky ReLU and without batch normalisation. Weights are drawn
from an ``rng`` as PyTorch's own linear layers draw them.

Shapes: N = novel classes, M = examples translated into each, D = feature dimension, H = hidden
dimension, Z = noise dimension, C = base classes, K = shots.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from cpaan.gan.config import TrainConfig
from cpaan.gan.fast.pair_ops import Shared, layer, log_likelihood


class Chosen(NamedTuple):
    """One of a few examples of its class for every pair."""

    table: Tensor  # (N, K, D)
    places: Tensor  # (N, M) which of the K


class Generator(nn.Module):
    """Translates examples from one class to another.

    The paper's first layer takes example, prototypes and noise side by side. That is a sum of
    one product each, so that what pairs of a class and an example share is multiplied once, and
    only what differs from pair to pair costs a product of all of them.
    """

    def __init__(
        self,
        num_dims: int,
        noise_dim: int,
        config: TrainConfig,
        is_positive: bool,
        rng: torch.Generator,
    ) -> None:
        """Draw the weights.

        Args:
            num_dims: D.
            noise_dim: Z; zero for a generator without noise.
            config: Width, residual and output.
            is_positive: Whether no feature is negative.
            rng: On the CPU, whatever the device of the network will be.
        """
        super().__init__()
        width = config.hidden_dim
        num_inputs = 3 * num_dims + noise_dim
        self.residual = config.residual
        self.rectified = config.output == "relu" or (config.output == "match" and is_positive)
        self.from_example = _linear(num_dims, width, rng, num_inputs)
        self.from_source = _linear(num_dims, width, rng, num_inputs, has_bias=False)
        self.from_target = _linear(num_dims, width, rng, num_inputs, has_bias=False)
        self.from_noise = None
        if noise_dim:
            self.from_noise = _linear(noise_dim, width, rng, num_inputs, has_bias=False)
        self.hidden = _linear(width, width, rng)
        self.last = _linear(width, num_dims, rng)
        if self.residual != "none":
            nn.init.zeros_(self.last.weight)
            nn.init.zeros_(self.last.bias)

    def forward(
        self, examples: Tensor | Chosen, source: Tensor, target: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Translate examples; all shapes broadcast to (N, M, D).

        Args:
            examples: Shape (1 or N, M, D); their type is that of all products.
            source: Prototypes of the classes that the examples are of.
            target: Prototypes of the classes that they shall be of.
            noise: Shape (N, M, Z).
        """
        first = [(examples, self.from_example), (source, self.from_source)]
        first.append((target, self.from_target))
        if self.from_noise is not None:
            assert noise is not None, "this generator has noise"
            first.append((noise, self.from_noise))
        kept: list[tuple[Tensor | Chosen, float]] = []
        if self.residual != "none":
            kept.append((examples, 1.0))
        if self.residual == "mean-shift":
            kept += [(source, -1.0), (target, 1.0)]

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
    """What a discriminator can say in one episode: classes, and last "fake"."""

    keys: Tensor  # (answers, H), and zeros
    biases: Tensor  # (answers,), and minus infinity
    fake: int


class Discriminator(nn.Module):
    """Tells classes apart, and real examples from translated ones.

    Classes change from episode to episode, so that a class is known by its prototype: its logit
    is the product of the embedded example and the embedded prototype. A last logit, of the
    example alone, stands for "fake". The layer that embeds an example is linear, and there are
    fewer answers than examples: it is multiplied into the answers.
    """

    def __init__(
        self, num_dims: int, num_base: int, config: TrainConfig, rng: torch.Generator
    ) -> None:
        """Draw the weights; ``num_base`` is C, of which only the fixed kind has outputs."""
        super().__init__()
        width = config.hidden_dim
        self.first = _linear(num_dims, width, rng)
        self.hidden = _linear(width, width, rng)
        self.is_fixed = config.discriminator == "fixed"
        if self.is_fixed:
            self.classes = _linear(width, num_base, rng)
        else:
            self.embed = _linear(width, width, rng)
            self.key = _linear(num_dims, width, rng, has_bias=False)
        self.fake = _linear(width, 1, rng)

    def answers(
        self, classes: Tensor, prototypes: Tensor, is_present: Tensor | None = None
    ) -> Answers:
        """Return what can be said of examples.

        Args:
            classes: Positions among all base classes, shape (classes,).
            prototypes: Of those classes, shape (classes, D).
            is_present: Which of them can be the answer, shape (classes,); by default all.
        """
        if self.is_fixed:
            keys = torch.cat([self.classes.weight.index_select(0, classes), self.fake.weight])
            biases = torch.cat([self.classes.bias.index_select(0, classes), self.fake.bias])
        else:
            embedded = self.key(prototypes) / math.sqrt(self.embed.out_features)
            embedded = torch.cat([embedded, self.fake.weight])
            keys = embedded @ self.embed.weight
            biases = embedded @ self.embed.bias
            biases = torch.cat([biases[:-1], biases[-1:] + self.fake.bias])
        if is_present is not None:
            of_classes = biases[:-1].masked_fill(~is_present, -math.inf)
            biases = torch.cat([of_classes, biases[-1:]])
        if keys.is_cuda:  # which multiplies matrices of odd sizes slowly
            missing = -len(keys) % 16
            keys = pad(keys, (0, 0, 0, missing))
            biases = pad(biases, (0, missing), value=-math.inf)
        return Answers(keys, biases, len(classes))

    def log_likelihood(
        self, examples: Tensor, answers: Answers, targets: Tensor | None, weights: Tensor
    ) -> Tensor:
        """Return Σ weight · log D(target | example) over all examples.

        Args:
            examples: Shape (..., D).
            answers: Those of the episode.
            targets: Which answer, of a shape that broadcasts to (...); None: "fake".
            weights: Of a shape that broadcasts to (...).
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
        """Return what keys are multiplied with, shape (all examples, H)."""
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
    """Return what is left to multiply for every pair, and all other products."""
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
    parts: Sequence[tuple[Tensor | Chosen, float]], bias: Tensor | None = None
) -> tuple[Tensor | None, Shared]:
    """Return the signed sum of what differs from pair to pair, and of all the rest.

    Args:
        parts: Of shapes that broadcast to (N, M, W), and their signs.
        bias: One more, shape (W,).
    """
    added = None
    tables: list[_Table] = []
    for values, sign in parts:
        if isinstance(values, Tensor) and 1 not in values.shape[:-1]:
            rows = values.flatten(0, 1)
            rows = rows if sign == 1 else sign * rows
            added = rows if added is None else added + rows
        else:
            table, places = values if isinstance(values, Chosen) else (values, None)
            tables.append((table if sign == 1 else sign * table, places))
    return added, _to_shared(tables, bias)


_Table = tuple[Tensor, Tensor | None]
"""Of shape (1 or N, any, W), and (N, M) places in it, where those are chosen."""


def _to_shared(tables: Sequence[_Table], bias: Tensor | None) -> Shared:
    """Return the sum of tables and a bias."""
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


def _linear(
    num_inputs: int,
    num_outputs: int,
    rng: torch.Generator,
    num_inputs_of_layer: int | None = None,
    *,
    has_bias: bool = True,
) -> nn.Linear:
    """Return a linear layer with PyTorch's usual weights, but from ``rng``.

    Args:
        num_inputs: Columns of the weight.
        num_outputs: Rows of the weight.
        rng: On the CPU.
        num_inputs_of_layer: Where this is a part of a larger layer, all inputs of that one: they
            decide the size of the weights.
        has_bias: Whether there is a bias; one part of a layer suffices for it.
    """
    layer = nn.utils.skip_init(nn.Linear, num_inputs, num_outputs, bias=has_bias)
    bound = 1 / math.sqrt(num_inputs_of_layer or num_inputs)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=rng)
    return layer

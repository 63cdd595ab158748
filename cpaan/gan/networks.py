"""The generators G_n, G_b and the discriminators D_n, D_b.

All are three-layer perceptrons with leaky ReLU and without batch normalisation. Weights are drawn
from an ``rng`` on the CPU, with the distribution of PyTorch's linear layers.

Shapes: N = novel classes, M = examples translated into each, D = feature dimension, H = hidden
dimension, Z = noise dimension, K = shots.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Compute `translate_for` one use."""
        return self.translate_for(1, *inputs, **options)[0]

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
        first = [
            Summand(examples, self.from_example.weight),
            Summand(source, self.from_source.weight, of_source),
            Summand(target, self.from_target.weight, of_target),
        ]
        if self.from_noise is not None:
            assert noise is not None, "this generator needs noise"
            first.append(Summand(noise, self.from_noise.weight))
        kept = [Summand(examples)] if self.residual != "none" else []
        if self.residual == "mean-shift":
            kept += [Summand(-source), Summand(target)]

        num_novel, num_examples = torch.broadcast_shapes(*(part.shape for part in first))
        shape = (num_novel, num_examples)
        dtype = (examples.table if isinstance(examples, Chosen) else examples).dtype
        products, shared = combine(first, self.from_example.bias)
        added, shared_by_last = combine(kept, self.last.bias)
        activation: Activation = "relu" if self.rectified else "none"
        layers = [
            Layer(products, shared),
            Layer([(None, self.hidden.weight)], Shared(self.hidden.bias)),
            Layer([(None, self.last.weight)], shared_by_last, total_of(added), activation),
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

    def log_likelihoods(
        self, batches: Sequence[tuple[Tensor, Tensor | None, Tensor]], answers: Answers
    ) -> Tensor:
        """Compute Σ weight · log D(target | example) over all examples of some batches.

        A batch has examples, shape (..., D), targets and weights, which broadcast to shape (...).
        Targets are positions of answers, or None for "fake".
        """
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
                [
                    Layer([(each, self.first.weight)], Shared(self.first.bias)),
                    Layer([(None, self.hidden.weight)], Shared(self.hidden.bias)),
                ],
                Question(None, answers.keys, answers.biases, target, weight),
                shape=(1, len(each)),
                dtype=each.dtype,
            )
            for each, target, weight in zip(rows, targets, weights, strict=True)
        ]
        return sum(values[1:], values[0])


class Summand(NamedTuple):
    """A summand of a layer for every pair."""

    values: Tensor | Chosen  # broadcast to (N, M, any)
    weight: Tensor | None = None  # factor, shape (W, any); None for the values themselves
    known: Tensor | None = None  # the product of shared values and the weight, if known

    @property
    def shape(self) -> torch.Size:
        """Shape of the pairs, which broadcasts to (N, M)."""
        values = self.values
        return values.places.shape if isinstance(values, Chosen) else values.shape[:-1]


def combine(
    parts: Sequence[Summand], bias: Tensor | None = None
) -> tuple[list[tuple[Tensor, Any]], Shared]:
    """Return rows of the parts that differ between pairs, with their weights, and all others.

    The latter, and the bias of shape (W,), are summed. What pairs share is multiplied once.
    """
    rows: list[tuple[Tensor, Any]] = []
    by_example = by_novel = places = None
    for values, weight, known in parts:
        if isinstance(values, Tensor) and 1 not in values.shape[:-1]:
            rows.append((values.flatten(0, 1), weight))
            continue
        table, chosen = values if isinstance(values, Chosen) else (values, None)
        if weight is not None:
            table = linear(table.to(weight.dtype), weight) if known is None else known
        if chosen is None and len(table) == 1:
            table = table.squeeze(0)
            by_example = table if by_example is None else by_example + table
        else:
            by_novel = table if by_novel is None else by_novel + table
            places = places if chosen is None else chosen
    if by_novel is None:
        return rows, Shared(bias, by_example)
    if places is not None:
        first = torch.arange(len(places), device=places.device) * by_novel.shape[1]
        places = (first.unsqueeze(1) + places).flatten()
    return rows, Shared(bias, by_example, by_novel.flatten(0, 1), places)


def total_of(rows: Sequence[tuple[Tensor, Any]]) -> Tensor | None:
    """Return the sum of rows without weights; None if there are none."""
    return sum((each for each, _ in rows[1:]), rows[0][0]) if rows else None

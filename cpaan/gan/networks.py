"""The generators G_n, G_b and the discriminators D_n, D_b.

All are three-layer perceptrons with leaky ReLU and without batch normalisation. Weights are drawn
from an ``rng`` on the CPU, with the distribution of PyTorch's linear layers.

Shapes: N = novel classes, M = examples to translate, D = feature dimension, Z = noise dimension.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, relu

from cpaan.gan.config import TrainConfig
from cpaan.training.layers import draw_linear, set_to_zero

SLOPE = 0.1  # of leaky ReLU


class Generator(nn.Module):
    """Network that translates examples from one class to another.

    The paper's first layer takes the concatenation of example, prototypes and noise, which equals
    a sum of linear layers. So inputs that pairs of a class and an example share are multiplied
    once, and the products broadcast.
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
        self, examples: Tensor, source: Tensor, target: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Translate examples from the class of the source prototype to that of the target.

        Inputs broadcast to (N, M, D), the noise to (N, M, Z).
        """
        hidden = self.from_example(examples) + self.from_source(source) + self.from_target(target)
        if self.from_noise is not None:
            assert noise is not None, "this generator needs noise"
            hidden = hidden + self.from_noise(noise)
        hidden = leaky_relu(self.hidden(leaky_relu(hidden, SLOPE)), SLOPE)
        translated = self.last(hidden)
        if self.residual != "none":
            translated = translated + examples
        if self.residual == "mean-shift":
            translated = translated + (target - source)
        return relu(translated) if self.rectified else translated


class Discriminator(nn.Module):
    """Network that classifies real examples by class, and translated examples as "fake".

    Classes change from episode to episode, so a class is identified by its prototype. Its logit
    is the product of the embedded example and the embedded prototype. The logit of "fake" depends
    on the example alone.
    """

    def __init__(self, num_dims: int, config: TrainConfig, rng: torch.Generator) -> None:
        super().__init__()
        width = config.hidden_dim
        self.first = draw_linear(num_dims, width, rng)
        self.hidden = draw_linear(width, width, rng)
        self.embed = draw_linear(width, width, rng)
        self.key = draw_linear(num_dims, width, rng, has_bias=False)
        self.fake = draw_linear(width, 1, rng)

    def forward(self, examples: Tensor, prototypes: Tensor, is_present: Tensor) -> Tensor:
        """Return log-probabilities of the classes and, last, of "fake", shape (..., classes + 1).

        Args:
            examples: Shape (..., D).
            prototypes: Shape (classes, D).
            is_present: Shape (classes,); a class has probability zero where it is False.
        """
        embedded = self.key(prototypes) / math.sqrt(self.embed.out_features)
        keys = torch.cat([embedded, self.fake.weight])
        absent = torch.zeros_like(embedded[:, 0]).masked_fill(~is_present, -math.inf)
        biases = keys @ self.embed.bias + torch.cat([absent, self.fake.bias])
        hidden = leaky_relu(self.hidden(leaky_relu(self.first(examples), SLOPE)), SLOPE)
        # The layer that embeds an example is linear, and there are fewer classes than examples, so
        # its weights are multiplied into the keys.
        logits = hidden @ (keys @ self.embed.weight).T + biases
        return logits.log_softmax(dim=-1)

"""The generators G_n, G_b and the discriminators D_n, D_b.

All are three-layer perceptrons with leaky ReLU and without batch normalisation. Weights are drawn
from an ``rng`` as PyTorch's own linear layers draw them. Shapes: D = feature dimension,
H = hidden dimension, Z = noise dimension, C = base classes.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, relu

from cpaan.config import TrainConfig

_SLOPE = 0.1


class Generator(nn.Module):
    """Translates examples from one class to another.

    The paper's first layer takes example, prototypes and noise side by side. That is a sum of
    one product each, and so the inputs need not have been repeated for every pair of classes:
    they broadcast.
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
        self, examples: Tensor, source: Tensor, target: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Translate examples; all shapes broadcast to (..., D).

        Args:
            examples: Shape (..., D).
            source: Prototypes of the classes that the examples are of.
            target: Prototypes of the classes that they shall be of.
            noise: Shape (..., Z).
        """
        hidden = self.from_example(examples) + self.from_source(source) + self.from_target(target)
        if self.from_noise is not None:
            hidden = hidden + self.from_noise(noise)
        output = self.last(leaky_relu(self.hidden(leaky_relu(hidden, _SLOPE)), _SLOPE))
        if self.residual == "identity":
            output = output + examples
        elif self.residual == "mean-shift":
            output = output + (examples - source + target)
        return relu(output) if self.rectified else output


class Discriminator(nn.Module):
    """Tells classes apart, and real examples from translated ones.

    Classes change from episode to episode, so that a class is known by its prototype: its logit
    is the product of the embedded example and the embedded prototype. A last logit, of the
    example alone, stands for "fake".
    """

    def __init__(
        self, num_dims: int, num_base: int, config: TrainConfig, rng: torch.Generator
    ) -> None:
        """Draw the weights; ``num_base`` is C, of which only the fixed kind has outputs."""
        super().__init__()
        width = config.hidden_dim
        self.layers = nn.Sequential(
            _linear(num_dims, width, rng),
            nn.LeakyReLU(_SLOPE),
            _linear(width, width, rng),
            nn.LeakyReLU(_SLOPE),
        )
        self.is_fixed = config.discriminator == "fixed"
        if self.is_fixed:
            self.classes = _linear(width, num_base, rng)
        else:
            self.embed = _linear(width, width, rng)
            self.key = _linear(num_dims, width, rng, has_bias=False)
        self.fake = _linear(width, 1, rng)

    def forward(
        self,
        examples: Tensor,
        classes: Tensor,
        prototypes: Tensor,
        is_present: Tensor | None = None,
    ) -> Tensor:
        """Return log-probabilities of the given classes and, last, of "fake".

        Args:
            examples: Shape (..., D).
            classes: Positions among all base classes, shape (classes,).
            prototypes: Of those classes, shape (classes, D).
            is_present: Which of them can be the answer, shape (classes,); by default all.

        Returns:
            Shape (..., classes + 1).
        """
        hidden = self.layers(examples)
        if self.is_fixed:
            logits = self.classes(hidden)[..., classes]
        else:
            hidden = self.embed(hidden)
            logits = hidden @ self.key(prototypes).T / math.sqrt(hidden.shape[-1])
        if is_present is not None:
            logits = logits.masked_fill(~is_present, -math.inf)
        return torch.cat([logits, self.fake(hidden)], dim=-1).log_softmax(dim=-1)


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

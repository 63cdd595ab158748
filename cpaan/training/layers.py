"""What networks on cached features are made of: normalisation, layers, dropout, a scale of scores.

Shapes: D = feature dimension, N = classes, Q = queries.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from cpaan.core.settings import Settings
from cpaan.protocol.tasks import BaseSet
from cpaan.training.learning import Learner

_LEAST_MEAN_SQUARE = 1e-6  # of a row that is put on the sphere: the gradient at zero stays finite
_LARGEST_LOG_SCALE, _NUM_HALVINGS = 20.0, 40


@dataclass(frozen=True, kw_only=True)
class PerceptronSettings(Settings):
    """What a perceptron of two layers does with features.

    Raises:
        ValueError: If a value makes no sense.
    """

    normalisation: Literal["centred", "none"] = "centred"
    """Of features before the network. Centred: on the mean of the base prototypes, then scaled by
    one number so that a base example's mean squared distance to its class mean is D."""
    hidden_dim: int = 512
    """Width of the hidden layer."""
    residual: bool = True
    """Whether the network's output is added to its input; training then starts at the identity."""
    output: Literal["sphere", "linear", "relu", "sigmoid"] = "sphere"
    """Sphere: every embedded row is scaled to a mean square of one."""
    dropout: float = 0.5
    """Share of the input and of the hidden layer that is left out in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("hidden_dim")
        self._refuse_unless_below_one("dropout")


class Normalising(nn.Module):
    """A network that sees features from the middle of the base classes, in units of their spread.

    Or as they are.
    """

    centre: Tensor
    unit: Tensor

    def set_normalisation(self, base: BaseSet, normalisation: Literal["centred", "none"]) -> None:
        """Take centre and unit from base examples.

        Raises:
            ValueError: If examples or their squares are not finite.
        """
        base.check_finite()
        num_dims, is_centred = base.features.shape[1], normalisation == "centred"
        centre = base.prototypes.mean(dim=0).cpu() if is_centred else torch.zeros(num_dims)
        unit = math.sqrt(base.variance / num_dims) if is_centred else 1.0
        self.register_buffer("centre", centre.float())
        self.register_buffer("unit", torch.tensor(unit))

    def normalise(self, features: Tensor) -> Tensor:
        """Return inputs, of features of any shape (..., D)."""
        return (features.to(self.centre.dtype) - self.centre) / self.unit


class Perceptron(Normalising, Learner):
    """Two layers with a ReLU between, from D dimensions to as many; subclasses say what for."""

    _config: PerceptronSettings

    def __init__(self, base: BaseSet, config: PerceptronSettings, rng: torch.Generator) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If examples or their squares are not finite.
        """
        super().__init__()
        self._config = config
        self.set_normalisation(base, config.normalisation)
        num_dims = base.features.shape[1]
        self.hidden = draw_linear(num_dims, config.hidden_dim, rng)
        self.last = draw_linear(config.hidden_dim, num_dims, rng)
        if config.residual:
            set_to_zero(self.last)

    def forward(self, features: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Embed rows of any shape (..., D); with an ``rng``, as in training: with dropout."""
        inputs = self.drop(self.normalise(features), rng)
        return self.finish(inputs, self.last(self.drop(relu(self.hidden(inputs)), rng)))

    def drop(self, values: Tensor, rng: torch.Generator | None) -> Tensor:
        """Return values of which some are left out, if there is an ``rng``."""
        return drop(values, self._config.dropout, rng)

    def finish(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Return what the outputs of the last layer and its inputs become, shape (..., D)."""
        if self._config.residual:
            outputs = outputs + inputs
        match self._config.output:
            case "sphere":
                mean_square = outputs.square().mean(dim=-1, keepdim=True)
                return outputs * (mean_square + _LEAST_MEAN_SQUARE).rsqrt()
            case "relu":
                return relu(outputs)
            case "sigmoid":
                return outputs.sigmoid()
            case "linear":
                return outputs


def draw_linear(num_in: int, num_out: int, rng: torch.Generator) -> nn.Linear:
    """Return a layer with weights as PyTorch's own are drawn; ``rng`` is on the CPU."""
    layer = nn.utils.skip_init(nn.Linear, num_in, num_out)
    draw_weights(layer, num_in, rng)
    return layer


def draw_weights(module: nn.Module, num_in: int, rng: torch.Generator) -> None:
    """Draw all parameters as PyTorch does, for units with so many inputs."""
    bound = 1 / math.sqrt(num_in)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=rng)


def set_to_zero(module: nn.Module) -> None:
    """Let a module begin with zeros."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


def drop(
    values: Tensor, share: float, rng: torch.Generator | None, shape: torch.Size | None = None
) -> Tensor:
    """Return values without a random share of them, the rest larger; without ``rng``, all.

    Args:
        values: Of any shape.
        share: Of what is left out.
        rng: On the device of the values.
        shape: Of what is drawn, which all values then share; by default, each draws for itself.
    """
    if rng is None or not share:
        return values
    drawn = torch.rand(shape or values.shape, generator=rng, device=values.device)
    return values * (drawn >= share) / (1 - share)


def find_log_scale(predict: Callable[[float], Tensor]) -> float:
    """Return the logarithm of a scale at which the mean entropy of predictions is half of log N.

    Entropy falls as the scale grows, so that its logarithm is found by halving an interval.

    Args:
        predict: Of a scale: logarithms of probabilities, shape (Q, N).
    """
    low, high = -_LARGEST_LOG_SCALE, _LARGEST_LOG_SCALE
    middle = 0.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        logs = predict(math.exp(middle))
        # A probability of zero adds nothing, though its logarithm may be infinite.
        entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(dim=1).mean()
        is_sharper = bool(entropy < math.log(logs.shape[1]) / 2)
        low, high = (low, middle) if is_sharper else (middle, high)
    return middle

"""Parts of networks for cached features: normalisation, layers, dropout, the scale of scores.

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

_LEAST_MEAN_SQUARE = 1e-6  # added on the sphere, so that the gradient at zero is finite
_LARGEST_LOG_SCALE, _NUM_HALVINGS = 20.0, 40


@dataclass(frozen=True, kw_only=True)
class PerceptronSettings(Settings):
    """Settings of a two-layer perceptron."""

    normalisation: Literal["centred", "none"] = "centred"
    """Normalisation of the input. Centred: subtract the mean base prototype, then divide by one
    number, so that a base example's mean squared distance to its class mean is D."""
    hidden_dim: int = 512
    """Width of the hidden layer."""
    residual: bool = True
    """Whether to add the network's output to its input; training then starts at the identity."""
    output: Literal["sphere", "linear", "sigmoid"] = "sphere"
    """Output function. Sphere: scale every embedding to a mean square of one."""
    dropout: float = 0.5
    """Dropout rate of the input and of the hidden layer in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("hidden_dim")
        self._refuse_unless_below_one("dropout")


class Normalising(nn.Module):
    """A network that centres features on the base classes and divides them by their spread."""

    centre: Tensor
    unit: Tensor

    def set_normalisation(self, base: BaseSet, normalisation: Literal["centred", "none"]) -> None:
        """Compute the centre and unit of base examples; raise ValueError unless they are finite."""
        base.check_finite()
        num_dims, is_centred = base.features.shape[1], normalisation == "centred"
        centre = base.prototypes.mean(dim=0).cpu() if is_centred else torch.zeros(num_dims)
        unit = math.sqrt(base.variance / num_dims) if is_centred else 1.0
        self.register_buffer("centre", centre.float())
        self.register_buffer("unit", torch.tensor(unit))

    def normalise(self, features: Tensor) -> Tensor:
        """Normalise features of shape (..., D)."""
        return (features.to(self.centre.dtype) - self.centre) / self.unit


class Perceptron(Normalising, Learner):
    """Two-layer perceptron with a ReLU, from D to D dimensions; subclasses define the loss."""

    _config: PerceptronSettings

    def __init__(self, base: BaseSet, config: PerceptronSettings, rng: torch.Generator) -> None:
        super().__init__()
        self._config = config
        self.set_normalisation(base, config.normalisation)
        num_dims = base.features.shape[1]
        self.hidden = draw_linear(num_dims, config.hidden_dim, rng)
        self.last = draw_linear(config.hidden_dim, num_dims, rng)
        if config.residual:
            set_to_zero(self.last)

    def forward(self, features: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Embed rows of shape (..., D); apply dropout if there is an ``rng``."""
        inputs = self.drop(self.normalise(features), rng)
        return self.finish(inputs, self.last(self.drop(relu(self.hidden(inputs)), rng)))

    def drop(self, values: Tensor, rng: torch.Generator | None) -> Tensor:
        """Apply the configured dropout if there is an ``rng``."""
        return drop(values, self._config.dropout, rng)

    def finish(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """Apply the residual connection and the output function, shape (..., D)."""
        if self._config.residual:
            outputs = outputs + inputs
        match self._config.output:
            case "sphere":
                mean_square = outputs.square().mean(dim=-1, keepdim=True)
                return outputs * (mean_square + _LEAST_MEAN_SQUARE).rsqrt()
            case "sigmoid":
                return outputs.sigmoid()
            case "linear":
                return outputs


def draw_linear(
    num_in: int,
    num_out: int,
    rng: torch.Generator,
    num_in_of_layer: int | None = None,
    *,
    has_bias: bool = True,
) -> nn.Linear:
    """Create a linear layer with PyTorch's initial distribution; ``rng`` is on the CPU.

    For a part of a larger layer, the scale follows from that layer's ``num_in_of_layer`` inputs.
    """
    layer = nn.utils.skip_init(nn.Linear, num_in, num_out, bias=has_bias)
    draw_weights(layer, num_in_of_layer or num_in, rng)
    return layer


def draw_weights(module: nn.Module, num_in: int, rng: torch.Generator) -> None:
    """Draw all parameters from PyTorch's distribution for units with ``num_in`` inputs."""
    bound = 1 / math.sqrt(num_in)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=rng)


def set_to_zero(module: nn.Module) -> None:
    """Set all parameters to zero."""
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


def drop(
    values: Tensor, share: float, rng: torch.Generator | None, shape: torch.Size | None = None
) -> Tensor:
    """Apply dropout at rate ``share`` if there is an ``rng``, on the device of the values.

    The mask has the given ``shape`` and broadcasts to the values; by default it has their shape.
    """
    if rng is None or not share:
        return values
    drawn = torch.rand(shape or values.shape, generator=rng, device=values.device)
    return values * (drawn >= share) / (1 - share)


def find_log_scale(predict: Callable[[float], Tensor]) -> float:
    """Find the logarithm of the scale at which the mean entropy of predictions is half of log N.

    Entropy falls as the scale grows, so bisection finds it. ``predict`` returns log probabilities
    at a scale, shape (Q, N).
    """
    low, high = -_LARGEST_LOG_SCALE, _LARGEST_LOG_SCALE
    middle = 0.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        logs = predict(math.exp(middle))
        # A probability of zero adds no entropy, but its logarithm may be infinite.
        entropy = -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(dim=1).mean()
        is_sharper = bool(entropy < math.log(logs.shape[1]) / 2)
        low, high = (low, middle) if is_sharper else (middle, high)
    return middle

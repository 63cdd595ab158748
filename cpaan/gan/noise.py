"""Noise for G_b, which generates many examples of a base class from a few novel examples."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from cpaan.gan.config import TrainConfig


class GaussianNoise(nn.Module):
    """Gaussian noise z ~ N(0, I)."""

    def __init__(self, num_dims: int) -> None:
        super().__init__()
        self.num_dims = num_dims

    def forward(self, shape: tuple[int, ...], rng: torch.Generator, like: Tensor) -> Tensor:
        """Draw vectors, shape (*shape, Z), with the device and type of ``like``."""
        shape = (*shape, self.num_dims)
        return torch.randn(shape, generator=rng, device=like.device, dtype=like.dtype)


class MixtureNoise(GaussianNoise):
    """A mixture of C Gaussians with trainable means and diagonal deviations, as in DeLiGAN.

    z = μ_i + σ_i ε for a component i drawn uniformly. The paper draws σ from N(0, 0.2), so half
    of them are negative; ε is symmetric, so the sign of σ does not matter.
    """

    def __init__(self, config: TrainConfig, rng: torch.Generator) -> None:
        super().__init__(config.noise_dim)
        shape = (config.num_components, config.noise_dim)
        self.means = nn.Parameter(torch.rand(shape, generator=rng) * 2 - 1)
        self.deviations = nn.Parameter(torch.randn(shape, generator=rng) * config.noise_spread)

    def forward(self, shape: tuple[int, ...], rng: torch.Generator, like: Tensor) -> Tensor:
        """Draw vectors, shape (*shape, Z), with the device and type of ``like``."""
        component = torch.randint(len(self.means), shape, generator=rng, device=like.device)
        standard = super().forward(shape, rng, like)
        # A product is as fast as indexing, and its gradient is summed in a fixed order.
        picked = one_hot(component, len(self.means)).to(like.dtype)
        means, deviations = self.means.to(like.dtype), self.deviations.to(like.dtype)
        return picked @ means + (picked @ deviations) * standard

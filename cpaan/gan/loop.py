"""Meta-training: the loop over episodes, with checkpoints.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from cpaan.core.devices import set_rate
from cpaan.core.randomness import draw_word, new_rng
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import Spectra
from cpaan.gan.episodes import Episode, Episodes
from cpaan.gan.gans import Gan, Networks
from cpaan.gan.objectives import (
    DISCRIMINATOR_WEIGHTS,
    Terms,
    discriminator_terms,
    generator_terms,
    generator_weights,
    objective,
)
from cpaan.training.learning import EpisodeRun
from cpaan.training.workers import ALONE, Workers

LOSSES = (
    *DISCRIMINATOR_WEIGHTS,
    "discriminator_objective",
    *generator_weights(TrainConfig()),
    "generator_objective",
)
TERMS = ("effective_examples", "least_effective_examples", *LOSSES, "similarity_left_out")
"""Terms of an episode, in the order of computation.

The effective number of translated examples of a class is 1 / Σ weight²: mean and minimum over
classes. Losses are unweighted, and zero if a GAN has no such term; the two objectives are weighted
sums. The last term is the share of similarity that the covariance term ignores."""


class TrainingRun(EpisodeRun):
    """Meta-training of one GAN, from its first episode or from a checkpoint.

    This defines a training step; `cpaan.gan.engine` may choose a faster implementation of it.

    The number of an episode seeds its random numbers. Several workers train on the next episodes in
    parallel, one episode per worker, and average their gradients.
    """

    FREE = ("num_episodes", "engine")
    SPECTRA: ClassVar[type[Spectra]] = Spectra

    def __init__(
        self,
        gan: Gan,
        episodes: Episodes,
        config: TrainConfig,
        rng: torch.Generator,
        workers: Workers = ALONE,
    ) -> None:
        """Create the networks with the device and type of the episodes.

        All workers must make the same calls.
        """
        self.gan, self.episodes = gan, episodes
        self._seed_word = draw_word(rng)
        self.networks = Networks(gan, episodes.data, config, new_rng(self._seed_word, 0))
        data, device = episodes.data.fingerprint, episodes.data.base.features.device
        super().__init__(gan.name, data, TERMS, config, self.networks, device, workers)
        self.losses = LOSSES
        self._identity = {"GAN": self.name, "data": data, "seed": self._seed_word}
        self._generators = self._new_optimiser(self.networks.generator_parameters())
        self._discriminators = self._new_optimiser(self.networks.discriminator_parameters())
        self._parts = {
            "networks": self.networks,
            "generators": self._generators,
            "discriminators": self._discriminators,
        }
        matrices, m = episodes.data.covariances, config.ky_fan_order
        self._spectra = None if matrices is None else self.SPECTRA.prepare(matrices, m)

    def _new_optimiser(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Adam:
        # The learning rate is set before every step.
        betas = (self.config.adam_beta1, 0.999)
        return torch.optim.Adam(parameters, lr=0.0, betas=betas, fused=True)

    def _train_one_episode(self) -> Tensor:
        """Draw an episode, translate its pairs, update the discriminators, then the generators."""
        number = self.episode + self._workers.rank
        for_draws, for_noise = (
            new_rng(self._seed_word, word, number, device=self.device) for word in (1, 2)
        )
        episode = self.episodes.draw(for_draws)
        pairs = self.networks.translate(episode, for_noise)
        terms = effective_numbers(episode)
        if self.config.adversarial_weight:
            terms |= discriminator_terms(self.networks, pairs)
            terms["discriminator_objective"] = objective(terms, DISCRIMINATOR_WEIGHTS)
            self._update(self._discriminators, terms["discriminator_objective"])
        terms |= generator_terms(
            self.networks, episode, pairs, self._spectra, self.config, for_noise
        )
        terms["generator_objective"] = objective(terms, generator_weights(self.config))
        self._update(self._generators, terms["generator_objective"])
        zero = torch.zeros((), device=self.device)
        return torch.stack([terms.get(name, zero).detach().double() for name in TERMS])

    def _update(self, optimiser: torch.optim.Adam, loss: Tensor) -> None:
        """Update the optimiser's parameters along the mean gradient of all workers."""
        parameters = optimiser.param_groups[0]["params"]
        # A parameter does not affect the loss if its term has weight zero.
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        self._workers.average(gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        set_rate(optimiser, self._rate_of(optimiser))
        optimiser.step()

    def _rate_of(self, optimiser: torch.optim.Adam) -> float:
        """Return the learning rate of an optimiser in this episode."""
        config = self.config
        rate = config.learning_rates[optimiser is self._discriminators]
        num_decays = self.episode // config.anneal_every_episodes
        return float(rate * config.anneal_factor**num_decays)


def effective_numbers(episode: Episode) -> Terms:
    """Return how many translated examples of a class count: mean and minimum over classes."""
    effective = 1 / episode.sample_weights.square().sum(dim=1)
    return {"effective_examples": effective.mean(), "least_effective_examples": effective.amin()}

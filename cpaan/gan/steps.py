"""One step of meta-training: an episode is played, and both sides learn from it.

Shapes: N = meta-novel classes, M = meta-base examples.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cpaan.core.devices import (
    Beside,
    CudaGraph,
    new_rate,
    set_rate,
)
from cpaan.core.randomness import new_rng, reseed
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import needs_processor
from cpaan.gan.episodes import Episode, Episodes
from cpaan.gan.gans import (
    Gan,
    Networks,
    Terms,
    Translations,
    discriminator_objective,
    discriminator_terms,
    generator_objective,
    moment_terms,
    pair_terms,
)
from cpaan.training.workers import Workers

LOSSES = (
    "novel_discriminator",
    "base_discriminator",
    "discriminator_objective",
    "novel_adversarial",
    "base_adversarial",
    "novel_cycle",
    "base_cycle",
    "covariance",
    "prototype",
    "noise_penalty",
    "generator_objective",
)
TERMS = ("effective_examples", "least_effective_examples", *LOSSES, "similarity_left_out")
"""What the history has of every episode, in the order of computation.

The effective number of translated examples of a class is 1 / Σ weight²: mean and minimum over
classes. Losses are without their weights, zero where a GAN has no such term; the two objectives are
the weighted sums. At the end, the share of similarity that the covariance term does not look at."""


class Step:
    """Plays episodes, one a call, and updates the networks after each.

    A GPU repeats the whole of it from a recording, so nothing in it may wait for a result; what
    does not depend on each other runs side by side there: the next episode is drawn while this
    one is played, and covariances are compared while the discriminators learn.

    Every episode has random streams of its own, decided by its number. Several workers take the
    next episodes at the same time, one each, and step along the mean of their gradients.
    """

    def __init__(
        self,
        gan: Gan,
        episodes: Episodes,
        networks: Networks,
        config: TrainConfig,
        seed_word: int,
        workers: Workers,
    ) -> None:
        """Take up networks; the first call draws its own episode."""
        features = episodes.data.base.features
        self.device = features.device
        self._gan, self._episodes, self._networks = gan, episodes, networks
        self._config, self._seed_word, self._workers = config, seed_word, workers
        self._for_draws, self._for_noise = (new_rng(0, device=self.device) for _ in range(2))
        self._drawing, self._comparing, self._base_side = (Beside(self.device) for _ in range(3))
        self._generators = _adam(networks.of_generators(), config.adam_beta1, self.device)
        self._discriminators = _adam(networks.of_discriminators(), config.adam_beta1, self.device)
        self._row = torch.zeros(len(TERMS), dtype=torch.float64, device=self.device)
        self._zero = torch.zeros((), dtype=features.dtype, device=self.device)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget what was drawn and recorded: the optimisers' tensors may be others now."""
        self._episode: Episode | None = None
        self._factor: float | None = None
        has_covariance = self._gan.has_covariance and self._config.covariance_weight > 0
        is_capturable = not has_covariance or not needs_processor(
            self._episodes.data.base.features, self._config.ky_fan_order
        )
        functions = [self._teach_discriminators, self._teach_generators, self._finish]
        if self._workers.count == 1:
            functions = [self._play]
        self._parts = [
            CudaGraph(
                function,
                self.device,
                (self._for_draws, self._for_noise),
                is_capturable=is_capturable,
            )
            for function in functions
        ]

    def __call__(self, number: int) -> Tensor:
        """Play this worker's share of a step, update the networks; return its terms.

        Args:
            number: Of the step's first episode.
        """
        if self._episode is None:
            reseed(self._for_draws, self._seed_word, 1, number + self._workers.rank)
            self._episode = self._episodes.draw(self._for_draws)
        following = number + self._workers.count
        reseed(self._for_draws, self._seed_word, 1, following + self._workers.rank)
        reseed(self._for_noise, self._seed_word, 2, number + self._workers.rank)
        self._anneal(number)
        for part, optimiser in zip(
            self._parts, (self._discriminators, self._generators, None), strict=False
        ):
            part()
            if optimiser is not None and self._workers.count > 1:
                parameters = optimiser.param_groups[0]["params"]
                self._workers.average([each.grad for each in parameters if each.grad is not None])
        return self._row.clone()

    def _anneal(self, number: int) -> None:
        """Set both learning rates, where they are others than before."""
        config = self._config
        factor = config.anneal_factor ** (number // config.anneal_every_episodes)
        if factor == self._factor:
            return
        self._factor = factor
        for optimiser, rate in (
            (self._generators, config.generator_learning_rate),
            (self._discriminators, config.discriminator_learning_rate),
        ):
            set_rate(optimiser, rate * factor)

    def _play(self) -> None:
        self._teach_discriminators()
        self._teach_generators()
        self._finish()

    def _teach_discriminators(self) -> None:
        """Play the episode; compute the discriminators' gradients."""
        assert self._episode is not None
        gan, networks, config, episode = self._gan, self._networks, self._config, self._episode
        with self._drawing():
            self._following = self._episodes.draw(self._for_draws)
        self._terms: Terms = dict.fromkeys(TERMS, self._zero)
        effective = 1 / episode.sample_weights.square().sum(dim=1)
        self._terms["effective_examples"] = effective.mean()
        self._terms["least_effective_examples"] = effective.amin()
        self._moved: Translations = networks.translate(episode, self._for_noise, self._base_side)
        with self._comparing():
            self._terms |= moment_terms(
                gan, episode, self._moved, self._episodes.data, config, self._for_noise
            )
        if config.adversarial_weight:
            self._terms |= discriminator_terms(networks, episode, self._moved, self._base_side)
        self._base_side.wait()
        if config.adversarial_weight:
            self._terms["discriminator_objective"] = discriminator_objective(self._terms)
            _set_gradients(self._discriminators, self._terms["discriminator_objective"])
        if self._workers.count > 1:  # a recording ends here, and with it all that it began
            self._comparing.wait()
            self._drawing.wait()

    def _teach_generators(self) -> None:
        """Update the discriminators; compute the generators' gradients."""
        assert self._episode is not None
        if self._config.adversarial_weight:
            self._discriminators.step()
        with _frozen(self._networks.of_discriminators()):
            self._terms |= pair_terms(
                self._gan,
                self._networks,
                self._episode,
                self._moved,
                self._config,
                self._for_noise,
                self._base_side,
            )
        self._base_side.wait()
        self._comparing.wait()
        self._terms["generator_objective"] = generator_objective(self._terms, self._config)
        _set_gradients(self._generators, self._terms["generator_objective"])

    def _finish(self) -> None:
        """Update the generators; put the next episode in the place of this one."""
        assert self._episode is not None
        with self._drawing():
            for current, following in zip(self._episode, self._following, strict=True):
                current.copy_(following)
        self._generators.step()
        self._row.copy_(torch.stack([self._terms[name].detach() for name in TERMS]))
        self._drawing.wait()
        del self._moved, self._terms, self._following

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both sides' optimisers."""
        return {
            "generators": self._generators.state_dict(),
            "discriminators": self._discriminators.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with optimisers as they were."""
        for optimiser, name in (
            (self._generators, "generators"),
            (self._discriminators, "discriminators"),
        ):
            # How it computes is of this run and its device: a learning rate from a file would
            # not be where a recording reads it.
            (group,) = optimiser.param_groups
            own = {key: value for key, value in group.items() if key != "params"}
            optimiser.load_state_dict(state[name])
            optimiser.param_groups[0].update(own)
        self._begin_anew()


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Take parameters for constants: their gradients would be computed for nothing."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _set_gradients(optimiser: torch.optim.Adam, loss: Tensor) -> None:
    """Compute the gradients of one side; the other side's are not even computed."""
    parameters: list[nn.Parameter] = optimiser.param_groups[0]["params"]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _adam(parameters: list[nn.Parameter], beta1: float, device: torch.device) -> torch.optim.Adam:
    # The learning rate is set before the first step, and where it is annealed.
    return torch.optim.Adam(
        parameters,
        lr=new_rate(device),
        betas=(beta1, 0.999),
        fused=True,
        capturable=device.type == "cuda",
    )

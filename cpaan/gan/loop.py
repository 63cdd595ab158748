"""Meta-training: the loop over episodes, with checkpoints.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from cpaan.core.devices import Beside, CudaGraph, new_rate, set_rate
from cpaan.core.randomness import draw_word, new_rng, reseed
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import needs_processor
from cpaan.gan.episodes import Episode, Episodes
from cpaan.gan.fast.kernels import kernels_for
from cpaan.gan.fast.weights import RoundingAdam
from cpaan.gan.gans import Gan, Networks, Translations
from cpaan.gan.objectives import (
    DISCRIMINATOR_WEIGHTS,
    Terms,
    discriminator_terms,
    generator_weights,
    moment_terms,
    objective,
    pair_terms,
)
from cpaan.training.learning import EpisodeRun
from cpaan.training.workers import ALONE, Workers

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
    "generator_objective",
)
TERMS = ("effective_examples", "least_effective_examples", *LOSSES, "similarity_left_out")
"""Terms of an episode, in the order of computation.

The effective number of translated examples of a class is 1 / Σ weight²: mean and minimum over
classes. Losses are unweighted, and zero if a GAN has no such term; the two objectives are weighted
sums. The last term is the share of similarity that the covariance term ignores."""


class TrainingRun(EpisodeRun):
    """Meta-training of one GAN, from its first episode or from a checkpoint.

    A step trains on one episode: it updates the discriminators, then the generators. A GPU replays
    the whole step from a CUDA graph, so no part of it may wait for a result. Independent parts run
    on separate streams: the next episode is drawn during this one, and covariances are compared
    during the step of the discriminators.

    Every episode has its own random streams, seeded by its number. Several workers train on the
    next episodes in parallel, one each, and average their gradients. The graph of a step includes
    the exchange if NCCL does it; otherwise a step has three graphs.
    """

    FREE = ("num_episodes",)

    def __init__(
        self,
        gan: Gan,
        episodes: Episodes,
        config: TrainConfig,
        rng: torch.Generator,
        *,
        with_reverse_generator: bool = False,
        workers: Workers = ALONE,
    ) -> None:
        """Create the networks on the device and in the type of the episodes.

        ``with_reverse_generator`` is as in `Networks`. All workers must make the same calls.
        """
        self.gan, self.episodes = gan, episodes
        self._seed_word = draw_word(rng)
        self.networks = networks = Networks(
            gan,
            episodes.data,
            config,
            new_rng(self._seed_word, 0),
            with_reverse_generator=with_reverse_generator,
        )
        data, features = episodes.data.fingerprint, episodes.data.base.features
        super().__init__(gan.name, data, TERMS, config, networks, features.device, workers)
        self.losses = LOSSES
        self._identity = {"GAN": self.name, "data": data, "seed": self._seed_word}
        self._for_draws, self._for_noise = (new_rng(0, device=self.device) for _ in range(2))
        streams = (Beside(self.device) for _ in range(4))
        self._comparing, self._base_side, self._drawing, self._judging = streams
        self._generators, self._discriminators = (
            # The learning rate is set before the first step, and when it is annealed.
            RoundingAdam(
                parameters,
                networks.row_dtype,
                lr=new_rate(self.device),
                betas=(config.adam_beta1, 0.999),
                fused=True,
                capturable=self.device.type == "cuda",
            )
            for parameters in (networks.generator_parameters(), networks.discriminator_parameters())
        )
        optimisers = {"generators": self._generators, "discriminators": self._discriminators}
        self._parts = {"networks": networks, **optimisers}
        self._row = torch.zeros(len(TERMS), dtype=torch.float64, device=self.device)
        self._zero = torch.zeros((), dtype=features.dtype, device=self.device)
        weights = DISCRIMINATOR_WEIGHTS | generator_weights(config)
        self._weights = {name: self._zero + weight for name, weight in weights.items()}
        self._reset()

    def _reset(self) -> None:
        self._generators.round()
        self._discriminators.round()
        self._drawn: Episode | None = None
        self._factor: float | None = None
        has_covariance = self.gan.has_covariance and self.config.covariance_weight > 0
        is_capturable = not has_covariance or not needs_processor(
            self.episodes.data.base.features, self.config.ky_fan_order
        )
        rngs = (self._for_draws, self._for_noise)
        graph = partial(CudaGraph, device=self.device, rngs=rngs, is_capturable=is_capturable)
        self._is_one_graph = self._workers.is_capturable(self.device)
        self._steps: list[Callable[[], None]] = [graph(self._play)]
        if not self._is_one_graph:
            self._steps = [
                graph(self._teach_discriminators),
                partial(self._average, self._discriminators),
                graph(self._teach_generators),
                partial(self._average, self._generators),
                graph(self._finish),
            ]

    def _train_one_episode(self) -> Tensor:
        number = self.episode + self._workers.rank
        if self._drawn is None:
            reseed(self._for_draws, self._seed_word, 1, number)
            drawn = self.episodes.draw(self._for_draws)
            self._drawn = Episode(*(each.contiguous().clone() for each in drawn))
        reseed(self._for_draws, self._seed_word, 1, number + self._workers.count)
        reseed(self._for_noise, self._seed_word, 2, number)
        self._anneal()
        for step in self._steps:
            step()
        return self._row.clone()

    def _anneal(self) -> None:
        """Set both learning rates if they change at this episode."""
        config = self.config
        factor = config.anneal_factor ** (self.episode // config.anneal_every_episodes)
        if factor == self._factor:
            return
        self._factor = factor
        optimisers = (self._generators, self._discriminators)
        for optimiser, rate in zip(optimisers, config.learning_rates, strict=True):
            set_rate(optimiser, rate * factor)

    def _play(self) -> None:
        self._teach_discriminators()
        self._average(self._discriminators)
        self._teach_generators()
        self._average(self._generators)
        self._finish()

    def _average(self, optimiser: torch.optim.Adam) -> None:
        """Average the gradients of the optimiser's parameters over the workers."""
        parameters = optimiser.param_groups[0]["params"]
        self._workers.average([each.grad for each in parameters if each.grad is not None])

    def _teach_discriminators(self) -> None:
        """Translate the episode's examples; compute the discriminators' gradients."""
        assert self._drawn is not None
        gan, networks, config, episode = self.gan, self.networks, self.config, self._drawn
        self._values: Terms = dict.fromkeys(TERMS, self._zero)
        with self._drawing():
            effective = 1 / episode.sample_weights.square().sum(dim=1)
            self._values["effective_examples"] = effective.mean()
            self._values["least_effective_examples"] = effective.amin()
            self._following = self.episodes.draw(self._for_draws)
        with self._generators, self._discriminators:
            answers = None
            if config.adversarial_weight:
                with self._judging():
                    answers = networks.answers(episode)
            self._moved: Translations = networks.translate(
                episode, self._for_noise, self._base_side
            )
            with self._comparing():
                self._values |= moment_terms(gan, episode, self._moved, self.episodes.data, config)
            self._judging.wait()
            if config.adversarial_weight:
                self._values |= discriminator_terms(
                    networks, episode, self._moved, self._base_side, answers
                )
            self._base_side.wait()
        if config.adversarial_weight:
            self._set_gradients(self._discriminators, DISCRIMINATOR_WEIGHTS)
        if not self._is_one_graph:  # the CUDA graph ends here, so its streams must join
            self._comparing.wait()
            self._drawing.wait()

    def _teach_generators(self) -> None:
        """Update the discriminators; compute the generators' gradients."""
        assert self._drawn is not None
        discriminators = self.networks.discriminator_parameters()
        with self._generators, self._discriminators, _frozen(discriminators):
            answers = None
            if self.config.adversarial_weight:
                with self._judging():
                    self._discriminators.step()
                    answers = self.networks.answers(self._drawn)
            self._values |= pair_terms(
                self.gan,
                self.networks,
                self._drawn,
                self._moved,
                self.config,
                self._for_noise,
                self._base_side,
                self._judging,
                answers,
            )
        self._set_gradients(self._generators, generator_weights(self.config))
        for stream in (self._base_side, self._judging, self._comparing):
            stream.wait()

    def _set_gradients(self, optimiser: torch.optim.Adam, weights: Mapping[str, float]) -> None:
        """Compute the gradients of the optimiser's parameters, and of no others."""
        parameters: list[nn.Parameter] = optimiser.param_groups[0]["params"]
        names = [name for name in weights if self._values[name].requires_grad]
        gradients = torch.autograd.grad(
            [self._values[name] for name in names],
            parameters,
            [self._weights[name] for name in names],
            allow_unused=True,
            materialize_grads=True,
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def _finish(self) -> None:
        """Update the generators; copy the next episode into this one's tensors."""
        assert self._drawn is not None
        with self._drawing():
            if kernels := kernels_for("episodes", self._zero):
                kernels.copy_all(self._drawn, self._following)
            else:
                for current, following in zip(self._drawn, self._following, strict=True):
                    current.copy_(following)
        with self._judging():
            values = self._values
            if self.config.adversarial_weight:
                values["discriminator_objective"] = objective(values, DISCRIMINATOR_WEIGHTS)
            values["generator_objective"] = objective(values, generator_weights(self.config))
            self._row.copy_(torch.stack([values[name].detach() for name in TERMS]))
        self._generators.step()
        self._drawing.wait()
        self._judging.wait()
        del self._moved, self._values, self._following


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Treat parameters as constants, so that their gradients are not computed."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    yield
    for parameter in parameters:
        parameter.requires_grad_(True)

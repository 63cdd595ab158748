"""Meta-training: the loop over episodes, with checkpoints.

Shapes: N = meta-novel classes, M = meta-base examples, D = feature dimension.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
    discriminator_objective,
    discriminator_terms,
    generator_objective,
    generator_weights,
    moment_terms,
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
    """Meta-training of one GAN, from its first episode or from a checkpoint."""

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

        ``with_reverse_generator`` is as in `Networks`. All workers must make the same calls; see
        `_TrainingStep`.
        """
        self.gan, self.episodes = gan, episodes
        self._seed_word = draw_word(rng)
        self.networks = Networks(
            gan,
            episodes.data,
            config,
            new_rng(self._seed_word, 0),
            with_reverse_generator=with_reverse_generator,
        )
        self._step = _TrainingStep(gan, episodes, self.networks, config, self._seed_word, workers)
        data, device = episodes.data.fingerprint, self._step.device
        super().__init__(gan.name, data, TERMS, config, self.networks, device, workers)
        self.losses = LOSSES
        self._identity = {"GAN": self.name, "data": data, "seed": self._seed_word}
        self._parts = {"networks": self.networks, **self._step.optimisers}

    def _train_one_episode(self) -> Tensor:
        return self._step(self.episode)

    def _reset(self) -> None:
        self._step.reset()


class _TrainingStep:
    """Train on one episode per call: update the discriminators, then the generators.

    A GPU replays the whole step from a CUDA graph, so no part of it may wait for a result.
    Independent parts run on separate streams: the next episode is drawn during this one, and
    covariances are compared during the step of the discriminators.

    Every episode has its own random streams, seeded by its number. Several workers train on the
    next episodes in parallel, one each, and average their gradients.
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
        features = episodes.data.base.features
        self.device = features.device
        self._gan, self._episodes, self._networks = gan, episodes, networks
        self._config, self._seed_word, self._workers = config, seed_word, workers
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
        self.optimisers = {"generators": self._generators, "discriminators": self._discriminators}
        self._row = torch.zeros(len(TERMS), dtype=torch.float64, device=self.device)
        self._zero = torch.zeros((), dtype=features.dtype, device=self.device)
        weights = DISCRIMINATOR_WEIGHTS | generator_weights(config)
        self._weights = {name: self._zero + weight for name, weight in weights.items()}
        self.reset()

    def reset(self) -> None:
        """Discard the next episode and CUDA graphs, whose tensors a loaded state replaces."""
        self._generators.round()
        self._discriminators.round()
        self._episode: Episode | None = None
        self._factor: float | None = None
        has_covariance = self._gan.has_covariance and self._config.covariance_weight > 0
        is_capturable = not has_covariance or not needs_processor(
            self._episodes.data.base.features, self._config.ky_fan_order
        )
        functions = [self._teach_discriminators, self._teach_generators, self._finish]
        if self._workers.count == 1:
            functions = [self._play]
        rngs = (self._for_draws, self._for_noise)
        self._parts = [
            CudaGraph(function, self.device, rngs, is_capturable=is_capturable)
            for function in functions
        ]

    def __call__(self, number: int) -> Tensor:
        """Train on this worker's episode of the step that starts at episode ``number``.

        Returns the terms, shape (terms,).
        """
        if self._episode is None:
            reseed(self._for_draws, self._seed_word, 1, number + self._workers.rank)
            drawn = self._episodes.draw(self._for_draws)
            self._episode = Episode(*(each.contiguous().clone() for each in drawn))
        following = number + self._workers.count
        reseed(self._for_draws, self._seed_word, 1, following + self._workers.rank)
        reseed(self._for_noise, self._seed_word, 2, number + self._workers.rank)
        self._anneal(number)
        for part, optimiser in zip(
            self._parts, (self._discriminators, self._generators, None), strict=False
        ):
            part()
            parameters = optimiser.param_groups[0]["params"] if optimiser else []
            self._workers.average([each.grad for each in parameters if each.grad is not None])
        return self._row.clone()

    def _anneal(self, number: int) -> None:
        """Set both learning rates if they change at this episode."""
        config = self._config
        factor = config.anneal_factor ** (number // config.anneal_every_episodes)
        if factor == self._factor:
            return
        self._factor = factor
        set_rate(self._generators, config.generator_learning_rate * factor)
        set_rate(self._discriminators, config.discriminator_learning_rate * factor)

    def _play(self) -> None:
        self._teach_discriminators()
        self._teach_generators()
        self._finish()

    def _teach_discriminators(self) -> None:
        """Translate the episode's examples; compute the discriminators' gradients."""
        assert self._episode is not None
        gan, networks, config, episode = self._gan, self._networks, self._config, self._episode
        self._terms: Terms = dict.fromkeys(TERMS, self._zero)
        with self._drawing():
            effective = 1 / episode.sample_weights.square().sum(dim=1)
            self._terms["effective_examples"] = effective.mean()
            self._terms["least_effective_examples"] = effective.amin()
            self._following = self._episodes.draw(self._for_draws)
        with self._generators, self._discriminators:
            answers = None
            if config.adversarial_weight:
                with self._judging():
                    answers = networks.answers(episode)
            self._moved: Translations = networks.translate(
                episode, self._for_noise, self._base_side
            )
            with self._comparing():
                self._terms |= moment_terms(gan, episode, self._moved, self._episodes.data, config)
            self._judging.wait()
            if config.adversarial_weight:
                self._terms |= discriminator_terms(
                    networks, episode, self._moved, self._base_side, answers
                )
            self._base_side.wait()
        if config.adversarial_weight:
            self._set_gradients(self._discriminators, DISCRIMINATOR_WEIGHTS)
        if self._workers.count > 1:  # the CUDA graph ends here, so its streams must join
            self._comparing.wait()
            self._drawing.wait()

    def _teach_generators(self) -> None:
        """Update the discriminators; compute the generators' gradients."""
        assert self._episode is not None
        discriminators = self._networks.discriminator_parameters()
        with self._generators, self._discriminators, _frozen(discriminators):
            answers = None
            if self._config.adversarial_weight:
                with self._judging():
                    self._discriminators.step()
                    answers = self._networks.answers(self._episode)
            self._terms |= pair_terms(
                self._gan,
                self._networks,
                self._episode,
                self._moved,
                self._config,
                self._for_noise,
                self._base_side,
                self._judging,
                answers,
            )
        self._set_gradients(self._generators, generator_weights(self._config))
        for stream in (self._base_side, self._judging, self._comparing):
            stream.wait()

    def _set_gradients(self, optimiser: torch.optim.Adam, weights: Mapping[str, float]) -> None:
        """Compute the gradients of the optimiser's parameters, and of no others."""
        parameters: list[nn.Parameter] = optimiser.param_groups[0]["params"]
        names = [name for name in weights if self._terms[name].requires_grad]
        gradients = torch.autograd.grad(
            [self._terms[name] for name in names],
            parameters,
            [self._weights[name] for name in names],
            allow_unused=True,
            materialize_grads=True,
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def _finish(self) -> None:
        """Update the generators; copy the next episode into this one's tensors."""
        assert self._episode is not None
        with self._drawing():
            if kernels := kernels_for("episodes", self._zero):
                kernels.copy_all(self._episode, self._following)
            else:
                for current, following in zip(self._episode, self._following, strict=True):
                    current.copy_(following)
        with self._judging():
            if self._config.adversarial_weight:
                self._terms["discriminator_objective"] = discriminator_objective(self._terms)
            self._terms["generator_objective"] = generator_objective(self._terms, self._config)
            self._row.copy_(torch.stack([self._terms[name].detach() for name in TERMS]))
        self._generators.step()
        self._drawing.wait()
        self._judging.wait()
        del self._moved, self._terms, self._following


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Treat parameters as constants, so that their gradients are not computed."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    yield
    for parameter in parameters:
        parameter.requires_grad_(True)

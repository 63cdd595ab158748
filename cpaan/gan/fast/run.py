"""The training step of a GPU: the definitions of `cpaan.gan`, compiled, in one CUDA graph.

Independent parts run on separate streams: the next episode is drawn during this one, covariances
are compared during the step of the discriminators, and the two directions of translation run side
by side.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cpaan.core.devices import Beside, CudaGraph, new_rate, set_rate
from cpaan.core.randomness import new_rng, reseed
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import covariances
from cpaan.gan.episodes import Direction, Episode, Episodes
from cpaan.gan.fast.covariances import FastSpectra
from cpaan.gan.fast.kernels.episodes import copy_all
from cpaan.gan.fast.similarity import similarity
from cpaan.gan.gans import Gan
from cpaan.gan.loop import TERMS, TrainingRun, effective_numbers
from cpaan.gan.networks import Discriminator, Generator
from cpaan.gan.objectives import (
    DISCRIMINATOR_WEIGHTS,
    Terms,
    adversarial_loss,
    covariance_terms,
    cycle_loss,
    discriminator_loss,
    generator_weights,
    objective,
    prototype_loss,
)
from cpaan.training.workers import ALONE, Workers

_MOST_VERSIONS = 64  # of a compiled function, over all runs of a process

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function for tensors of fixed shapes."""
    torch._dynamo.config.recompile_limit = _MOST_VERSIONS
    # Padded, because a GPU is slow for products whose sizes are not multiples of eight.
    return torch.compile(function, dynamic=False, options={"force_shape_pad": True})


@dataclass(eq=False)
class _Side:
    """A generator with its discriminator, and their data in the current episode."""

    name: str
    """The classes to translate to: "novel" or "base"."""
    generator: Generator
    discriminator: Discriminator
    beside: Callable[[], AbstractContextManager[None]]
    """Context for operations of this side, which a GPU runs beside those of the other side."""
    back: Generator | None = None
    """The generator of the other side; None without a cycle."""
    cycle: str = ""
    """The term of the cycle that begins with this side's generator, and ends on the other side."""
    direction: Direction | None = None
    translated: Tensor | None = None


class FastRun(TrainingRun):
    """The same training as `TrainingRun`, in a few long operations.

    Pairs of examples and classes are bfloat16, unless the precision is full. The graph of a step
    includes the exchange of gradients if NCCL does it; otherwise a step has three graphs.
    """

    SPECTRA = FastSpectra

    def __init__(
        self,
        gan: Gan,
        episodes: Episodes,
        config: TrainConfig,
        rng: torch.Generator,
        workers: Workers = ALONE,
        compiled: Compile = compile_function,
    ) -> None:
        """Create the networks; ``compiled`` is the compiler."""
        super().__init__(gan, episodes, config, rng, workers)
        self.note = "fast engine; the first steps take longer, because they are compiled"
        nets, is_mixed = self.networks, config.precision == "mixed"
        self._row_dtype = torch.bfloat16 if is_mixed else episodes.data.base.features.dtype
        self._translate = compiled(_translate)
        self._discriminator_loss = compiled(discriminator_loss)
        self._losses_of_pairs = compiled(_losses_of_pairs)
        self._losses_of_classes = compiled(_losses_of_classes)
        streams = (Beside(self.device) for _ in range(3))
        self._comparing, self._beside, self._drawing = streams
        g_n, d_n = nets.base_to_novel, nets.novel_discriminator
        self._novel = _Side("novel", g_n, d_n, nullcontext)
        self._sides = [self._novel]
        if gan.has_cycle:
            g_b, d_b = nets.novel_to_base, nets.base_discriminator
            base = _Side("base", g_b, d_b, self._beside)
            self._sides = [base, self._novel]  # side streams start first
            if config.cycle_weight:
                self._novel.back, self._novel.cycle = g_b, "base_cycle"
                base.back, base.cycle = g_n, "novel_cycle"
        self._for_draws, self._for_noise = (new_rng(0, device=self.device) for _ in range(2))
        self._row = torch.zeros(len(TERMS), dtype=torch.float64, device=self.device)
        self._zero = torch.zeros((), device=self.device)
        weights = DISCRIMINATOR_WEIGHTS | generator_weights(config)
        self._weights = {name: self._zero + weight for name, weight in weights.items()}
        self._reset()

    def _new_optimiser(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Adam:
        return torch.optim.Adam(
            parameters,
            lr=new_rate(self.device),  # for a graph, a tensor
            betas=(self.config.adam_beta1, 0.999),
            fused=True,
            capturable=self.device.type == "cuda",
        )

    def _reset(self) -> None:
        self._drawn: Episode | None = None
        self._rates: list[float] = []
        rngs = (self._for_draws, self._for_noise)
        graph = partial(CudaGraph, device=self.device, rngs=rngs)
        self._is_one_graph = self._workers.is_capturable(self.device)
        self._steps: list[Callable[[], None]] = [graph(self._step)]
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
            drawn = self.episodes.draw(self._for_draws, similarity)
            self._drawn = Episode(*(part.contiguous().clone() for part in drawn))
        reseed(self._for_draws, self._seed_word, 1, number + self._workers.count)
        reseed(self._for_noise, self._seed_word, 2, number)
        optimisers = self._generators, self._discriminators
        rates = [self._rate_of(optimiser) for optimiser in optimisers]
        if rates != self._rates:  # setting them takes time
            for optimiser, rate in zip(optimisers, rates, strict=True):
                set_rate(optimiser, rate)
            self._rates = rates
        for step in self._steps:
            step()
        return self._row.clone()

    def _step(self) -> None:
        self._teach_discriminators()
        self._average(self._discriminators)
        self._teach_generators()
        self._average(self._generators)
        self._finish()

    def _average(self, optimiser: torch.optim.Adam) -> None:
        """Average the gradients of the optimiser's parameters over the workers."""
        parameters: list[nn.Parameter] = optimiser.param_groups[0]["params"]
        self._workers.average([weight.grad for weight in parameters if weight.grad is not None])

    def _teach_discriminators(self) -> None:
        """Translate the episode's pairs; compute the discriminators' gradients."""
        assert self._drawn is not None
        drawn, terms = self._drawn, Terms()
        self._values = terms
        with self._drawing():
            terms |= effective_numbers(drawn)
            self._following = self.episodes.draw(self._for_draws, similarity)
        with self._narrow():
            for side in self._sides:
                with side.beside():
                    noise = self._draw_noise(side.generator)
                    direction, side.translated = self._translate(
                        side.name, side.generator, drawn, noise, self._row_dtype
                    )
                    side.direction = _with_absent_classes(direction)
            with self._comparing():
                terms |= self._terms_of_classes(drawn)
            for side in self._sides if self.config.adversarial_weight else ():
                assert side.translated is not None
                with side.beside():
                    terms[f"{side.name}_discriminator"] = self._discriminator_loss(
                        side.discriminator, side.direction, side.translated.detach()
                    )
        self._beside.wait()
        if self.config.adversarial_weight:
            self._set_gradients(self._discriminators, DISCRIMINATOR_WEIGHTS)
        if not self._is_one_graph:  # the CUDA graph ends here, so its streams must join
            self._comparing.wait()
            self._drawing.wait()

    def _terms_of_classes(self, episode: Episode) -> Terms:
        """Compute the terms for means and covariances of translated classes."""
        has_covariance = self.gan.has_covariance and bool(self.config.covariance_weight)
        if not has_covariance and not self.config.prototype_weight:
            return {}
        prototype, of_translated = self._losses_of_classes(
            self._novel.translated, episode, has_covariance
        )
        terms = {"prototype": prototype} if self.config.prototype_weight else {}
        if has_covariance:
            assert self._spectra is not None, "the GAN has a covariance term"
            terms |= covariance_terms(of_translated, episode, self._spectra, self.config)
        return terms

    def _teach_generators(self) -> None:
        """Update the discriminators; compute the generators' gradients."""
        config = self.config
        if config.adversarial_weight:
            self._discriminators.step()
        assert self._novel.direction is not None
        weights = self._novel.direction.weights
        with self._narrow(), _frozen(self.networks.discriminator_parameters()):
            for side in self._sides:
                with side.beside():
                    adversarial, cycle = self._losses_of_pairs(
                        side.discriminator,
                        side.back,
                        side.direction,
                        side.translated,
                        self._draw_noise(side.back),
                        weights,
                        config,
                    )
                if adversarial is not None:
                    self._values[f"{side.name}_adversarial"] = adversarial
                if cycle is not None:
                    self._values[side.cycle] = cycle
        self._beside.wait()
        self._set_gradients(self._generators, generator_weights(config))
        self._beside.wait()
        self._comparing.wait()

    def _set_gradients(self, optimiser: torch.optim.Adam, weights: Mapping[str, float]) -> None:
        """Compute the gradients of the optimiser's parameters, and of no others."""
        parameters: list[nn.Parameter] = optimiser.param_groups[0]["params"]
        names = [name for name in weights if name in self._values]
        gradients = torch.autograd.grad(
            [self._values[name] for name in names],
            parameters,
            [self._weights[name] for name in names],
            allow_unused=True,
            materialize_grads=True,
        )
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # The compiler pads odd sizes, and Adam refuses a slice of a padded gradient.
            parameter.grad = gradient.contiguous()

    def _finish(self) -> None:
        """Update the generators; copy the next episode into this one's tensors."""
        assert self._drawn is not None
        with self._drawing():
            copy_all(self._drawn, self._following)
        with self._beside():
            terms = self._values
            if self.config.adversarial_weight:
                terms["discriminator_objective"] = objective(terms, DISCRIMINATOR_WEIGHTS)
            terms["generator_objective"] = objective(terms, generator_weights(self.config))
            values = [terms.get(name, self._zero).detach().double() for name in TERMS]
            self._row.copy_(torch.stack(values))
        self._generators.step()
        self._drawing.wait()
        self._beside.wait()
        del self._values, self._following
        for side in self._sides:
            side.direction = side.translated = None

    def _draw_noise(self, generator: Generator | None) -> Tensor | None:
        """Draw the noise of a generator for every pair, shape (N, M, Z); None without noise."""
        assert self._drawn is not None
        if generator is None or generator.from_noise is None:
            return None
        like, shape = self._zero.to(self._row_dtype), tuple(self._drawn.weights.shape)
        noise: Tensor = self.networks.noise(shape, self._for_noise, like)
        return noise

    def _narrow(self) -> AbstractContextManager[Any]:
        """Return the context in which matrix products have the type of the rows."""
        is_mixed = self._row_dtype == torch.bfloat16
        # Weights change at every step, so their narrow copies must not be kept.
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=is_mixed, cache_enabled=False
        )


def _translate(
    target: str, generator: Generator, episode: Episode, noise: Tensor | None, dtype: torch.dtype
) -> tuple[Direction, Tensor]:
    """Return the direction to novel or base classes, with rows of a type, and its translations."""
    rows = ("shots", "real", "base_examples", "novel_prototypes", "base_prototypes")
    episode = episode._replace(**{name: getattr(episode, name).to(dtype) for name in rows})
    direction = episode.to_novel() if target == "novel" else episode.to_base()
    inputs = direction.examples, direction.source, direction.target
    return direction, generator(*inputs, noise)


def _with_absent_classes(direction: Direction) -> Direction:
    """Add classes that are absent, because a GPU is slow if not for a multiple of eight answers."""
    prototypes, is_present = direction.prototypes, direction.is_present
    count = -(len(prototypes) + 1) % 8
    return direction._replace(
        prototypes=torch.cat([prototypes, prototypes.new_zeros(count, prototypes.shape[1])]),
        is_present=torch.cat([is_present, is_present.new_zeros(count)]),
    )


def _losses_of_pairs(
    discriminator: Discriminator,
    back: Generator | None,
    direction: Direction,
    translated: Tensor,
    noise: Tensor | None,
    cycle_weights: Tensor,
    config: TrainConfig,
) -> tuple[Tensor | None, Tensor | None]:
    """Compute the adversarial loss of a generator, and the cycle that begins with it.

    Together, so that the gradients of translated examples are added in one pass.
    """
    adversarial = cycle = None
    if config.adversarial_weight:
        adversarial = adversarial_loss(discriminator, direction, translated, config)
    if back is not None and config.cycle_weight:
        cycle = cycle_loss(back, direction, translated, noise, cycle_weights)
    return adversarial, cycle


def _losses_of_classes(
    translated: Tensor, episode: Episode, with_covariances: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute the prototype loss and the covariances of translated classes, in float32."""
    loss = prototype_loss(translated, episode)
    if not with_covariances:
        return loss, None
    return loss, covariances(translated, episode.sample_weights).float()


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Treat parameters as constants, so that their gradients are not computed."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    yield
    for parameter in parameters:
        parameter.requires_grad_(True)

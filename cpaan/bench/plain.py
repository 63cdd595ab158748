"""Plain definition of a training step: formulas on tensors that hold every pair.

Generators get the concatenation of all their inputs, repeated for every pair. Discriminators follow
their definition. The covariance term is a singular value decomposition of every difference, with
the gradient of autograd. Tests compare the fast path with this module, and benchmarks measure the
speed-up. Parameters are those of the fast path's networks.

Shapes: N = meta-novel classes, M = meta-base examples, C = base classes, D = feature dimension,
Z = noise dimension, K = shots.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear, relu

from cpaan.core.devices import quick_products, set_rate
from cpaan.core.randomness import new_rng
from cpaan.gan import objectives
from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import covariances
from cpaan.gan.episodes import Episode, Episodes, MetaEpisodes, TrainingData
from cpaan.gan.gans import Gan, Networks
from cpaan.gan.loop import LOSSES, TrainingRun
from cpaan.gan.networks import Discriminator, Generator
from cpaan.gan.objectives import Terms, choose_covariance_classes, generator_weights, objective

_SLOPE = 0.1  # of leaky ReLU


class PlainPairs(NamedTuple):
    """All pairs of a meta-novel class and a meta-base example; shapes (N, M, D)."""

    base_examples: Tensor
    base_prototypes: Tensor
    novel_prototypes: Tensor
    shots: Tensor  # inputs of G_b
    sources: Tensor  # (N, M) positions of the base examples' classes
    novel: Tensor  # (N, M) positions of the novel classes
    translated: Tensor  # base examples translated into novel classes
    returned: Tensor | None  # shots translated into base classes, if there is a reverse generator


def write_out(networks: Networks, episode: Episode, rng: torch.Generator) -> PlainPairs:
    """Repeat the parts of an episode for every pair, and translate them."""
    shape = episode.weights.shape
    novel = torch.arange(shape[0], device=episode.weights.device).unsqueeze(1).expand(shape)
    sources = episode.sources.expand(shape)
    examples = episode.base_examples.expand(*shape, -1)
    base_prototypes = episode.base_prototypes[sources]
    novel_prototypes = episode.novel_prototypes[novel]
    shots = episode.shots[novel, episode.partners]
    returned = None
    if networks.has_reverse_generator:
        noise = networks.noise(tuple(shape), rng, examples)
        returned = generate(networks.novel_to_base, shots, novel_prototypes, base_prototypes, noise)
    translated = generate(networks.base_to_novel, examples, base_prototypes, novel_prototypes)
    return PlainPairs(
        examples, base_prototypes, novel_prototypes, shots, sources, novel, translated, returned
    )


def generate(
    network: Generator,
    examples: Tensor,
    source: Tensor,
    target: Tensor,
    noise: Tensor | None = None,
) -> Tensor:
    """Translate examples (N, M, D) by a three-layer perceptron of all concatenated inputs.

    The network stores its first layer in parts: the columns of the weight for each input.
    """
    parts = [network.from_example, network.from_source, network.from_target]
    inputs = [examples, source, target]
    if network.from_noise is not None:
        assert noise is not None
        parts.append(network.from_noise)
        inputs.append(noise)
    weight = torch.cat([part.weight for part in parts], dim=1)
    hidden = linear(torch.cat(inputs, dim=-1), weight, network.from_example.bias)
    hidden = network.hidden(leaky_relu(hidden, _SLOPE))
    output = network.last(leaky_relu(hidden, _SLOPE))
    if network.residual == "identity":
        output = output + examples
    elif network.residual == "mean-shift":
        output = output + examples - source + target
    return relu(output) if network.rectified else output


def answer(
    network: Discriminator, examples: Tensor, prototypes: Tensor, is_present: Tensor | None = None
) -> Tensor:
    """Return log-probabilities of classes and, last, of "fake", shape (..., classes + 1).

    Classes with a False ``is_present`` have probability zero.
    """
    hidden = leaky_relu(network.first(examples), _SLOPE)
    hidden = network.embed(leaky_relu(network.hidden(hidden), _SLOPE))
    logits = hidden @ network.key(prototypes).T / math.sqrt(hidden.shape[-1])
    if is_present is not None:
        logits = logits.masked_fill(~is_present, -math.inf)
    return torch.cat([logits, network.fake(hidden)], dim=-1).log_softmax(dim=-1)


def _base_answers(networks: Networks, episode: Episode, examples: Tensor) -> Tensor:
    """Return the answers of D_b, shape (..., C - N + 1), over classes of the batch only."""
    every_class = torch.arange(len(episode.base_classes), device=episode.sources.device)
    is_present = torch.isin(every_class, episode.sources)
    return answer(networks.base_discriminator, examples, episode.base_prototypes, is_present)


def discriminator_terms(networks: Networks, episode: Episode, pairs: PlainPairs) -> Terms:
    """Return the discriminators' cross-entropies, for real examples' classes and "fake"."""
    num_novel = len(episode.weights)
    novel = torch.arange(num_novel, device=episode.weights.device)
    discriminator, prototypes = networks.novel_discriminator, episode.novel_prototypes
    of_class = answer(discriminator, episode.real, prototypes)[novel, :, novel]  # (N, K)
    fake = answer(discriminator, pairs.translated.detach(), prototypes)[..., -1]
    terms = {
        "novel_discriminator": -(episode.real_weights * of_class).sum() / num_novel
        - (episode.weights * fake).sum() / num_novel
    }
    if pairs.returned is not None:
        real = _base_answers(networks, episode, episode.base_examples)
        of_class = real.gather(-1, episode.sources.unsqueeze(-1))
        fake = _base_answers(networks, episode, pairs.returned.detach())[..., -1]
        terms["base_discriminator"] = -of_class.mean() - (episode.back_weights * fake).sum()
    return terms


def generator_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    pairs: PlainPairs,
    data: TrainingData,
    config: TrainConfig,
    rng: torch.Generator,
) -> Terms:
    """Return the generators' terms with a nonzero weight."""
    terms: Terms = {}
    weights = episode.weights / len(episode.weights)
    if config.adversarial_weight:
        answers = answer(networks.novel_discriminator, pairs.translated, episode.novel_prototypes)
        terms["novel_adversarial"] = _adversarial(answers, pairs.novel, weights, config)
        if pairs.returned is not None:
            answers = _base_answers(networks, episode, pairs.returned)
            terms["base_adversarial"] = _adversarial(
                answers, pairs.sources, episode.back_weights, config
            )
    if gan.has_cycle and config.cycle_weight:
        assert pairs.returned is not None
        base, novel = pairs.base_prototypes, pairs.novel_prototypes
        noise = networks.noise(tuple(weights.shape), rng, pairs.translated)
        novel_again = generate(networks.base_to_novel, pairs.returned, base, novel)
        base_again = generate(networks.novel_to_base, pairs.translated, novel, base, noise)
        for name, again, originals in (
            ("novel_cycle", novel_again, pairs.shots),
            ("base_cycle", base_again, pairs.base_examples),
        ):
            terms[name] = (weights * (again - originals).square().sum(dim=-1)).sum()
    if gan.has_covariance and config.covariance_weight:
        assert data.spectra is not None
        of_translated = covariances(pairs.translated, episode.sample_weights).unsqueeze(1)
        classes, scores, terms["similarity_left_out"] = choose_covariance_classes(episode, config)
        norms = ky_fan(data.spectra.matrices[classes] - of_translated, config.ky_fan_order)
        terms["covariance"] = (scores * norms).sum(dim=1).mean()
    if config.prototype_weight:
        means = (episode.sample_weights.unsqueeze(-1) * pairs.translated).sum(dim=1)
        terms["prototype"] = (means - episode.class_means).square().sum(dim=1).mean()
    return terms


def _adversarial(answers: Tensor, targets: Tensor, weights: Tensor, config: TrainConfig) -> Tensor:
    """Return the loss of a generator, for answers (N, M, classes + 1) and targets (N, M)."""
    if config.generator_loss == "minimax":
        return (weights * answers[..., -1]).sum()
    return -(weights * answers.gather(-1, targets.unsqueeze(-1)).squeeze(-1)).sum()


def ky_fan(matrices: Tensor, m: int) -> Tensor:
    """Return the sum of the m largest singular values of matrices (..., D, D), by a full SVD."""
    return torch.linalg.svd(matrices).S[..., :m].sum(dim=-1)


def both_terms(
    gan: Gan, networks: Networks, data: TrainingData, config: TrainConfig, rng: torch.Generator
) -> tuple[tuple[Terms, Terms], tuple[Terms, Terms]]:
    """Return the terms of one episode by the fast and the plain path, with equal noise.

    Each has the terms of discriminators, then those of generators, at the same weights.
    """
    episode = MetaEpisodes(data, config).draw(rng)
    state = rng.get_state()
    with quick_products(rng.device):
        moved = networks.translate(episode, rng)
        fast = objectives.moment_terms(gan, episode, moved, data, config)
        of_discriminators = objectives.discriminator_terms(networks, episode, moved)
        fast |= objectives.pair_terms(gan, networks, episode, moved, config, rng)
    rng.set_state(state)
    pairs = write_out(networks, episode, rng)
    plain = generator_terms(gan, networks, episode, pairs, data, config, rng)
    return (of_discriminators, fast), (discriminator_terms(networks, episode, pairs), plain)


class PlainRun(TrainingRun):
    """A plain training loop with the networks, random streams and settings of the fast path."""

    def __init__(
        self, gan: Gan, episodes: Episodes, config: TrainConfig, rng: torch.Generator
    ) -> None:
        super().__init__(gan, episodes, config, rng)
        betas = (config.adam_beta1, 0.999)
        networks = self.networks
        self._plain_generators, self._plain_discriminators = (
            torch.optim.Adam(parameters, lr=0.0, betas=betas)
            for parameters in (networks.generator_parameters(), networks.discriminator_parameters())
        )

    def step(self) -> None:
        """Draw an episode, update the discriminators, then the generators."""
        networks, config = self.networks, self.config
        with quick_products(self.device):
            rng, for_noise = (
                new_rng(self._seed_word, word, self.episode, device=self.device) for word in (1, 2)
            )
            episode = self.episodes.draw(rng)
            pairs = write_out(networks, episode, for_noise)
            if config.adversarial_weight:
                terms = discriminator_terms(networks, episode, pairs)
                loss = torch.stack(list(terms.values())).sum()
                self._update(self._plain_discriminators, config.learning_rates[1], loss)
            terms = generator_terms(
                self.gan, networks, episode, pairs, self.episodes.data, config, for_noise
            )
            zero = torch.zeros((), device=self.device)
            loss = objective({**dict.fromkeys(LOSSES, zero), **terms}, generator_weights(config))
            self._update(self._plain_generators, config.learning_rates[0], loss)
        self.episode += 1

    def _update(self, optimiser: torch.optim.Adam, learning_rate: float, loss: Tensor) -> None:
        num_anneals = self.episode // self.config.anneal_every_episodes
        set_rate(optimiser, learning_rate * self.config.anneal_factor**num_anneals)
        # Only this side's gradients, as in the fast path. If a term has weight zero, some
        # parameters do not affect the loss.
        parameters = optimiser.param_groups[0]["params"]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimiser.step()

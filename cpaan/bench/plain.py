"""The plain definition of an episode: formulas on tensors that hold every pair, one by one.

Nothing here is quick. Generators get all their inputs side by side and repeated for every pair,
discriminators are called as they are defined, and the covariance term is a singular value
decomposition of every difference, with torch's own gradient. It is what tests hold the fast path
against, and what benchmarks compare it with. Parameters are those of the fast path's networks.

Shapes: N = meta-novel classes, M = meta-base examples, C = base classes, D = feature dimension,
Z = noise dimension, L = base classes that a novel class is compared with.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear, relu

from cpaan.core.devices import quick_products
from cpaan.core.randomness import new_rng, reseed
from cpaan.gan.config import TrainConfig
from cpaan.gan.episodes import Episode, Episodes
from cpaan.gan.gans import Gan, Networks, Terms
from cpaan.gan.networks import Discriminator, Generator
from cpaan.gan.noise import MixtureNoise
from cpaan.gan.training_data import TrainingData
from cpaan.protocol.neighbours import draw_by

_SLOPE = 0.1  # of leaky ReLU


class Draws(NamedTuple):
    """All random numbers of a step after its episode was drawn."""

    noise: Tensor | None  # (N, M, Z) of G_b; None: no way back
    cycle_noise: Tensor | None  # (N, M, Z) of G_b in the cycle; None: no cycle
    covariance_classes: Tensor | None  # (N, L) positions among meta-base classes, where sampled


def draw(
    gan: Gan, networks: Networks, episode: Episode, config: TrainConfig, rng: torch.Generator
) -> Draws:
    """Draw in the order of the fast path, which only this function knows."""
    noise = cycle_noise = classes = None
    alpha = episode.alpha
    if networks.has_way_back:
        noise = _draw_noise(networks, episode, rng)
    if gan.has_covariance and config.covariance_weight and config.covariance_classes == "sampled":
        count = min(config.num_covariance_classes, alpha.shape[1])
        uniforms = torch.rand((len(alpha), count), generator=rng, device=alpha.device)
        classes = draw_by(alpha, uniforms)
    if gan.has_cycle and config.cycle_weight:
        cycle_noise = _draw_noise(networks, episode, rng)
        if config.cycle_noise == "forward":
            cycle_noise = torch.zeros_like(cycle_noise)
    return Draws(noise, cycle_noise, classes)


def _draw_noise(networks: Networks, episode: Episode, rng: torch.Generator) -> Tensor:
    """Return noise for every pair: a component first, where it is a mixture; then the normal."""
    shape, like = episode.weights.shape, episode.base_examples
    noise = networks.noise
    if isinstance(noise, MixtureNoise):
        component = torch.randint(len(noise.means), shape, generator=rng, device=like.device)
    standard = torch.randn(
        (*shape, noise.num_dims), generator=rng, device=like.device, dtype=like.dtype
    )
    if isinstance(noise, MixtureNoise):
        return noise.means[component] + noise.deviations[component] * standard
    return standard


class Pairs(NamedTuple):
    """Every meta-novel class with every meta-base example, written out; shapes (N, M, D)."""

    base_examples: Tensor
    base_prototypes: Tensor
    novel_prototypes: Tensor
    shots: Tensor  # which the way back starts from
    sources: Tensor  # (N, M) positions of the base examples' classes
    novel: Tensor  # (N, M) positions of the novel classes


def write_out(episode: Episode) -> Pairs:
    """Repeat an episode's parts for every pair."""
    shape = episode.weights.shape
    novel = torch.arange(shape[0], device=episode.weights.device).unsqueeze(1).expand(shape)
    sources = episode.sources.expand(shape)
    return Pairs(
        base_examples=episode.base_examples.expand(*shape, -1),
        base_prototypes=episode.base_prototypes[sources],
        novel_prototypes=episode.novel_prototypes[novel],
        shots=episode.shots[novel, episode.partners],
        sources=sources,
        novel=novel,
    )


def generate(
    network: Generator, examples: Tensor, source: Tensor, target: Tensor, noise: Tensor | None
) -> Tensor:
    """Translate examples: a perceptron of three layers of all inputs side by side.

    Args:
        network: Has the first layer in parts: the columns of its weight for every input.
        examples: Shape (N, M, D); so have the prototypes.
        source: Prototypes of the examples' classes.
        target: Prototypes of the classes that they shall be of.
        noise: Shape (N, M, Z), or None for a generator without.
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


def translate(
    networks: Networks, pairs: Pairs, noise: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return base examples in novel classes, and shots in base classes, both (N, M, D)."""
    translated = generate(
        networks.base_to_novel,
        pairs.base_examples,
        pairs.base_prototypes,
        pairs.novel_prototypes,
        None,
    )
    if noise is None:
        return translated, None
    returned = generate(
        networks.novel_to_base, pairs.shots, pairs.novel_prototypes, pairs.base_prototypes, noise
    )
    return translated, returned


def answer(
    network: Discriminator,
    examples: Tensor,
    classes: Tensor,
    prototypes: Tensor,
    is_present: Tensor | None,
    config: TrainConfig,
) -> Tensor:
    """Return log-probabilities of classes and, last, of "fake", shape (..., classes + 1).

    Args:
        network: D_n or D_b.
        examples: Shape (..., D).
        classes: Positions among all base classes, shape (classes,).
        prototypes: Of those classes, shape (classes, D).
        is_present: Which of them can be the answer; None: all.
        config: Tells which kind of discriminator it is.
    """
    hidden = leaky_relu(network.first(examples), _SLOPE)
    hidden = leaky_relu(network.hidden(hidden), _SLOPE)
    if config.discriminator == "fixed":
        logits = network.classes(hidden)[..., classes]
    else:
        hidden = network.embed(hidden)
        logits = hidden @ network.key(prototypes).T / math.sqrt(config.hidden_dim)
    if is_present is not None:
        logits = logits.masked_fill(~is_present, -math.inf)
    return torch.cat([logits, network.fake(hidden)], dim=-1).log_softmax(dim=-1)


def _novel_answers(
    networks: Networks, episode: Episode, examples: Tensor, config: TrainConfig
) -> Tensor:
    """Return what D_n says, shape (..., N + 1)."""
    return answer(
        networks.novel_discriminator,
        examples,
        episode.novel_classes,
        episode.novel_prototypes,
        None,
        config,
    )


def _base_answers(
    networks: Networks, episode: Episode, examples: Tensor, config: TrainConfig
) -> Tensor:
    """Return what D_b says, shape (..., C - N + 1): only classes of the batch are answers."""
    every_class = torch.arange(len(episode.base_classes), device=episode.sources.device)
    return answer(
        networks.base_discriminator,
        examples,
        episode.base_classes,
        episode.base_prototypes,
        torch.isin(every_class, episode.sources),
        config,
    )


def discriminator_terms(
    networks: Networks,
    episode: Episode,
    translated: Tensor,
    returned: Tensor | None,
    config: TrainConfig,
) -> Terms:
    """Return the discriminators' cross-entropies: real examples' classes, and "fake"."""
    num_novel = len(episode.weights)
    novel = torch.arange(num_novel, device=episode.weights.device)
    real = _novel_answers(networks, episode, episode.real, config)  # (N, K, N + 1)
    of_class = real[novel, :, novel]
    fake = _novel_answers(networks, episode, translated.detach(), config)[..., -1]
    terms = {
        "novel_discriminator": -(episode.real_weights * of_class).sum() / num_novel
        - (episode.weights * fake).sum() / num_novel
    }
    if returned is not None:
        real = _base_answers(networks, episode, episode.base_examples, config)
        of_class = real.gather(-1, episode.sources.unsqueeze(-1))
        fake = _base_answers(networks, episode, returned.detach(), config)[..., -1]
        terms["base_discriminator"] = -of_class.mean() - (episode.back_weights * fake).sum()
    return terms


def generator_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    pairs: Pairs,
    translated: Tensor,
    returned: Tensor | None,
    draws: Draws,
    data: TrainingData,
    config: TrainConfig,
) -> Terms:
    """Return the generators' terms, those of the weight zero left out."""
    terms: Terms = {}
    weights = episode.weights / len(episode.weights)
    if config.adversarial_weight:
        answers = _novel_answers(networks, episode, translated, config)
        terms["novel_adversarial"] = _adversarial(answers, pairs.novel, weights, config)
        if returned is not None:
            answers = _base_answers(networks, episode, returned, config)
            terms["base_adversarial"] = _adversarial(
                answers, pairs.sources, episode.back_weights, config
            )
    if draws.cycle_noise is not None:
        assert returned is not None
        novel_again = generate(
            networks.base_to_novel, returned, pairs.base_prototypes, pairs.novel_prototypes, None
        )
        base_again = generate(
            networks.novel_to_base,
            translated,
            pairs.novel_prototypes,
            pairs.base_prototypes,
            draws.cycle_noise,
        )
        distances = (novel_again - pairs.shots).square().sum(dim=-1)
        terms["novel_cycle"] = (weights * distances).sum()
        distances = (base_again - pairs.base_examples).square().sum(dim=-1)
        terms["base_cycle"] = (weights * distances).sum()
    if gan.has_covariance and config.covariance_weight:
        of_translated = weighted_covariances(translated, episode.sample_weights)
        terms["covariance"], terms["similarity_left_out"] = covariance_term(
            of_translated, episode, draws.covariance_classes, data, config
        )
    if config.prototype_weight:
        means = (episode.sample_weights.unsqueeze(-1) * translated).sum(dim=1)
        terms["prototype"] = (means - episode.class_means).square().sum(dim=1).mean()
    if networks.has_way_back and config.noise_penalty:
        penalty = weights.new_zeros(())
        if isinstance(networks.noise, MixtureNoise):
            penalty = (1 - networks.noise.deviations).square().mean()
        terms["noise_penalty"] = penalty
    return terms


def _adversarial(answers: Tensor, targets: Tensor, weights: Tensor, config: TrainConfig) -> Tensor:
    """Return what generators want of answers (N, M, classes + 1), given targets (N, M)."""
    if config.generator_loss == "minimax":
        return (weights * answers[..., -1]).sum()
    return -(weights * answers.gather(-1, targets.unsqueeze(-1)).squeeze(-1)).sum()


def weighted_covariances(examples: Tensor, weights: Tensor) -> Tensor:
    """Return covariances (N, D, D) of examples (N, M, D) by weights (N, M) that sum to one."""
    weights = weights.unsqueeze(-1)
    deviations = examples - (weights * examples).sum(dim=1, keepdim=True)
    return (weights * deviations).transpose(1, 2) @ deviations


def ky_fan(matrices: Tensor, m: int) -> Tensor:
    """Return the sum of the m largest singular values of matrices (..., D, D), by all of them."""
    singular_values: Tensor = torch.linalg.svd(matrices).S
    return singular_values[..., :m].sum(dim=-1)


def covariance_term(
    of_translated: Tensor,
    episode: Episode,
    sampled: Tensor | None,
    data: TrainingData,
    config: TrainConfig,
) -> tuple[Tensor, Tensor]:
    """Return how far covariances (N, D, D) are from related base classes', and what is left out.

    Args:
        of_translated: Covariances of translated classes.
        episode: Has the similarities of base classes.
        sampled: Classes that were drawn, shape (N, L), where that is how they are chosen.
        data: Has the base classes' covariances.
        config: Which classes are compared, and how.
    """
    assert data.spectra is not None
    alpha, kind = episode.alpha, config.covariance_classes
    num_novel, num_base = alpha.shape
    of_base = data.spectra.matrices[episode.base_classes]  # (C - N, D, D)
    left_out = alpha.new_zeros(())
    if kind == "mixture":
        matrices = (alpha @ of_base.flatten(1)).view(num_novel, 1, *of_base.shape[1:])
        scores = torch.ones_like(alpha[:, :1])
    elif sampled is not None:
        matrices = of_base[sampled]
        scores = torch.full_like(alpha[:, :1], 1 / sampled.shape[1]).expand(sampled.shape)
    else:
        count = num_base if kind == "all" else min(config.num_covariance_classes, num_base)
        scores, nearest = alpha.topk(count, dim=1)
        matrices = of_base[nearest]
        left_out = (1 - scores.sum(dim=1)).mean()
        if config.normalised_weights:
            scores = scores / scores.sum(dim=1, keepdim=True)
    if not config.normalised_weights:
        scores = scores / (config.num_neighbours if config.neighbours == "hard" else num_base)

    distances = ky_fan(matrices - of_translated.unsqueeze(1), config.ky_fan_order)
    if config.relative_covariance:
        # A class of equal examples has no covariance; against the largest norm it is nothing.
        norms = ky_fan(matrices, config.ky_fan_order)
        largest = norms if kind == "mixture" else ky_fan(data.spectra.matrices, config.ky_fan_order)
        distances = distances / norms.clamp(min=torch.finfo(norms.dtype).eps * largest.max())
    return (scores * distances).sum(dim=1).mean(), left_out


def plain_terms(
    gan: Gan,
    networks: Networks,
    episode: Episode,
    data: TrainingData,
    config: TrainConfig,
    rng: torch.Generator,
) -> tuple[Terms, Terms]:
    """Return the discriminators' and the generators' terms of one episode at the same weights.

    Args:
        gan: Which of the four.
        networks: The fast path's own, so that gradients can be compared.
        episode: One episode.
        data: What it was drawn from.
        config: Everything else.
        rng: In the state that the fast path's would be in, which noise is drawn from.
    """
    draws = draw(gan, networks, episode, config, rng)
    pairs = write_out(episode)
    translated, returned = translate(networks, pairs, draws.noise)
    return (
        discriminator_terms(networks, episode, translated, returned, config),
        generator_terms(gan, networks, episode, pairs, translated, returned, draws, data, config),
    )


def objective_of_discriminators(terms: Terms) -> Tensor:
    """Return the sum of both cross-entropies."""
    return sum(terms.values(), start=torch.zeros_like(terms["novel_discriminator"]))


def objective_of_generators(terms: Terms, config: TrainConfig) -> Tensor:
    """Return the weighted sum of the terms that there are."""
    weights = {
        "novel_adversarial": config.adversarial_weight,
        "base_adversarial": config.adversarial_weight,
        "novel_cycle": config.cycle_weight,
        "base_cycle": config.cycle_weight,
        "covariance": config.covariance_weight,
        "prototype": config.prototype_weight,
        "noise_penalty": config.noise_penalty,
    }
    weighted = [weights[name] * term for name, term in terms.items() if name in weights]
    return sum(weighted[1:], start=weighted[0])


class PlainRun:
    """Meta-training as one would write it down; the fast path's random streams and numbers."""

    def __init__(
        self, gan: Gan, episodes: Episodes, config: TrainConfig, rng: torch.Generator
    ) -> None:
        """Draw the networks' weights: those of a `cpaan.gan.loop.TrainingRun` of an equal rng."""
        self._gan, self._episodes, self._config = gan, episodes, config
        self._episode = 0
        self._seed_word = int(torch.randint(2**62, (), generator=rng))
        self._rng = new_rng(0, device=episodes.data.base.features.device)
        self._for_noise = new_rng(0, device=self._rng.device)
        self.networks = Networks(
            gan,
            episodes.data,
            config,
            new_rng(self._seed_word, 0),
            has_way_back=gan.has_cycle,
        )
        self._generators = _adam(self.networks.of_generators(), config)
        self._discriminators = _adam(self.networks.of_discriminators(), config)

    def step(self) -> Terms:
        """Draw an episode, update the discriminators, then the generators; return all terms."""
        gan, networks, config = self._gan, self.networks, self._config
        with quick_products(self._rng.device):
            reseed(self._rng, self._seed_word, 1, self._episode)
            episode = self._episodes.draw(self._rng)
            reseed(self._for_noise, self._seed_word, 2, self._episode)
            draws = draw(gan, networks, episode, config, self._for_noise)
            pairs = write_out(episode)
            translated, returned = translate(networks, pairs, draws.noise)
            of_discriminators: Terms = {}
            if config.adversarial_weight:
                of_discriminators = discriminator_terms(
                    networks, episode, translated, returned, config
                )
                self._update(
                    self._discriminators,
                    config.discriminator_learning_rate,
                    objective_of_discriminators(of_discriminators),
                )
            of_generators = generator_terms(
                gan,
                networks,
                episode,
                pairs,
                translated,
                returned,
                draws,
                self._episodes.data,
                config,
            )
            self._update(
                self._generators,
                config.generator_learning_rate,
                objective_of_generators(of_generators, config),
            )
        self._episode += 1
        return {
            name: term.detach() for name, term in {**of_discriminators, **of_generators}.items()
        }

    def _update(self, optimiser: torch.optim.Adam, learning_rate: float, loss: Tensor) -> None:
        (group,) = optimiser.param_groups
        num_anneals = self._episode // self._config.anneal_every_episodes
        group["lr"] = learning_rate * self._config.anneal_factor**num_anneals
        # Only this side's gradients, as the fast path: the other side's would be thrown away.
        optimiser.zero_grad()
        loss.backward(inputs=group["params"])
        # Where a term has the weight zero, some parameter may have no part in the loss.
        for parameter in group["params"]:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        optimiser.step()


def _adam(parameters: list[nn.Parameter], config: TrainConfig) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=0.0, betas=(config.adam_beta1, 0.999))

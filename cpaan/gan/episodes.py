"""Data of meta-training, and episodes in which some base classes act as novel classes.

All draws are on the device of the features. Shapes: C = base classes, N = meta-novel classes,
M = meta-base examples, K = shots, D = feature dimension. Pairs of a meta-novel class and a
meta-base example have shape (N, M); values that all meta-novel classes share have shape (1, M).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cpaan.gan.config import TrainConfig
from cpaan.gan.covariance import covariances
from cpaan.protocol.augmentation import Translation, synthesise
from cpaan.protocol.config import NeighbourSettings
from cpaan.protocol.neighbours import check_neighbours, draw_by, similarity
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.few_shot_episodes import rows_of_least_keys

_LEAST_SIMILARITY = 1e-20

Similarity = Callable[[Tensor, Tensor, NeighbourSettings], Tensor]
"""Function of novel and base prototypes; see `cpaan.protocol.neighbours.similarity`."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Normalised base examples and constants of their classes."""

    base: BaseSet
    scale: float
    """Factor from normalised features to the original features."""
    covariances: Tensor | None
    """Covariances of the classes, shape (C, D, D); None if they are not compared."""
    fingerprint: str
    """Fingerprint of the examples before normalisation."""

    @classmethod
    def prepare(
        cls,
        base: BaseSet,
        config: TrainConfig,
        *,
        with_covariances: bool,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Normalise base examples and compute their covariances.

        Classes are sorted by name. A phase puts its own classes first, but both have the same base
        classes; sorting lets them share a training run.
        """
        scale = 1.0
        if config.normalisation == "spread":
            base.check_finite()
            scale = base.variance**0.5
        ordered = base.in_order_of_names()
        normalised = BaseSet(ordered.features.to(dtype) / scale, ordered.counts, ordered.names)
        of_classes = None
        if with_covariances:
            of_classes = torch.stack([covariances(rows) for rows in normalised.by_class()])
        return cls(normalised, scale, of_classes, base.fingerprint)

    def normalise(self, features: Tensor) -> Tensor:
        """Convert features, shape (..., D), to the scale of the networks."""
        return features.to(self.base.features.dtype) / self.scale

    @property
    def is_positive(self) -> bool:
        """Whether no feature is negative."""
        return bool((self.base.features >= 0).all())

    @torch.no_grad()
    def synthesise(
        self,
        task: LowShotTask,
        translate: Translation,
        *,
        neighbours: NeighbourSettings,
        num_synthetic: int,
        rng: torch.Generator,
    ) -> Tensor:
        """Synthesise examples with a translation that was trained on normalised features.

        The task must have the base examples given to `prepare`. Returns examples on the scale of
        the task, shape (problems, novel classes, num_synthetic, D).
        """
        normalised = replace(task, base=self.base, shots=self.normalise(task.shots))
        synthetic = synthesise(
            normalised, translate, neighbours=neighbours, num_synthetic=num_synthetic, rng=rng
        )
        return synthetic.mul_(self.scale).to(task.shots.dtype)


def check_training(
    config: TrainConfig, counts: Tensor, num_dims: int, *, with_covariances: bool = True
) -> None:
    """Raise ValueError if settings do not suit base classes with these ``counts``, shape (C,)."""
    num_base = len(counts)
    if num_base - config.num_ways < 2:
        raise ValueError(
            f"num_ways is {config.num_ways}, but can be at most {num_base - 2}: at least 2 of "
            f"{num_base} base classes must remain as meta-base classes (--set num_ways=...)"
        )
    smallest = int(counts.min())
    if config.max_shots > smallest:
        raise ValueError(
            f"episode_shots has {config.max_shots}, but the smallest base class has {smallest} "
            "examples (--set episode_shots=...)"
        )
    if with_covariances and config.ky_fan_order > num_dims:
        raise ValueError(
            f"ky_fan_order is {config.ky_fan_order}, but features have {num_dims} dimensions; "
            f"use --set ky_fan_order={num_dims} or less"
        )
    check_neighbours(config, num_base - config.num_ways)


class EpisodeClasses(NamedTuple):
    """Examples of an episode's meta-novel classes, and its meta-base classes."""

    shots: Tensor  # (N, K, D)
    shot_weights: Tensor  # (K,) sums to one; zero beyond the episode's number of shots
    class_means: Tensor  # (N, D) of the whole classes, unknown in low-shot learning
    real: Tensor  # (N, K, D) real examples for D_n
    real_weights: Tensor  # (K,) sums to one
    base_classes: Tensor  # (C - N,) positions of the meta-base classes


class Episode(NamedTuple):
    """A simulated low-shot problem: its classes, base examples, and weights of all pairs."""

    shots: Tensor
    shot_weights: Tensor
    class_means: Tensor
    real: Tensor
    real_weights: Tensor
    base_classes: Tensor
    novel_prototypes: Tensor  # (N, D) of the shots
    base_prototypes: Tensor  # (C - N, D) of the whole classes
    alpha: Tensor  # (N, C - N) similarity
    sources: Tensor  # (1, M) meta-base classes of the examples
    base_examples: Tensor  # (1, M, D)
    partners: Tensor  # (N, M) shot of the meta-novel class paired with an example
    weights: Tensor  # (N, M) of translations to novel classes, in every loss
    sample_weights: Tensor  # (N, M) of the same examples in a class's mean and covariance
    back_weights: Tensor  # (N, M) of translations to base classes

    def to_novel(self) -> "Direction":
        """Return the direction of G_n and D_n: from base examples to every novel class."""
        num_novel, num_real, _ = self.real.shape
        classes = torch.arange(num_novel, device=self.real.device)
        return Direction(
            examples=self.base_examples,
            source=self.base_prototypes[self.sources],
            target=self.novel_prototypes.unsqueeze(1),
            labels=classes.unsqueeze(1),
            weights=self.weights / num_novel,  # a mean over novel classes
            real=self.real.flatten(0, 1),
            real_labels=classes.repeat_interleave(num_real),
            real_weights=(self.real_weights / num_novel).repeat(num_novel),
            prototypes=self.novel_prototypes,
            is_present=torch.ones_like(classes, dtype=torch.bool),
        )

    def to_base(self) -> "Direction":
        """Return the direction of G_b and D_b: from the shot of every pair to its base class."""
        classes = torch.arange(len(self.shots), device=self.shots.device).unsqueeze(1)
        is_present = torch.zeros_like(self.base_classes, dtype=torch.bool)
        return Direction(
            examples=self.shots[classes, self.partners],
            source=self.novel_prototypes.unsqueeze(1),
            target=self.base_prototypes[self.sources],
            labels=self.sources,
            weights=self.back_weights,
            real=self.base_examples.flatten(0, 1),
            real_labels=self.sources.flatten(),
            real_weights=torch.full_like(self.weights[0], 1 / self.sources.numel()),
            prototypes=self.base_prototypes,
            is_present=is_present.index_fill(0, self.sources.flatten(), True),
        )


class Direction(NamedTuple):
    """One direction of an episode's pairs: what to translate, and data for the discriminator.

    The discriminator's classes are those of the target side, A of them. R are real examples.
    """

    examples: Tensor  # (1 or N, M, D)
    source: Tensor  # (1, M, D) or (N, 1, D) prototypes of their classes
    target: Tensor  # (N, 1, D) or (1, M, D) prototypes of the classes to translate to
    labels: Tensor  # (N, 1) or (1, M) these classes, as positions among the discriminator's
    weights: Tensor  # (N, M) of translations in the adversarial loss
    real: Tensor  # (R, D)
    real_labels: Tensor  # (R,)
    real_weights: Tensor  # (R,)
    prototypes: Tensor  # (A, D) of the discriminator's classes
    is_present: Tensor  # (A,) whether the batch has examples of the class


class Episodes(ABC):
    """Source of episodes without random state: equal ``rng`` states give equal episodes."""

    def __init__(self, data: TrainingData, config: TrainConfig) -> None:
        self.data, self._config = data, config

    @abstractmethod
    def draw_classes(self, rng: torch.Generator) -> EpisodeClasses:
        """Draw the classes of an episode, and examples of its novel classes."""

    def draw(self, rng: torch.Generator, similarity: Similarity = similarity) -> Episode:
        """Draw novel classes and base examples, and weight every pair of the two.

        A novel class's loss is an expectation over base classes, weighted by similarity α. With
        uniform draws, most weights would be near zero. If every class drew by its α, classes could
        not share examples. So one batch is drawn by ᾱ, the mean of α over novel classes. An example
        of base class b has weight α_b / ᾱ_b, which gives the same expectation.
        """
        config, data, classes = self._config, self.data, self.draw_classes(rng)
        prototypes = torch.einsum("nkd,k->nd", classes.shots, classes.shot_weights)
        base_prototypes = data.base.prototypes[classes.base_classes]
        alpha = similarity(prototypes, base_prototypes, config)
        # Scores of the paper's formula fall to 1e-40 and below. Such weights do not change a loss,
        # but their products are subnormal numbers, for which a CPU is ten times slower.
        alpha = alpha.masked_fill(alpha < _LEAST_SIMILARITY, 0)
        # Soft scores pair a novel class with all base classes, even if they underflow to zero.
        is_related = alpha > 0 if config.neighbours == "hard" else torch.ones_like(alpha).bool()
        share = alpha.mean(dim=0, keepdim=True)  # (1, C - N) probability of a base class
        if config.sampling == "uniform":
            share = is_related.any(dim=0, keepdim=True).to(alpha.dtype)
            share = share / share.sum()
        sources = draw_by(share, _uniforms((1, config.num_base_examples), rng))
        places = _uniforms(sources.shape, rng)
        base_examples = data.base.pick(classes.base_classes[sources], places)

        pair_alpha = alpha.gather(1, sources.expand(len(alpha), -1))  # (N, M)
        if config.normalised_weights:
            weights = pair_alpha / share.gather(1, sources)
            # A shared batch may lack examples related to a class; all then have equal weights.
            weights = weights.masked_fill((weights == 0).all(dim=1, keepdim=True), 1)
            weights = sample_weights = weights / weights.sum(dim=1, keepdim=True)
            # In reverse, the novel classes of a base class are weighted by their similarity to it.
            back = pair_alpha / alpha.sum(dim=0)[sources].clamp(min=_LEAST_SIMILARITY)
            back_weights = back / back.sum()
        else:
            # The paper's literal formula: a plain mean over examples of related classes, whose
            # losses are multiplied by α. Means and covariances of classes are unweighted.
            is_pair = is_related.gather(1, sources.expand(len(alpha), -1))
            counts = (is_pair | ~is_pair.any(dim=1, keepdim=True)).to(alpha.dtype)
            sample_weights = counts / counts.sum(dim=1, keepdim=True)
            weights = pair_alpha * sample_weights
            back_weights = pair_alpha / pair_alpha.numel()

        places = _uniforms((pair_alpha.numel(),), rng)
        partners = draw_by(classes.shot_weights, places).view_as(pair_alpha)
        return Episode(
            *classes,
            novel_prototypes=prototypes,
            base_prototypes=base_prototypes,
            alpha=alpha,
            sources=sources,
            base_examples=base_examples,
            partners=partners,
            weights=weights,
            sample_weights=sample_weights,
            back_weights=back_weights,
        )


class MetaEpisodes(Episodes):
    """Episodes of base classes, some of which act as novel classes."""

    def __init__(self, data: TrainingData, config: TrainConfig) -> None:
        super().__init__(data, config)
        self._numbers_of_shots = torch.tensor(config.episode_shots, device=data.base.counts.device)
        self._most_examples = int(data.base.counts.max())

    def draw_classes(self, rng: torch.Generator) -> EpisodeClasses:
        """Draw classes and shots."""
        config, base = self._config, self.data.base
        device = base.counts.device
        order = self.order_classes(rng)
        novel_classes, base_classes = order[: config.num_ways], order[config.num_ways :]

        keys = _uniforms((config.num_ways, self._most_examples), rng)
        shots = rows_of_least_keys(base, novel_classes, keys, config.max_shots)
        choice = torch.randint(len(self._numbers_of_shots), (1,), generator=rng, device=device)
        is_shot = torch.arange(config.max_shots, device=device) < self._numbers_of_shots[choice]
        shot_weights = is_shot.to(shots.dtype) / is_shot.sum()
        real, real_weights = shots, shot_weights
        if config.real_examples == "class":
            places = _uniforms(shots.shape[:2], rng)
            real = base.pick(novel_classes.unsqueeze(1).expand(shots.shape[:2]), places)
            real_weights = torch.full_like(shot_weights, 1 / config.max_shots)
        means = base.prototypes[novel_classes]
        return EpisodeClasses(shots, shot_weights, means, real, real_weights, base_classes)

    def order_classes(self, rng: torch.Generator) -> Tensor:
        """Return all classes in random order, shape (C,); the first ``num_ways`` are meta-novel.

        Subclasses may restrict the meta-novel classes, but must not wait for the device.
        """
        return _uniforms((len(self.data.base.counts),), rng).argsort()


def _uniforms(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64)

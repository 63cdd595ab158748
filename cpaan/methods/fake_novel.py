"""Cosine classifiers that generate the weights of novel classes, trained on fake-novel episodes.

An episode treats some base classes as novel and gives only a few shots of them. The other classes
keep their weights. Queries of all classes are classified among all classes. Methods differ in how
they compute weights from shots; each is a `WeightLearner`.

Shapes: D = feature dimension, C = all base classes, B = given base classes, N = novel classes,
K = shots, P = problems, Q = queries.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cpaan.methods.base import LowShotLearner
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.few_shot_episodes import FewShotEpisode, FewShotEpisodes
from cpaan.training.layers import drop
from cpaan.training.learning import EpisodeSettings, LearningSettings


@dataclass(frozen=True, kw_only=True)
class FakeNovelSettings(EpisodeSettings, LearningSettings):
    """Settings of the episodes and of the cosine classifier."""

    num_ways: int = 400
    """Classes of an episode, fake-novel and base; all base classes if there are fewer."""
    novel_share: float = 250 / 389
    """Share of an episode's classes that are treated as novel; at least one is, and one is not."""
    num_queries: int = 6
    """Queries per class, fake-novel or base."""
    centred: bool = True
    """Whether to subtract the mean of the base prototypes from features. After a ReLU, features
    have one sign, so angles between them are small."""
    cosine_scale: float = 10.0
    """Factor of cosines at the start; it is learnt."""
    dropout: float = 0.0
    """Dropout rate of features in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("cosine_scale")
        self._refuse(["novel_share"], lambda share: 0 < share < 1, "above 0 and below 1")
        self._refuse_unless_below_one("dropout")


class WeightLearner(LowShotLearner):
    """A cosine classifier that stores base weights and generates novel ones."""

    _config: FakeNovelSettings
    centre: Tensor

    def __init__(self, base: BaseSet, config: FakeNovelSettings) -> None:
        super().__init__()
        self._config = config
        self._episodes = FewShotEpisodes(base, config)
        base.check_finite()
        centre = base.prototypes.mean(dim=0).float()
        self.register_buffer("centre", centre if config.centred else torch.zeros_like(centre))
        self.log_scale = nn.Parameter(torch.tensor(math.log(config.cosine_scale)))
        num_classes = min(config.num_ways, len(base.counts))
        wanted = round(config.novel_share * num_classes)
        self._num_novel = min(max(1, wanted), num_classes - 1)

    def directions(self, features: Tensor) -> Tensor:
        """Centre features of any shape (..., D), and scale them to length one."""
        return normalize(features.float() - self.centre, dim=-1)

    def class_directions(self, base: BaseSet) -> Tensor:
        """Return unit-length mean directions of the base classes, shape (C, D), on the CPU."""
        means = [self.directions(rows).mean(dim=0) for rows in base.by_class()]
        return normalize(torch.stack(means), dim=-1).cpu()

    @abstractmethod
    def weights(self, base: Tensor, supports: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return the weights of base classes, then of novel ones, shape (B + N, D).

        Args:
            base: Positions of base classes in name order, shape (B,).
            supports: Directions of the novel classes' shots, shape (N, K, D).
            rng: Random stream for the noise of training; None for no noise.
        """

    def scores(self, queries: Tensor, weights: Tensor) -> Tensor:
        """Return scaled cosines (..., Q, classes) of directions (Q, D) and non-zero weights."""
        return self.log_scale.exp() * normalize(queries, dim=-1) @ normalize(weights, dim=-1).mT

    def draw(self, num_shots: int, rng: torch.Generator) -> FewShotEpisode:
        """Draw directions of an episode: base classes, then novel ones, which have the supports."""
        classes, supports, queries, labels = self._episodes.draw(num_shots, rng)
        share = self._config.dropout
        return FewShotEpisode(
            classes.roll(-self._num_novel),  # the first classes drawn are novel
            drop(self.directions(supports[: self._num_novel]), share, rng),
            drop(self.directions(queries), share, rng),
            (labels - self._num_novel) % len(classes),
        )

    def draw_shape(self, rng: torch.Generator) -> int:
        """Draw the number of shots of an episode."""
        return self._episodes.draw_num_shots(rng)

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Return the cross-entropy of an episode's queries among all of its classes."""
        episode = self.draw(shape, rng)
        weights = self.weights(episode.classes[: -self._num_novel], episode.supports, rng)
        return [cross_entropy(self.scores(episode.queries, weights), episode.labels)]

    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Generate the weights of every problem, given all base classes."""
        in_order = torch.arange(len(task.base.counts), device=task.device)
        shots = self.directions(task.shots)
        # One at a time: attention or messages of one problem take up to a few hundred megabytes.
        generated = [
            self.weights(in_order, shots[problem.draw, :, : problem.num_shots])
            for problem in task.problems
        ]
        weights = torch.stack(generated)[:, task.columns_from(task.base.order)]
        return lambda queries: self.scores(self.directions(queries), weights)

"""Hallucinators: examples made of an example and of noise, such that they help a classifier.

Wang, Girshick, Hebert & Hariharan (2018), Low-Shot Learning from Imaginary Data: a hallucinator
makes further examples of a class, until it has a given number, and learns together with the
classifier that uses them, by episodes in which the loss of the queries reaches both.

Chosen where the source is silent. The hallucinator works on features as they are, before any
embedding, in units of a base class's spread, which give the noise its scale. The published one has
a ReLU behind every layer and begins at the identity, which only features that are not negative
survive; ours says what is added to an example, nothing at the start, and so suits all features.
Weight decay pulls either towards the identity. Real examples take turns as seeds, because random
ones would give some of them more weight than others: top-5 at five shots was lower by two.

Shapes: P = problems, N = classes, K = shots, S = hallucinated examples of a class, Q = queries,
D = feature dimension.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from cpaan.core.randomness import draw_word, new_rng
from cpaan.core.settings import Choice, Range, SearchSpace, Settings
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.few_shot_episodes import FewShotEpisodes, percent_right
from cpaan.training.layers import draw_linear, set_to_zero
from cpaan.training.learning import EpisodeRngs, Learner

HALLUCINATOR_SPACE: SearchSpace = {
    "num_augmented": Choice(6, 10, 20, 40),
    "noise": Range(0.1, 3.0, log=True),
}
"""What a search tries, beside the settings of the classifier."""


@dataclass(frozen=True, kw_only=True)
class HallucinatorSettings(Settings):
    """What is hallucinated, and by which network.

    Raises:
        ValueError: If a value makes no sense.
    """

    num_augmented: int = 10
    """Examples of a class, real and hallucinated ones together; nothing is hallucinated where
    there are as many real ones."""
    hallucinator: Literal["residual", "relu"] = "residual"
    """Residual: the network's output is added to the example. Relu: there is a ReLU behind every
    layer, as published; features must not be negative."""
    seeds: Literal["in-turn", "random"] = "in-turn"
    """Which real examples are hallucinated from. In turn: all, again and again, so that none
    outweighs the others. Random: drawn with replacement, as published."""
    noise: float = 1.0
    """Standard deviation of the noise, in units of a base class's in a dimension."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_augmented")
        self._refuse_negative("noise")

    def num_hallucinated(self, num_shots: int) -> int:
        """Return S: what a class with so many shots lacks."""
        return max(0, self.num_augmented - num_shots)


class Hallucinator(nn.Module):
    """Three layers, as wide as the features, that make an example of an example and of noise."""

    centre: Tensor
    unit: Tensor

    def __init__(self, base: BaseSet, settings: HallucinatorSettings, rng: torch.Generator) -> None:
        """Begin at the identity, whatever the noise; ``rng`` is on the CPU.

        Raises:
            ValueError: If features are negative, but the hallucinator is to end in a ReLU.
        """
        super().__init__()
        self._settings = settings
        self._is_residual = settings.hallucinator == "residual"
        num_dims = base.features.shape[1]
        if not self._is_residual and (smallest := float(base.features.min())) < 0:
            raise ValueError(
                f"hallucinator=relu is for features that are not negative, but one is {smallest} "
                "(hallucinator=residual is for all)"
            )
        centre = base.prototypes.mean(dim=0).cpu() if self._is_residual else torch.zeros(num_dims)
        # A power of two: dividing by it and multiplying again gives the same number.
        unit = 2.0 ** round(math.log2(math.sqrt(base.variance / num_dims)))
        self.register_buffer("centre", centre.float())
        self.register_buffer("unit", torch.tensor(unit))
        self.first = draw_linear(2 * num_dims, num_dims, rng)
        self.second = draw_linear(num_dims, num_dims, rng)
        self.last = draw_linear(num_dims, num_dims, rng)
        # Of a residual one, zeros in the last layer are enough; in others, nothing would learn.
        set_to_zero(self.last if self._is_residual else self)

    def forward(self, examples: Tensor, noise: Tensor) -> Tensor:
        """Return hallucinated examples, shape (..., D).

        Args:
            examples: Seeds, shape (..., D).
            noise: Standard normal numbers, shape (..., D).
        """
        inputs = (examples - self.centre) / self.unit
        hidden = torch.cat([inputs, self._settings.noise * noise], dim=-1)
        if self._is_residual:
            change = self.last(relu(self.second(relu(self.first(hidden)))))
            return examples + self.unit * change
        # The weights are what differs from the rectangular identity, so that they decay to that.
        for layer in (self.first, self.second, self.last):
            hidden = relu(hidden[..., : examples.shape[-1]] + layer(hidden))
        return self.unit * hidden

    def hallucinate(self, supports: Tensor, uniforms: Tensor, noise: Tensor) -> Tensor:
        """Return hallucinated examples of every class, shape (N, S, D).

        Args:
            supports: Real examples, shape (N, K, D).
            uniforms: Which of them are the seeds, as numbers from 0 to 1, shape (N, S); seeds that
                are even need no more than the shape.
            noise: Shape (N, S, D).
        """
        num_classes, num_shots, _ = supports.shape
        rows = (uniforms * num_shots).long().clamp(max=num_shots - 1)
        if self._settings.seeds == "in-turn":
            rows = torch.arange(rows.shape[1], device=rows.device).expand_as(rows) % num_shots
        classes = torch.arange(num_classes, device=supports.device).unsqueeze(1)
        hallucinated: Tensor = self(supports[classes, rows], noise)
        return hallucinated

    def fill(self, supports: Tensor, rng: torch.Generator) -> Tensor:
        """Return real examples and behind them hallucinated ones, shape (N, K + S, D)."""
        num_classes, num_shots, num_dims = supports.shape
        num_hallucinated = self._settings.num_hallucinated(num_shots)
        if not num_hallucinated:
            return supports
        shape, device = (num_classes, num_hallucinated), supports.device
        uniforms = torch.rand(shape, generator=rng, device=device)
        noise = torch.randn((*shape, num_dims), generator=rng, device=device)
        return torch.cat([supports, self.hallucinate(supports, uniforms, noise)], dim=1)

    @torch.no_grad()
    def imagine(self, task: LowShotTask, rng: torch.Generator) -> list[Tensor]:
        """Return hallucinated examples of each problem, P times shape (N, S, D); S may be zero.

        Problems of one draw share the random numbers whatever their shots, and do not depend on
        which other problems there are.
        """
        word = draw_word(rng)
        shape = (task.num_novel, self._settings.num_augmented)
        drawn = {}
        for draw in {problem.draw for problem in task.problems}:
            of_draw = new_rng(word, draw)
            uniforms = torch.rand(shape, generator=of_draw)
            noise = torch.randn((*shape, task.shots.shape[-1]), generator=of_draw)
            drawn[draw] = (uniforms.to(task.device), noise.to(task.device))
        hallucinated = []
        for problem in task.problems:
            count = self._settings.num_hallucinated(problem.num_shots)
            uniforms, noise = (each[:, :count] for each in drawn[problem.draw])
            hallucinated.append(self.hallucinate(task.support(problem), uniforms, noise))
        return hallucinated


class Imagining(Learner):
    """A hallucinator and a classifier, which learn together."""

    TERMS = ("query_loss", "query_top1")

    episodes: FewShotEpisodes
    hallucinator: Hallucinator

    @abstractmethod
    def scores(self, supports: Tensor, queries: Tensor, rng: torch.Generator) -> Tensor:
        """Return logits in training, shape (Q, N); the ``rng`` is of their device."""

    def episode_terms(self, rngs: EpisodeRngs) -> list[Tensor]:
        """Return the cross-entropy of an episode's queries, and how many are right, in percent."""
        episode = self.episodes.draw_next(rngs)
        filled = self.hallucinator.fill(episode.supports, rngs.device)
        scores = self.scores(filled, episode.queries, rngs.device)
        return [cross_entropy(scores, episode.labels), percent_right(scores, episode.labels)]

"""Feature Imagination (FI) on PMN. Wang, Girshick, Hebert & Hariharan (2018), Low-Shot
Learning from Imaginary Data.

A hallucinator makes further examples of a class of real ones and of noise, until the class has a
given number; see `parts.hallucinators`. It is meta-learned together with a Prototype Matching
Network, which reads them in one sequence with the real ones and takes class means of all.

Chosen where the source is silent: base classes are learnt from real train rows alone; real and
hallucinated examples are repeated until a novel class has as many as a base class. The rest is
chosen as for Prototype Matching Networks without a hallucinator, but for shorter training.

Shapes: P = problems, N = novel classes, Q = queries, D = feature dimension.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from cpaan.core.settings import Range, SearchSpace
from cpaan.methods.base import MetaLearned
from cpaan.methods.parts.balanced_supports import encode_problems
from cpaan.methods.parts.contextual import MatcherSettings, PrototypeMatcher
from cpaan.methods.parts.hallucinators import (
    HALLUCINATOR_SPACE,
    Hallucinator,
    HallucinatorSettings,
    Imagining,
)
from cpaan.protocol.config import OWN
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem
from cpaan.training.few_shot_episodes import FewShotEpisodes
from cpaan.training.learning import EpisodeSettings, LearningRun, LearningSettings


@dataclass(frozen=True, kw_only=True)
class MatchingImaginationConfig(
    HallucinatorSettings, MatcherSettings, EpisodeSettings, LearningSettings
):
    """Everything that decides the training, apart from features and seed.

    Raises:
        ValueError: If a value makes no sense.
    """

    num_episodes: int = 600
    """Episodes of training."""
    num_ways: int = 50
    """Classes of an episode; all base classes where there are fewer. With ``num_augmented``, it
    decides the length of a sequence, and so the time."""
    episode_shots: tuple[int, ...] = (1, 2, 5)
    """Supports of a class; an episode draws one of these numbers."""
    learning_rate: float = 1e-3
    """At the start."""
    weight_decay: float = 5.0
    """Share of the matrices that a step takes away, in units of the learning rate."""
    context_gate: float = 0.1
    """What the recurrent networks' outputs are multiplied by, when training starts, before they are
    added to an example: 0 for no context at all, 1 as published."""
    num_examples: int = 20
    """Supports of a class when novel classes are learnt: random train rows of a base class; real
    and hallucinated examples are repeated until there are as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_examples")


PUBLISHED = MatchingImaginationConfig(
    num_episodes=60_000,
    optimiser="sgd",
    learning_rate=0.1,
    schedule="thirds",
    weight_decay=1e-3,
    episode_shots=(1, 2, 3, 4, 5),
    num_queries=1,
    normalisation="none",
    context_gate=1.0,
    learns_gate=False,
    attention_scale=1.0,
    dropout=0.0,
    distance="euclidean",
    num_augmented=20,
    hallucinator="relu",
    seeds="random",
)
"""The recipe of Matching Networks, whose encoders these are."""

SPACE: SearchSpace = {
    "learning_rate": Range(3e-5, 3e-3, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    **HALLUCINATOR_SPACE,
}


class ImaginingMatcher(Imagining):
    """A hallucinator and a Prototype Matching Network, which reads what was hallucinated, too."""

    def __init__(
        self, base: BaseSet, config: MatchingImaginationConfig, rng: torch.Generator
    ) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If there are too few examples, or they do not suit the settings.
        """
        super().__init__()
        self.episodes = FewShotEpisodes(base, config)
        self.matcher = PrototypeMatcher(base, config, rng)
        self.hallucinator = Hallucinator(base, config, rng)

    def scores(self, supports: Tensor, queries: Tensor, rng: torch.Generator) -> Tensor:
        """Return scaled similarities with class means, all in context."""
        return self.matcher.scores(supports, queries, rng)

    def set_scale(self, rng: torch.Generator) -> None:
        """Do as the matcher does, by an episode."""
        episode = self.episodes.draw_middling(rng)
        self.matcher.set_scale(episode.supports, episode.queries, rng)


class MatchingImagination(MetaLearned[MatchingImaginationConfig]):
    """FI on PMN: class means in context, where the context has hallucinated examples, too."""

    NAME = "Matching Imagination"

    def new_learner(self, base: BaseSet, rng: torch.Generator) -> ImaginingMatcher:
        """Draw hallucinator and matcher."""
        return ImaginingMatcher(base, self._config, rng)

    @torch.no_grad()
    def adapt(self, run: LearningRun, task: LowShotTask, rng: torch.Generator) -> None:
        """Hallucinate examples of the novel classes, and take class means of all in context."""
        assert isinstance(run.learner, ImaginingMatcher)
        self._matcher = run.learner.matcher
        hallucinated = run.learner.hallucinator.imagine(task, rng)
        self.take_note_of(hallucinated)
        self._prototypes = encode_problems(
            _filled(task, hallucinated), self._config.num_examples, rng, self._matcher.prototypes
        )

    @torch.no_grad()
    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return logits: scaled similarities with class means."""
        return {OWN: torch.stack([self._matcher.match(each, queries) for each in self._prototypes])}


def _filled(task: LowShotTask, hallucinated: list[Tensor]) -> LowShotTask:
    """Return a task whose shots are the real and hallucinated examples, each problem its own."""
    examples = [
        torch.cat([task.support(problem), each], dim=1)
        for problem, each in zip(task.problems, hallucinated, strict=True)
    ]
    counts = [each.shape[1] for each in examples]
    shots = torch.stack([pad(each, (0, 0, 0, max(counts) - each.shape[1])) for each in examples])
    problems = tuple(Problem(count, number) for number, count in enumerate(counts))
    return replace(task, shots=shots, problems=problems)

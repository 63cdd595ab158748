"""Feature Imagination (FI) on PN. Wang, Girshick, Hebert & Hariharan (2018), Low-Shot
Learning from Imaginary Data.

A hallucinator makes further examples of a class of real ones and of noise, until the class has a
given number; see `parts.hallucinators`. It is meta-learned together with a prototypical
network, whose loss reaches both: examples need not look real, but help to classify.

Chosen where the source is silent: base classes are learnt from real train rows alone; the heads of
the evaluation, too, learn from real and hallucinated examples in the embedding, every example with
the same weight, as in training.

Shapes: P = problems, N = novel classes, Q = queries, D = feature dimension.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng
from cpaan.core.settings import Range, SearchSpace
from cpaan.methods.base import Keeping, MetaLearned
from cpaan.methods.parts.grouped_heads import GroupedHeads
from cpaan.methods.parts.hallucinators import (
    HALLUCINATOR_SPACE,
    Hallucinator,
    HallucinatorSettings,
    Imagining,
)
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import PrototypicalNetwork, prototype_scores
from cpaan.training.learning import LearningRun


@dataclass(frozen=True, kw_only=True)
class ImaginationConfig(HallucinatorSettings, EmbeddingConfig):
    """Everything that decides the training, apart from features and seed.

    Raises:
        ValueError: If a value makes no sense.
    """

    num_augmented: int = 40
    """Examples of a class, real and hallucinated ones together; nothing is hallucinated where
    there are as many real ones."""


PUBLISHED = replace(
    ImaginationConfig.plain(), num_augmented=20, hallucinator="relu", seeds="random"
)
"""Their numbers of episodes and examples are not known, nor is their learning rate: the rest is the
usual recipe of a prototypical network."""
SPACE: SearchSpace = {
    "learning_rate": Range(3e-4, 1e-2, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    **HALLUCINATOR_SPACE,
}


class ImaginingNetwork(Imagining):
    """A hallucinator and a prototypical network."""

    def __init__(self, base: BaseSet, config: ImaginationConfig, rng: torch.Generator) -> None:
        """Draw the weights; ``rng`` is on the CPU.

        Raises:
            ValueError: If there are too few examples, or they do not suit the settings.
        """
        super().__init__()
        self.network = PrototypicalNetwork(base, config, rng)
        self.hallucinator = Hallucinator(base, config, rng)
        self.episodes = self.network.episodes

    def scores(self, supports: Tensor, queries: Tensor, rng: torch.Generator) -> Tensor:
        """Return scaled distances to class means in the embedding, less than zero."""
        network = self.network
        scores = prototype_scores(network(supports, rng), network(queries, rng))
        return network.log_scale.exp() * scores

    def set_scale(self, rng: torch.Generator) -> None:
        """Do as the prototypical network does."""
        self.network.set_scale(rng)


class Imagination(MetaLearned[ImaginationConfig]):
    """FI on PN: prototypes and heads in the embedding, of real and hallucinated examples."""

    NAME = "Imagination"

    def __init__(
        self,
        config: ImaginationConfig,
        evaluation: EvaluationConfig,
        keeping: Keeping = Keeping(),  # noqa: B008  # it is frozen
    ) -> None:
        """Keep the settings.

        Args:
            config: Of the training, and how much is hallucinated.
            evaluation: Of the heads; every example has the same weight all the same.
            keeping: Where the training is kept.
        """
        super().__init__(config, keeping)
        alike = {"mixing_shots": None, "mixing_weight": None}
        self._heads = GroupedHeads(evaluation.with_overrides(alike))
        self._base: tuple[LearningRun, int, BaseSet, BaseSet] | None = None

    def new_learner(self, base: BaseSet, rng: torch.Generator) -> ImaginingNetwork:
        """Draw hallucinator and embedding."""
        return ImaginingNetwork(base, self._config, rng)

    def adapt(self, run: LearningRun, task: LowShotTask, rng: torch.Generator) -> None:
        """Hallucinate examples of the novel classes, embed all, and fit the heads to them."""
        assert isinstance(run.learner, ImaginingNetwork)
        self._network = run.learner.network
        hallucinated = run.learner.hallucinator.imagine(task, rng)
        embedded = replace(
            task, base=self._embed_base(run, task.base), shots=self._network.embed(task.shots)
        )
        synthetic = [self._network.embed(each) for each in hallucinated]
        self.take_note_of(synthetic)
        novel = [
            torch.cat([embedded.support(problem), each], dim=1).mean(dim=1)
            for problem, each in zip(task.problems, synthetic, strict=True)
        ]
        self._num_base, self._num_problems = task.num_base, len(task.problems)
        # Base classes once, then the novel ones of every problem.
        self._prototypes = torch.cat([embedded.base.prototypes[: task.num_base], *novel])
        word, places = draw_word(rng), list(HEAD_CLASSES)
        self._heads.fit(
            embedded, synthetic, lambda name, count: new_rng(word, places.index(name), count)
        )

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return logarithms of odds by distances to prototypes, and each head's scores."""
        queries = self._network.embed(queries)
        return {OWN: self._own_scores(queries), **self._heads.scores(queries)}

    def represent(self, examples: Tensor) -> Tensor:
        """Return examples in the embedding, in which classes are compared."""
        return self._network.embed(examples)

    def _own_scores(self, queries: Tensor) -> Tensor:
        scale = self._network.log_scale.detach().exp()
        scores = scale * prototype_scores(self._prototypes.unsqueeze(1), queries)
        of_base, of_novel = scores.split(
            [self._num_base, len(self._prototypes) - self._num_base], dim=1
        )
        of_novel = of_novel.unflatten(1, (self._num_problems, -1)).transpose(0, 1)
        return torch.cat([of_base.expand(self._num_problems, -1, -1), of_novel], dim=2)

    def _embed_base(self, run: LearningRun, base: BaseSet) -> BaseSet:
        """Embed all base rows, anew only for other weights."""
        if self._base is None or self._base[:3] != (run, run.episode, base):
            self._base = (run, run.episode, base, self._network.embed_base(base))
        return self._base[3]

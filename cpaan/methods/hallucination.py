"""Feature Hallucination (FH). Hariharan & Girshick (2017), Low-shot Visual Recognition by Shrinking
and Hallucinating Features.

Base classes are clustered, and pairs of clusters of two classes that differ alike make analogies: a
is to b as c is to d. A network learns b from a, c and d, and then moves a shot of a novel class as
any base class goes from one of its clusters to another, until the class has twenty examples.

Chosen where the source's recipe (`PUBLISHED`) does not suit other features: the network's output is
added to a + (d - c), because what is learnt from few clusters alone blurs; features are divided by
the spread within base classes, so that both losses mean the same for all of them; k-means starts
from rows; shots take turns as seeds, because random ones weigh them by chance, which cost two
points at five shots on real features. The last ReLU is there where features have one. The frozen
classifier, which the source takes from its backbone where it can, is softmax regression on base
rows. `cpaan.methods.parts.analogy_network` has what is learnt.

Shapes: P = problems, N = novel classes, S = synthetic examples of a class, D = feature dimension.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng, spawn
from cpaan.core.settings import Choice, Range, SearchSpace
from cpaan.methods.base import Keeping, TrainedAugmentation
from cpaan.methods.parts.analogy_network import AnalogyNetwork, AnalogySettings
from cpaan.methods.parts.grouped_heads import GroupedHeads
from cpaan.protocol.config import EvaluationConfig
from cpaan.protocol.heads import HEAD_CLASSES
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.learning import LearningRun
from cpaan.training.workers import Workers


@dataclass(frozen=True, kw_only=True)
class HallucinationConfig(AnalogySettings):
    """Everything that decides feature hallucination, apart from features and seed.

    Raises:
        ValueError: If a value makes no sense.
    """

    max_per_class: int = 20
    """Examples of a novel class, shots and synthetic ones together; with more shots there are no
    synthetic ones."""
    mixing_shots: float | None = 2.0
    """All synthetic examples of a class weigh as much as so many shots; none: every single example
    weighs the same, real or synthetic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("max_per_class")
        if self.mixing_shots is not None:
            self._refuse_unless_positive("mixing_shots")


PUBLISHED = HallucinationConfig(
    num_episodes=120_000,
    batch_size=128,
    optimiser="sgd",
    learning_rate=0.1,
    schedule="thirds",
    weight_decay=1e-4,
    num_clusters=100,
    cluster_start="sphere",
    normalisation="none",
    residual=False,
    output="relu",
    num_classifier_steps=10_000,
    seeds="random",
    mixing_shots=None,
)
SPACE: SearchSpace = {
    "learning_rate": Range(3e-5, 3e-3, log=True),
    "weight_decay": Range(1e-3, 1.0, log=True),
    "num_clusters": Choice(5, 10, 20, 50),
    "squared_error_weight": Range(1.0, 100.0, log=True),
    "least_cosine": Range(0.0, 0.6),
}


class Hallucination(TrainedAugmentation[LearningRun]):
    """Augmentation by analogies, up to a number of examples that shots count towards.

    Problems that lack the same number of examples have heads of their own, and the scores that they
    would have alone.
    """

    def __init__(
        self,
        config: HallucinationConfig,
        evaluation: EvaluationConfig,
        keeping: Keeping = Keeping(),  # noqa: B008  # it is frozen
    ) -> None:
        """Keep the settings; how synthetic examples weigh is for ``config`` to say."""
        weighing = {"mixing_shots": config.mixing_shots, "mixing_weight": None}
        super().__init__(evaluation.with_overrides(weighing), keeping)
        self._settings = config
        self._grouped = GroupedHeads(self._config)

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> LearningRun:
        """Draw the network."""
        ordered, seed = base.in_order_of_names(), draw_word(rng)
        learner = AnalogyNetwork(ordered, self._settings, seed)
        return LearningRun("feature hallucination", learner, ordered, self._settings, seed, workers)

    def synthesise_with(
        self, run: LearningRun, task: LowShotTask, rng: torch.Generator
    ) -> Tensor | None:
        """Hallucinate what problems lack, all of them the same number; None if that is none."""
        synthetic = torch.stack(self._hallucinate(run, task, rng))
        return synthetic if synthetic.shape[2] else None

    def _hallucinate(
        self, run: LearningRun, task: LowShotTask, rng: torch.Generator
    ) -> list[Tensor]:
        """Return what each problem lacks, P times shape (N, S, D); S may be zero.

        There is a stream for each draw, so that what problems have does not depend on which others
        there are.
        """
        assert isinstance(run.learner, AnalogyNetwork)
        word, made = draw_word(rng), []
        for problem in task.problems:
            supports = task.support(problem)
            count = max(0, self._settings.max_per_class - problem.num_shots)
            made.append(
                run.learner.hallucinate(supports, count, new_rng(word, problem.draw))
                if count
                else supports[:, :0]
            )
        return made

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Train once for these base examples; hallucinate and fit heads at every call."""
        for_synthesis, *for_heads = self._spawn_for_fit(rng)
        for_training, for_sources = spawn(for_synthesis, 2)
        run = self._training.run_for(task.base, for_training)
        self.origin = self._training.origin
        synthetic = self._hallucinate(run, task, for_sources)
        self.take_note_of(synthetic)
        rng_of_head = dict(zip(HEAD_CLASSES, for_heads, strict=True))
        # All groups have the stream that one would have alone.
        self._grouped.fit(task, synthetic, lambda name, count: _again(rng_of_head[name]))

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return each head's scores."""
        return self._grouped.scores(queries)


def _again(rng: torch.Generator) -> torch.Generator:
    """Return a copy, in the same state."""
    return torch.Generator(rng.device).set_state(rng.get_state())

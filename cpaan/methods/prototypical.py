"""Prototypical Networks (PN). Snell, Swersky & Zemel (2017), Prototypical Networks for Few-shot
Learning.

A small network embeds the cached features: two layers with a ReLU between, as in Wang et al.
(2018). It is trained on episodes in which queries must be nearest to the mean of the few supports
of their own class. Novel classes are then represented by their means in the embedding.

Choices where the source is silent on this benchmark:
* Squared distances are means over dimensions times a learnt scale.
* The network is residual, has dropout and ends on a sphere. The plain one (`EmbeddingConfig.plain`)
  overfits the train rows of a small data set.
* Prototypes of base classes are means of all their train rows. The learning rate follows a
  half-cosine, also in `PUBLISHED`; the source halves it every 2,000 episodes.
"""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from cpaan.core.files import locked
from cpaan.core.randomness import draw_word
from cpaan.methods.base import Fitted, LowShotMethod, Trained
from cpaan.methods.controls import Control
from cpaan.methods.table_row import PN, EpisodicMethod, Range, SearchSpace, TableRow
from cpaan.protocol.config import HEADS
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun
from cpaan.training.drive import Progress, train_to_end
from cpaan.training.learning import Run
from cpaan.training.workers import ALONE, Workers

PUBLISHED = EmbeddingConfig.plain()
SPACE: SearchSpace = {
    "learning_rate": Range(3e-4, 1e-2, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    "output": ("sphere", "linear"),
}
QUICK = {"num_episodes": 60, "num_ways": 40, "episode_shots": (1, 2, 5), "hidden_dim": 128}


class Embedded(Trained[EmbeddingRun]):
    """A method on embedded features. The embedding is trained first, on the same base examples.

    Base examples, settings and seed determine it. Methods with the same seed share it and its file.
    """

    def __init__(
        self,
        inner: LowShotMethod,
        config: EmbeddingConfig,
        path: Path | None = None,
        progress: Progress = lambda message: None,
    ) -> None:
        """Take the method, the settings of the embedding, and the path of its checkpoint."""
        self._inner, self._config = inner, config
        self._path, self._progress = path, progress
        self._embedded_base: tuple[object, BaseSet] | None = None

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> EmbeddingRun:
        """Create the network of the embedding with random weights."""
        # Name order, so that the network is the same in both phases and in `represent`.
        return EmbeddingRun(base.in_order_of_names(), self._config, draw_word(rng), workers)

    def trained(self, base: BaseSet, rng: torch.Generator) -> tuple[EmbeddingRun, torch.Generator]:
        """Return the trained embedding. The first process trains it for all that share its file."""
        with locked(self._path.with_suffix(".lock")) if self._path else nullcontext():
            return super().trained(base, rng)

    def _train(self, run: EmbeddingRun) -> None:
        train_to_end(run, self._path, progress=self._progress)

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Train the embedding to the end, and return the run of the method on it."""
        _, for_method = self.trained(base, rng)
        return self._inner.begin(self._embed_base(base), for_method, workers)

    def take_over(self, other: LowShotMethod) -> None:
        """Use the embedding of another method, and what its inner method has trained."""
        super().take_over(other)
        assert isinstance(other, Embedded)
        self._embedded_base = other._embedded_base
        self._inner.take_over(other._inner)

    def fit(self, task: LowShotTask, rng: torch.Generator, keep: int | None = None) -> Fitted:
        """Train the embedding once for these base examples; fit the method at every call."""
        run, for_method = self.trained(task.base, rng)
        embed = run.network.embed
        embedded = replace(task, base=self._embed_base(task.base), shots=embed(task.shots))
        fitted = self._inner.fit(embedded, for_method, keep)
        return fitted.after(embed)

    def real_share(self, num_shots: int, num_synthetic: int) -> float:
        """Return the weight of a novel class's real examples in the method."""
        return self._inner.real_share(num_shots, num_synthetic)

    def _embed_base(self, base: BaseSet) -> BaseSet:
        # A network with other weights gives other embeddings.
        key = (base, self._run, self._run and self._run.episode)
        if self._embedded_base is None or self._embedded_base[0] != key:
            assert self._run is not None, "the embedding is trained first"
            self._embedded_base = (key, self._run.network.embed_base(base))
        return self._embedded_base[1]


class Prototypical(Embedded):
    """Heads on embedded features; only the embedding is trained."""

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Return the run of the embedding."""
        return Trained.begin(self, base, rng, workers)


ROWS = [
    TableRow(
        name=PN,
        summary="prototypical network, Snell et al. 2017",
        representation=PN,
        is_printed=True,
        head="centroid",
        heads=HEADS,
        method=EpisodicMethod(
            make=lambda config, evaluation: Prototypical(Control(None, evaluation), config),
            config=EmbeddingConfig(),
            published=PUBLISHED,
            space=SPACE,
            quick=QUICK,
        ),
    )
]

"""Methods on features that a prototypical network embeds, instead of features as they are."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cpaan.core.files import locked
from cpaan.core.randomness import draw_word, spawn
from cpaan.methods.base import Keeping, LowShotMethod, Training
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.representation.config import EmbeddingConfig
from cpaan.representation.embedding import EmbeddingRun, PrototypicalNetwork
from cpaan.training.learning import Run
from cpaan.training.workers import ALONE, Workers


class Embedded(LowShotMethod):
    """A method on embedded features. The embedding is trained first, on the same base examples.

    It is decided by those, its settings and the seed: all methods with one seed have the same, and
    one file can keep it for all of them.
    """

    def __init__(self, inner: LowShotMethod, config: EmbeddingConfig, keeping: Keeping) -> None:
        """Keep the method.

        Args:
            inner: What is given embedded features.
            config: Of the embedding.
            keeping: Where the training of the embedding is kept, and who is told of it.
        """
        self._inner = inner
        self._config = config
        self._keeping = keeping
        self._training = Training(self._new_run, keeping)
        self._network: PrototypicalNetwork | None = None
        self._episode = 0
        self._base: tuple[BaseSet, BaseSet] | None = None

    def begin(self, base: BaseSet, rng: torch.Generator, workers: Workers = ALONE) -> Run:
        """Train the embedding to its end, and return the run of the method on it."""
        for_embedding, for_method = spawn(rng, 2)
        self._embed_by(self._train(base, for_embedding))
        return self._inner.begin(self._embed_base(base), for_method, workers)

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Train the embedding once for these base examples; fit the method at every call."""
        for_embedding, for_method = spawn(rng, 2)
        self._embed_by(self._train(task.base, for_embedding))
        self._inner.keeps_synthetic = self.keeps_synthetic
        self._inner.fit(self.embed_task(task), for_method)
        self.diversity, self.synthetic = self._inner.diversity, self._inner.synthetic
        self.origin = self._inner.origin or self._training.origin

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return the method's scores."""
        return self._inner.predict(self._embed(queries))

    def represent(self, examples: Tensor) -> Tensor:
        """Return examples in the space of the method."""
        return self._inner.represent(self._embed(examples))

    def embed_task(self, task: LowShotTask) -> LowShotTask:
        """Return the same problems in the embedding."""
        return replace(task, base=self._embed_base(task.base), shots=self._embed(task.shots))

    def _train(self, base: BaseSet, rng: torch.Generator) -> EmbeddingRun:
        checkpoint = self._keeping.checkpoint
        if checkpoint is None:
            return self._training.run_for(base, rng)
        # Whoever comes first trains it for all that share the file.
        with locked(checkpoint.with_suffix(".lock")):
            return self._training.run_for(base, rng)

    def _new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> EmbeddingRun:
        # In the order of names, so that it is the same in both phases, and in `represent`.
        return EmbeddingRun(base.in_order_of_names(), self._config, draw_word(rng), workers)

    def _embed_by(self, run: EmbeddingRun) -> None:
        # A network that was trained on since then embeds the base examples in another way.
        if (run.network, run.episode) != (self._network, self._episode):
            self._network, self._episode, self._base = run.network, run.episode, None

    def _embed_base(self, base: BaseSet) -> BaseSet:
        if self._base is None or self._base[0] is not base:
            assert self._network is not None, "fit comes first"
            self._base = (base, self._network.embed_base(base))
        return self._base[1]

    def _embed(self, rows: Tensor) -> Tensor:
        assert self._network is not None, "fit comes first"
        return self._network.embed(rows)

"""CP-AAN. Gao, Shou, Zareian, Zhang & Chang (2018), Low-shot Learning via Covariance-Preserving
Adversarial Augmentation Networks.

A GAN is meta-trained on the base classes to translate examples of related base classes into a class
with few known examples. At meta-test, translated examples augment every novel class, and any head
is trained on real and synthetic examples. c-GAN, cCyc-GAN, cDeLi-GAN and cCov-GAN differ in their
objective. Every choice that the paper leaves open is a field of `TrainConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gan.engine import new_run
from cpaan.gan.episodes import MetaEpisodes, TrainingData, check_training
from cpaan.gan.gans import GANS, Gan, check_objective
from cpaan.gan.loop import TrainingRun
from cpaan.methods.base import TrainedAugmentation
from cpaan.methods.table_row import IN_PN, SWEEP, Method, Range, SearchSpace, TableRow, place_of
from cpaan.protocol.augmentation import num_synthetic_of
from cpaan.protocol.config import EvaluationConfig, NeighbourSettings
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.workers import Workers

QUICK: dict[str, Any] = {
    "num_episodes": 100,
    "num_ways": 4,
    "batch_size": 60,
    "episode_shots": (1, 2, 5),
    "hidden_dim": 64,
    "num_covariance_classes": 2,
    # Higher than the default, so that these few episodes are enough.
    "generator_learning_rate": 1e-3,
}
_SIZES = ("num_episodes", "num_ways", "batch_size", "hidden_dim")


class Adversarial(TrainedAugmentation[TrainingRun]):
    """Augmentation by one of the four GANs, meta-trained on the base examples of the task."""

    def __init__(self, gan: Gan, training: TrainConfig, config: EvaluationConfig) -> None:
        super().__init__(config)
        self._gan = gan
        self._settings = training

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> TrainingRun:
        """Create the networks with random weights."""
        config = self._settings
        data = TrainingData.prepare(base, config, with_covariances=self._gan.has_covariance)
        return new_run(self._gan, MetaEpisodes(data, config), config, rng, workers)

    def synthesise(self, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0) -> Tensor:
        """Translate examples of related base classes with the trained generator."""
        run, for_sources = self.trained(task.base, rng)
        return run.episodes.data.synthesise(
            task,
            run.networks.base_to_novel,
            neighbours=self._settings,
            num_synthetic=self.num_synthetic_for(task, num_synthetic),
            rng=for_sources,
        )


def _space(gan: Gan, *, is_extended: bool = False) -> SearchSpace:
    """Return the hyperparameters of a GAN that a dozen trials can search.

    The kind of neighbours is soft unless it is set, as in the paper's table. The dimension of the
    noise is fixed, because only G_b has noise. CP-AAN+ has ``is_extended``: the weight of its own
    term is searched, too.
    """
    has_covariance, has_mixture = gan.has_covariance, gan.noise == "mixture"
    space = {
        "cycle_weight": gan.has_cycle and Range(0.05, 50, log=True),
        # At the printed 0.5 and 100,000 episodes, the term has no measurable effect.
        "covariance_weight": has_covariance and Range(0.1, 100, log=True),
        "ky_fan_order": has_covariance and Range(1, 20, log=True),
        "prototype_weight": is_extended and Range(0.5, 100, log=True),
        "perplexity": Range(1.5, 50, log=True),
        "num_neighbours": Range(1, 50, log=True),
        "noise": has_covariance and ("gaussian", "mixture"),
        "num_components": has_mixture and Range(2, 200, log=True),
        "noise_spread": has_mixture and Range(0.02, 2, log=True),
        "generator_learning_rate": Range(3e-5, 3e-3, log=True),
    }
    return {name: values for name, values in space.items() if not isinstance(values, bool)}


@dataclass(frozen=True, kw_only=True)
class GanMethod(Method):
    """One of the four GANs."""

    gan: Gan

    def published_for(self, training: Any) -> TrainConfig:
        """Return the paper's settings at the sizes of a study.

        The paper's single number of shots is reduced if episodes are too small for it.
        """
        printed = TrainConfig.as_printed()
        shots = (min(printed.max_shots, training.max_shots),)
        sizes = {name: getattr(training, name) for name in _SIZES}
        return printed.with_overrides({**sizes, "episode_shots": shots})

    def space_for(
        self, training: Any, related: NeighbourSettings, num_dims: int, num_base: int
    ) -> SearchSpace:
        """Return the search space; training chooses related classes among the meta-base classes."""
        return super().space_for(training, training, num_dims, num_base - training.num_ways)

    def check(
        self, config: Any, evaluation: EvaluationConfig, num_rows: Mapping[str, int], num_dims: int
    ) -> None:
        """Check episodes, terms and the number of translated examples."""
        counts = torch.tensor([*num_rows.values()])
        check_training(config, counts, num_dims, with_covariances=self.gan.has_covariance)
        check_objective(self.gan, config)
        num_synthetic_of(counts, max(evaluation.shots), evaluation)


_SUMMARIES = {
    "c-GAN": "conditional GAN",
    "cCyc-GAN": "c-GAN with a cycle",
    "cDeLi-GAN": "cCyc-GAN with mixture noise",
    "cCov-GAN": "cDeLi-GAN that keeps covariances",
}


def _row(gan: Gan, suffix: str) -> TableRow:
    return TableRow(
        name=f"{gan.name}{suffix}",
        summary=f"{_SUMMARIES[gan.name]}, Gao et al. 2018",
        group="CP-AAN",
        generation=gan.name,
        is_printed=bool(suffix) or gan is _BEST,
        quick_head=None if suffix else "cosine",
        method=GanMethod(
            make=partial(Adversarial, gan),
            gan=gan,
            config=TrainConfig.faithful(),
            published=TrainConfig.as_printed(),
            published_evaluation=META_TESTING_AS_PRINTED,
            space=_space(gan),
            sweep=SWEEP,
            quick=QUICK,
            full={"num_episodes": 100_000},
        ),
        **place_of(is_embedded=bool(suffix)),
    )


_BEST = GANS["cCov-GAN"]

ROWS = [_row(gan, suffix) for suffix in ("", IN_PN) for gan in GANS.values()]
ROWS += [
    replace(
        row,
        name=row.name.replace(_BEST.name, "CP-AAN+"),
        summary="cCov-GAN with our additions",
        group="CP-AAN+",
        is_printed=False,
        method=replace(row.method, config=TrainConfig(), space=_space(_BEST, is_extended=True)),
    )
    for row in ROWS
    if row.method.gan is _BEST
]
"""The paper's four GANs, and cCov-GAN with our additions to the paper (CP-AAN+)."""

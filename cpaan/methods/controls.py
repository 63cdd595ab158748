"""Controls: methods without training, as baselines for every trained generator.

Related base examples, chosen as for the GANs, become synthetic examples of a novel class. They are
moved from their class mean to the mean of the shots, moved half of the way, or copied. One control
has no synthetic examples. The paper has none of these rows. The evaluation settings decide which
base classes are related, and how synthetic examples are weighted against shots.

Logistic regression (LR) is the baseline of the benchmark. Hariharan & Girshick (2017), Low-shot
Visual Recognition by Shrinking and Hallucinating Features: softmax regression on the features, with
class-balanced batches. It uses the linear head of `protocol.heads`. The default is 200 steps with a
learning rate that falls to zero. The benchmark's 10,000 steps are `LINEAR_AS_IN_BENCHMARK`
(``--linear benchmark``). With another head, the row is that head without augmentation.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cpaan.methods.base import Augmented
from cpaan.methods.table_row import (
    IN_PN,
    NO_GENERATION,
    SWEEP,
    Make,
    Method,
    Range,
    SearchSpace,
    TableRow,
    place_of,
)
from cpaan.protocol.augmentation import (
    Translation,
    copy,
    half_mean_shift,
    mean_shift,
    num_synthetic_of,
    synthesise,
)
from cpaan.protocol.config import HEADS, LINEAR_AS_IN_BENCHMARK, EvaluationConfig
from cpaan.protocol.neighbours import check_neighbours
from cpaan.protocol.tasks import LowShotTask

CONTROLS: dict[str, Translation | None] = {
    "none": None,
    "mean-shift": mean_shift,
    "half-mean-shift": half_mean_shift,
    "copy": copy,
}
SPACE: SearchSpace = {"perplexity": Range(1.5, 30.0, log=True)}
LINEAR_SPACE: SearchSpace = {
    "linear_learning_rate": Range(0.005, 0.5, log=True),
    "linear_weight_decay": Range(1e-6, 1e-2, log=True),
    "linear_num_steps": Range(50, 2_000, log=True),
}


class Control(Augmented):
    """Augmentation by a fixed translation, or no augmentation."""

    def __init__(self, translation: Translation | None, config: EvaluationConfig) -> None:
        super().__init__(config)
        self._translation = translation

    def synthesise(
        self, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0
    ) -> Tensor | None:
        """Translate related base examples."""
        if self._translation is None:
            return None
        return synthesise(
            task,
            self._translation,
            neighbours=self._config,
            num_synthetic=self.num_synthetic_for(task, num_synthetic),
            rng=rng,
        )


class TranslatingMethod(Method):
    """A control whose synthetic examples are translations of related base examples."""

    def check(
        self, config: Any, evaluation: EvaluationConfig, num_rows: Mapping[str, int], num_dims: int
    ) -> None:
        """Check the choice of related base classes and the number of translated examples."""
        check_neighbours(evaluation, len(num_rows))
        counts = torch.tensor([*num_rows.values()])
        num_synthetic_of(counts, max(evaluation.shots), evaluation)


def _make(translation: Translation | None) -> Make:
    return lambda config, evaluation: Control(translation, evaluation)


def _method(translation: Translation | None) -> Method:
    if translation is None:
        return Method(make=_make(None))
    return TranslatingMethod(make=_make(translation), space=SPACE, sweep=SWEEP)


_SUMMARIES = {
    "none": "no synthetic examples",
    "mean-shift": "related base examples moved to the mean of the shots",
    "half-mean-shift": "related base examples moved half of the way to the shots",
    "copy": "copies of related base examples",
}
ROWS = [
    *(
        TableRow(
            name=f"{name}{suffix}",
            summary=_SUMMARIES[name],
            group="Control",
            generation=name if translation else NO_GENERATION,
            method=_method(translation),
            **place_of(is_embedded=bool(suffix)),
        )
        for suffix in ("", IN_PN)
        for name, translation in CONTROLS.items()
    ),
    TableRow(
        name="LR",
        summary="softmax regression on the shots, Hariharan et al. 2017",
        is_printed=True,
        head="linear",
        heads=HEADS,
        method=Method(make=_make(None), space=LINEAR_SPACE, published_head=LINEAR_AS_IN_BENCHMARK),
    ),
]

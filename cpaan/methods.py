"""Every method by its name in the tables."""

import difflib
from collections.abc import Mapping

import torch
from torch import Tensor

from cpaan.augmentation import Translation, copy, half_mean_shift, mean_shift, synthesise
from cpaan.classifiers import HEAD_CLASSES
from cpaan.config import EvaluationConfig
from cpaan.randomness import spawn
from cpaan.tasks import LowShotTask, Method

TRANSLATIONS: dict[str, Translation | None] = {
    "none": None,
    "mean-shift": mean_shift,
    "half-mean-shift": half_mean_shift,
    "copy": copy,
}
"""The controls: what every trained generator has to beat."""


class Augmented:
    """Classifier heads on real examples and on base examples translated into novel classes."""

    def __init__(self, translation: Translation | None, config: EvaluationConfig) -> None:
        """Prepare the heads.

        Args:
            translation: How base examples become synthetic ones; None for no augmentation.
            config: Heads, and how much is synthesised from how many classes.
        """
        self._translation = translation
        self._config = config
        self._heads = {name: HEAD_CLASSES[name](config) for name in config.heads}

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Synthesise examples, then fit every head to the same ones."""
        for_synthesis, *for_heads = spawn(rng, 1 + len(HEAD_CLASSES))
        synthetic = None
        if self._translation is not None:
            synthetic = synthesise(
                task,
                self._translation,
                num_synthetic=self._config.num_synthetic,
                perplexity=self._config.perplexity,
                rng=for_synthesis,
            )
        rng_of_head = dict(zip(HEAD_CLASSES, for_heads, strict=True))
        for name, head in self._heads.items():
            head.fit(task, synthetic, rng_of_head[name])

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return each head's scores."""
        return {name: head.scores(queries) for name, head in self._heads.items()}


def check_methods(names: list[str]) -> None:
    """Refuse names that are no method, or that stand twice.

    Raises:
        ValueError: With the nearest name that exists.
    """
    for name in names:
        if name not in TRANSLATIONS:
            close = difflib.get_close_matches(name, TRANSLATIONS, n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ValueError(
                f"unknown method {name!r}{hint} The methods are {', '.join(TRANSLATIONS)}"
            )
    if not names:
        raise ValueError(f"no method is named; there are {', '.join(TRANSLATIONS)}")
    if len(set(names)) < len(names):
        raise ValueError(f"each method is wanted once, got {', '.join(names)!r}")


def make_method(name: str, config: EvaluationConfig) -> Method:
    """Return a new, unfitted method."""
    return Augmented(TRANSLATIONS[name], config)

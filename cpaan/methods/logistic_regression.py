"""Logistic regression (LR). Hariharan & Girshick (2017), Low-shot Visual Recognition by Shrinking
and Hallucinating Features: the baseline of their benchmark.

Softmax regression on the features as they are, on batches that hold all classes equally often, base
classes with all of their examples and novel ones with their few. Nothing is trained before.

The head is the linear one of `protocol.heads`, which every augmented row can have, with all of its
settings (``linear_...``): by default 200 steps that fall to zero; the benchmark's own 10,000
are `LINEAR_AS_IN_BENCHMARK` (``--linear benchmark``). With another head, this row is that head
without any augmentation.
"""

import torch

from cpaan.core.settings import Range, SearchSpace
from cpaan.methods.base import Augmented
from cpaan.protocol.tasks import LowShotTask

SPACE: SearchSpace = {
    "linear_learning_rate": Range(0.005, 0.5, log=True),
    "linear_weight_decay": Range(1e-6, 1e-2, log=True),
    "linear_num_steps": Range(50, 2_000, log=True),
}


class LogisticRegression(Augmented):
    """Heads on real examples alone."""

    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Make nothing up."""

"""Settings of an evaluation."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from cpaan.core.settings import Settings, suggestion

HEADS = ("centroid", "cosine", "knn", "linear")
COLUMNS = {
    "novel": "novel queries among the novel classes (LSL)",
    "all": "all queries among all classes (GLSL)",
    "novel_joint": "novel queries among all classes",
    "base": "base queries among the base classes",
    "all_calibrated": "all queries among all classes, with one bias for all novel classes",
}
"""Columns of the table, and their meanings."""

OWN = "own"
"""Name of a method's built-in classifier, in place of a head."""

LINEAR_AS_IN_BENCHMARK: dict[str, Any] = {
    "linear_optimiser": "sgd",
    "linear_num_steps": 10_000,
    "linear_batch_size": 1_000,
    "linear_learning_rate": 0.1,
    "linear_decays": False,
    "linear_weight_decay": 0.01,
    "linear_unit_norm": False,
}
"""The linear classifier of Hariharan & Girshick's benchmark, without generation. Its batches are
class-balanced in expectation; ours are balanced in each step.

The loss is strictly convex, so its minimum does not depend on the optimiser. On ResNet-10 features
and with the same weight decay, the default 200 steps scored within 0.7 points of these 10,000. This
holds for top-1 and top-5 in every column without a bias.
"""


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings(Settings):
    """Similarity of base classes to a novel class, in training and in evaluation."""

    neighbours: Literal["soft", "hard", "none"] = "soft"
    """Weights of base classes. Soft (NBS-S): by similarity; hard (NBS-H): equal for the nearest;
    none: equal for all."""
    perplexity: float | None = 10.0
    """For soft: average number of base classes that a novel class draws from. None: the paper's
    softmax without a temperature, which depends on the scale of the features."""
    num_neighbours: int = 10
    """For hard: number of nearest base classes (the paper's k)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_neighbours", "perplexity")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(NeighbourSettings):
    """Settings that determine the results of an evaluation, apart from data and methods.

    The settings of neighbours apply to the controls; a trained generator keeps its own.
    """

    shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Numbers of examples per novel class; each combination with a draw is one problem."""
    num_draws: int = 5
    """Number of random draws of the shots."""
    draw_seed: int = 0
    """Seed of the draws; separate from ``seed``, so that all training seeds use the same shots."""
    num_seeds: int = 1
    """Number of training seeds; each method is trained once per seed."""
    seed: int = 0
    """First training seed; the others are the next whole numbers."""
    heads: tuple[str, ...] = HEADS
    """Classifiers to fit to the same examples; a method that has only a built-in classifier uses
    that one."""

    num_synthetic: int = 100
    """Number of synthetic examples per novel class."""
    fill_to_capacity: bool = False
    """Whether to replace ``num_synthetic`` by the mean number of examples of a base class minus the
    largest number of shots."""
    mixing_weight: float | None = None
    """Total weight of a novel class's real examples in every head, from 0 to 1; synthetic examples
    have the rest. None: ``mixing_shots`` determines the weight."""
    mixing_shots: float | None = 2.0
    """Total weight of a class's synthetic examples, in shots; their share falls with the number of
    real shots. None: all examples, real and synthetic, have the same weight."""

    novel_bias: float | None = None
    """Number added to the scores of novel classes in the column all_calibrated. None: the best one
    on the validation phase, for each method, head, number of shots and metric (top-1 or top-5)."""

    knn_temperature: float = 0.3
    """Temperature of soft k-NN, in units of the mean squared distance of base examples to their
    class centroids."""

    linear_optimiser: Literal["adam", "sgd"] = "adam"
    linear_num_steps: int = 200
    linear_batch_size: int = 500
    linear_learning_rate: float = 0.05
    linear_decays: bool = True
    """Whether the learning rate decays linearly to zero."""
    linear_weight_decay: float = 1e-4
    linear_unit_norm: bool = True
    """Whether to scale features so that base examples have a mean norm of one; weight decay then
    has the same effect for every representation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_draws", "num_seeds", "num_synthetic")
        self._refuse_unless_positive("knn_temperature", "linear_num_steps", "linear_batch_size")
        self._refuse_unless_positive("linear_learning_rate", "mixing_shots")
        self._refuse_negative("linear_weight_decay", "draw_seed", "seed")
        self._refuse(
            ["shots"],
            lambda shots: min(shots, default=0) > 0 and len(set(shots)) == len(shots),
            "distinct positive whole numbers",
        )
        unknown = [head for head in self.heads if head not in (*HEADS, OWN)]
        if unknown or not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(
                f"heads must be distinct and among {', '.join(HEADS)}, "
                f"got {', '.join(self.heads)!r}"
                f"{suggestion(unknown[0], HEADS) if unknown else ''}"
            )
        self._refuse(["mixing_weight"], lambda share: 0 <= share <= 1, "from 0 to 1")
        self._refuse(["novel_bias"], isfinite, "finite")

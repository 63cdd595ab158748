"""The settings of an evaluation."""

from dataclasses import dataclass
from typing import Any, Literal

from cpaan.core.settings import Settings, suggestion

HEADS = ("centroid", "cosine", "knn", "linear")
COLUMNS = {
    "novel": "novel queries among the novel classes (LSL)",
    "all": "all queries among all classes (GLSL)",
    "novel_joint": "novel queries among all classes",
    "base": "base queries among the base classes",
    "all_prior": "all queries among all classes, with a prior for base and novel",
}
"""Columns of the table, and their meanings."""

OWN = "own"
"""Stands in the place of a head for the classifier of a method that has one of its own."""

LINEAR_AS_IN_BENCHMARK: dict[str, Any] = {
    "linear_optimiser": "sgd",
    "linear_num_steps": 10_000,
    "linear_batch_size": 1_000,
    "linear_learning_rate": 0.1,
    "linear_decays": False,
    "linear_weight_decay": 0.01,
    "linear_unit_norm": False,
}
"""The linear classifier as Hariharan & Girshick's benchmark trains it, without generation. Its
batches hold all classes equally often in expectation, ours in each step.

Its loss is strictly convex, so where training ends depends on the loss and not on the way. On
ResNet-10 features, and with the same weight decay, the default's 200 steps scored within 0.7
points of these 10,000 in every column without a prior, top-1 and top-5.
"""


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings(Settings):
    """Which base classes are related to a novel class; shared by training and evaluation."""

    neighbours: Literal["soft", "hard", "none"] = "soft"
    """NBS-S: by similarity; NBS-H: the nearest few, all alike; none: all base classes alike."""
    perplexity: float | None = 10.0
    """NBS-S: how many base classes a novel class draws from, on average. None: the paper's
    softmax without a temperature, which depends on the scale of the features."""
    num_neighbours: int = 10
    """NBS-H: how many of the nearest base classes (the paper's k)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_neighbours")
        if self.perplexity is not None:
            self._refuse_unless_positive("perplexity")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(NeighbourSettings):
    """Everything that decides the numbers of an evaluation, apart from data and methods.

    The settings of neighbours are those of the controls; a trained generator keeps its own.
    """

    shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Examples of each novel class; a problem for each of them and each draw."""
    num_draws: int = 5
    """How often the shots are drawn."""
    draw_seed: int = 0
    """Decides the draws, apart from ``seed``: other networks should meet the same shots."""
    num_seeds: int = 1
    """How often a method is trained."""
    seed: int = 0
    """The first training seed; the others follow it."""
    heads: tuple[str, ...] = HEADS
    """Classifiers that are fitted to the same examples; methods that have none but their own are
    asked for that."""

    num_synthetic: int = 100
    """Synthetic examples of each novel class."""
    fill_to_capacity: bool = False
    """Whether novel classes get, instead, as many synthetic examples as they lack at the most
    shots to the average number of a base class."""
    mixing_weight: float | None = None
    """Weight of a novel class's real examples beside its synthetic ones, in every head, whatever
    their number; None: as ``mixing_shots`` has it."""
    mixing_shots: float | None = 2.0
    """All synthetic examples of a class weigh as much as so many shots: less, the more shots there
    are. None: every single example weighs the same, real or synthetic."""

    prior: float | None = None
    """Share of novel queries in the column all_prior; None: the best one on the validation
    phase, for each method, head, number of shots and for top-1 and top-5."""

    cosine_scale: float = 10.0
    """What cosines are multiplied by; it matters to the column all_prior alone."""
    knn_temperature: float = 0.3
    """In units of the mean squared distance of a base example to its class's centroid."""

    linear_optimiser: Literal["adam", "sgd"] = "adam"
    linear_num_steps: int = 200
    linear_batch_size: int = 500
    linear_learning_rate: float = 0.05
    linear_decays: bool = True
    """Whether the learning rate falls linearly to zero."""
    linear_weight_decay: float = 1e-4
    linear_unit_norm: bool = True
    """Whether features are scaled so that base examples have norm one on average; the weight
    decay then means the same for every representation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_draws", "num_seeds", "num_synthetic", "cosine_scale")
        self._refuse_unless_positive("knn_temperature", "linear_num_steps", "linear_batch_size")
        self._refuse_unless_positive("linear_learning_rate")
        self._refuse_negative("linear_weight_decay")
        if self.draw_seed < 0 or self.seed < 0:
            raise ValueError(f"seeds must not be negative, got {self.draw_seed} and {self.seed}")
        if min(self.shots, default=0) < 1 or len(set(self.shots)) < len(self.shots):
            raise ValueError(
                f"shots must be positive whole numbers, each once, got {list(self.shots)}"
            )
        unknown = [head for head in self.heads if head not in (*HEADS, OWN)]
        if unknown or not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(
                f"heads are {', '.join(HEADS)}, each once at most, got {', '.join(self.heads)!r}"
                f"{suggestion(unknown[0], HEADS) if unknown else ''}"
            )
        if self.mixing_shots is not None:
            self._refuse_unless_positive("mixing_shots")
        if self.mixing_weight is not None and not 0 <= self.mixing_weight <= 1:
            raise ValueError(f"mixing_weight must be from 0 to 1, got {self.mixing_weight}")
        if self.prior is not None and not 0 < self.prior < 1:
            raise ValueError(f"prior must be above 0 and below 1, got {self.prior}")

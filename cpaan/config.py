"""Settings, checked once: every open point of a run is a named field here."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

HEADS = ("centroid", "cosine", "knn", "linear")

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
class EvaluationConfig:
    """Everything that decides the numbers of an evaluation, apart from data and methods.

    Raises:
        ValueError: If a value makes no sense.
    """

    shots: tuple[int, ...] = (1, 2, 5, 10, 20)
    """Examples of each novel class; a problem for each of them and each draw."""
    num_draws: int = 5
    draw_seed: int = 0
    """Decides the draws, apart from ``seed``: other networks should meet the same shots."""
    num_seeds: int = 1
    seed: int = 0
    """The first training seed; the others follow it."""
    heads: tuple[str, ...] = HEADS

    num_synthetic: int = 100
    """Synthetic examples of each novel class."""
    perplexity: float = 10.0
    """How many base classes a novel class draws from, on average."""
    mixing_weight: float = 0.5
    """Weight of the real examples beside the synthetic ones, in every head."""

    prior: float | None = None
    """Share of novel queries in the column all_prior; None: the best one on the validation
    phase, for each method, head and number of shots."""

    cosine_scale: float = 10.0
    """What cosines are multiplied by; it matters to the column all_prior alone."""
    knn_temperature: float = 0.3
    """In units of the mean squared distance of a base example to its class's centroid."""

    linear_optimiser: str = "adam"
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
        for name in (
            "num_draws",
            "num_seeds",
            "num_synthetic",
            "perplexity",
            "cosine_scale",
            "knn_temperature",
            "linear_num_steps",
            "linear_batch_size",
            "linear_learning_rate",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")
        if self.draw_seed < 0 or self.seed < 0:
            raise ValueError(f"seeds must not be negative, got {self.draw_seed} and {self.seed}")
        if not self.shots or min(self.shots) < 1:
            raise ValueError(f"shots must be positive whole numbers, got {list(self.shots)}")
        if len(set(self.shots)) < len(self.shots):
            raise ValueError(f"each number of shots is wanted once, got {list(self.shots)}")
        unknown = [head for head in self.heads if head not in HEADS]
        if unknown or not self.heads or len(set(self.heads)) < len(self.heads):
            raise ValueError(
                f"heads are {', '.join(HEADS)}, each once at most, got {', '.join(self.heads)!r}"
            )
        if not 0 <= self.mixing_weight <= 1:
            raise ValueError(f"mixing_weight must be from 0 to 1, got {self.mixing_weight}")
        if self.prior is not None and not 0 < self.prior < 1:
            raise ValueError(f"prior must be above 0 and below 1, got {self.prior}")
        if self.linear_optimiser not in ("adam", "sgd"):
            raise ValueError(f"linear_optimiser is adam or sgd, got {self.linear_optimiser!r}")
        if not 0 <= self.linear_weight_decay < math.inf:
            raise ValueError(f"linear_weight_decay is negative: {self.linear_weight_decay}")

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """Return a copy with some fields replaced.

        Raises:
            ValueError: If a key is no field: a misspelt name must not leave the default in
                place unnoticed.
        """
        unknown = sorted(set(overrides) - {field.name for field in fields(self)})
        if unknown:
            raise ValueError(f"unknown settings: {', '.join(unknown)}")
        return replace(self, **overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for a results file."""
        return asdict(self)


def parse_settings(assignments: list[str], config: EvaluationConfig) -> dict[str, Any]:
    """Turn ``["name=value", ...]`` into overrides of a config, by the types of its fields.

    Raises:
        ValueError: If an assignment is none, names no field, or its value is of another type.
    """
    values: dict[str, Any] = config.to_dict()
    overrides = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"settings are given as name=value, got {assignment!r}")
        if name not in values:
            raise ValueError(f"unknown setting {name!r}: the names are {', '.join(values)}")
        try:
            overrides[name] = _parse_like(text, values[name])
        except ValueError:
            wanted = "number" if values[name] is None else type(values[name]).__name__
            raise ValueError(f"setting {name} needs a value of type {wanted}: {text!r}") from None
    return overrides


def _parse_like(text: str, example: Any) -> Any:
    """Return a text as a value of the same type as an example of it."""
    if example is None:
        return None if text == "none" else float(text)
    if isinstance(example, bool):
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if isinstance(example, tuple):
        return tuple(_parse_like(part, example[0]) for part in text.split(","))
    return type(example)(text)

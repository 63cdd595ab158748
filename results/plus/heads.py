"""Compare sampled synthetic examples with copies, by all heads, on the validation classes.

    python results/plus/heads.py

It prints the second table of README.md. Training takes most of the time, so there are fewer draws.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
from ideas import CENTRE, COPY, discriminant, lines_of, on_sphere, read
from torch import Tensor

from cpaan.evaluation.scoring import run_method
from cpaan.gan.config import TrainConfig
from cpaan.methods.adversarial import QUICK
from cpaan.methods.base import LowShotMethod
from cpaan.methods.controls import Control
from cpaan.methods.registry import METHODS
from cpaan.protocol.augmentation import Translation, copy, half_mean_shift
from cpaan.protocol.config import EvaluationConfig

DRAWS = 10


def placed(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Move a base class to the mixed mean on the sphere, and keep its spread."""
    return examples - base + CENTRE + on_sphere(novel - CENTRE, 1, share=0.4, perplexity=20.0)


def discriminating(examples: Tensor, base: Tensor, novel: Tensor) -> Tensor:
    """Move a base class to the LDA classifier of the mixed mean, and keep its spread."""
    mixing = {"share": 0.4, "perplexity": 20.0}
    return examples - base + CENTRE + discriminant(novel - CENTRE, 1, within=0.9, **mixing)


CONTROLS: list[tuple[str, Translation | None, float]] = [  # the numbers are mixing_shots
    ("none", None, 2.0),
    (COPY, copy, 0.5),
    (COPY, copy, 2.0),
    (COPY, copy, 8.0),
    ("half-mean-shift", half_mean_shift, 8.0),
    ("copy, on the sphere", placed, 8.0),
    ("copy, LDA", discriminating, 8.0),
]


def sampled_rows(config: EvaluationConfig) -> Iterator[pd.DataFrame]:
    """Score all controls, and CP-AAN+ after a short training."""
    task, queries = read(1, DRAWS)
    training = TrainConfig().with_overrides(QUICK)
    runs: dict[str, tuple[LowShotMethod, EvaluationConfig]] = {}
    for name, translation, weight in CONTROLS:
        mixed = replace(config, mixing_shots=weight)
        runs[f"{name}, {weight:g}"] = Control(translation, mixed), mixed
    runs["CP-AAN+, 2"] = METHODS["CP-AAN+"].make(training, config), config
    for name, (method, mixed) in runs.items():
        sys.stderr.write(f"{name}, {', '.join(mixed.heads)}\n")
        yield run_method(name, method, 0, task, queries, mixed, diversity_draws=range(0))[0]


def main() -> None:
    """Print a table for three heads, and one for each of two temperatures of k-NN."""
    # Time and memory of k-NN grow with the number of examples.
    knn = EvaluationConfig(num_synthetic=20, heads=("knn",))
    others = EvaluationConfig(heads=("centroid", "cosine", "linear"))
    for config in (others, knn, replace(knn, knn_temperature=1.0)):
        for line in lines_of(pd.concat(sampled_rows(config)), f"{COPY}, 2"):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

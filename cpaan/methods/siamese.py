"""Siamese network. Koch, Zemel & Salakhutdinov (2015), Siamese Neural Networks for One-shot Image
Recognition.

One embedding is applied to both examples of a pair. A weighted sum of the absolute differences of
its dimensions is trained to predict whether both are of one class. At test, a query is compared
with examples of every class, base and novel alike.

Choices where the source is silent on this benchmark:
* The embedding is a two-layer perceptron on features. It starts as the identity and has dropout,
  because a plain one overfits the train rows of a small data set.
* Half of the pairs are of one class. Some of the others are of classes with near means, because
  random pairs of classes are soon too easy.
* A query is compared with the mean of a class's embedded examples; `PUBLISHED` averages the scores
  of single examples. The source prints only search ranges of its optimiser settings; those of
  `PUBLISHED` are common values.

Shapes: P = problems, B = base classes of the phase, N = novel classes, Q = queries, D = feature
dimension.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cpaan.methods.base import LowShotLearner
from cpaan.methods.table_row import Method, Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.layers import Perceptron, PerceptronSettings, drop
from cpaan.training.learning import LearningSettings


@dataclass(frozen=True, kw_only=True)
class SiameseConfig(PerceptronSettings, LearningSettings):
    """Settings of a Siamese network."""

    num_episodes: int = 2_000
    """Training steps, each on new pairs."""
    num_pairs: int = 512
    """Pairs per step; half of them are of one class."""
    near_share: float = 0.2
    """Share of the pairs of two classes whose second class is one of the nearest to the first."""
    num_near: int = 5
    """Number of nearest classes, by distances of prototypes."""

    output: Literal["sphere", "linear", "sigmoid"] = "sphere"
    """Sphere: every embedded row is scaled to a mean square of one. Sigmoid: as in the source."""
    weight_decay: float = 2.0
    learning_rate: float = 3e-3

    comparison: Literal["mean", "max", "centroid"] = "centroid"
    """Score of a class. Mean, max: mean or largest score of the query with single examples.
    Centroid: score of the query with the mean of the embedded examples."""
    num_exemplars: int = 20
    """Examples of each base class. With ``max``, which grows with the number of examples, every
    class has as many as there are shots, at most this number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_near", "num_exemplars")
        self._refuse(["num_pairs"], lambda count: count > 0 and count % 2 == 0, "positive and even")
        self._refuse(["near_share"], lambda share: 0 <= share <= 1, "from 0 to 1")


PUBLISHED = SiameseConfig(
    num_episodes=50_000,
    near_share=0.0,
    normalisation="none",
    residual=False,
    output="sigmoid",
    dropout=0.0,
    weight_decay=0.0,
    learning_rate=1e-3,
    comparison="mean",
)
SPACE: SearchSpace = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
    "near_share": Range(0.0, 1.0),
    "comparison": ("mean", "max", "centroid"),
}


class SiameseNetwork(Perceptron, LowShotLearner):
    """The embedding, and the weights of the differences of its dimensions."""

    TERMS = ("pair_loss", "pair_accuracy")

    _config: SiameseConfig
    gain: Tensor

    def __init__(self, base: BaseSet, config: SiameseConfig, rng: torch.Generator) -> None:
        super().__init__(base, config, rng)
        smallest = int(base.counts.argmin())
        if len(base.counts) < 2 or base.counts[smallest] < 2:
            raise ValueError(
                f"class {base.names[smallest]}, the smallest of {len(base.counts)}, has "
                f"{int(base.counts[smallest])} train rows, but at least 2 classes with 2 rows each "
                "are needed"
            )
        self._base = base
        # Factor of scores. Without it, weights would be far smaller than an optimiser's step.
        self.register_buffer("gain", torch.ones(()))
        distances = torch.cdist(base.prototypes, base.prototypes).fill_diagonal_(math.inf)
        num_near = min(config.num_near, len(base.counts) - 1)
        self._near = distances.topk(num_near, largest=False).indices  # (classes, num_near)
        num_dims = base.features.shape[1]
        # At the start, any difference is evidence against one class.
        self.weight = nn.Parameter(torch.full((num_dims,), -1.0))
        self.bias = nn.Parameter(torch.zeros(()))

    def drop(self, values: Tensor, rng: torch.Generator | None) -> Tensor:
        """Apply one mask to both examples of a pair (2, pairs, dims), to add no difference."""
        return drop(values, self._config.dropout, rng, values.shape[1:])

    def compare(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the log-odds that embedded pairs are of one class, shape (pairs,)."""
        return (first - second).abs() @ (self.gain * self.weight) + self.bias

    def compare_all(self, first: Tensor, second: Tensor) -> Tensor:
        """Return scores of all pairs (..., rows of first, rows of second); not differentiable.

        L1 distances need positive weights, so the dimensions of each sign have a distance of their
        own. This avoids a tensor of all pairs and dimensions.
        """
        scores, weight = self.bias.detach(), (self.gain * self.weight).detach()
        for sign in (1, -1):
            has_sign = sign * weight > 0
            scale = weight[has_sign].abs()
            distances = torch.cdist(
                first[..., has_sign] * scale, second[..., has_sign] * scale, p=1.0
            )
            scores = scores + sign * distances
        return scores

    def draw_pairs(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw pairs of two different rows, without waiting for the device.

        Returns:
            Rows, shape (2, pairs, D), and 1.0 for pairs of one class, else 0.0, shape (pairs,).
        """
        base, config, device = self._base, self._config, self._near.device
        num_classes, half = len(base.counts), config.num_pairs // 2
        classes, ahead, rows, others = torch.rand(
            (4, config.num_pairs), generator=rng, device=device, dtype=torch.float64
        )
        first = (classes * num_classes).long()
        # An offset from 1 to the number of classes minus 1 always gives another class.
        other_class = (first + 1 + (ahead * (num_classes - 1)).long()) % num_classes
        near_class = self._near[first, (ahead * self._near.shape[1]).long()]
        number = torch.arange(config.num_pairs, device=device)
        num_near_pairs = round(config.near_share * half)
        second = torch.where(number < half + num_near_pairs, near_class, other_class)
        second = torch.where(number < half, first, second)
        first_row = (rows * base.counts[first]).long()
        next_row = first_row + 1 + (others * (base.counts[first] - 1)).long()
        any_row = (others * base.counts[second]).long()
        second_row = torch.where(number < half, next_row % base.counts[first], any_row)
        chosen = torch.stack(
            [base.first_row[first] + first_row, base.first_row[second] + second_row]
        )
        return base.features[chosen].float(), (number < half).float()

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Return the cross-entropy of a step's pairs, and their accuracy in percent."""
        rows, is_same = self.draw_pairs(rng)
        scores = self.compare(*self(rows, rng).unbind())
        is_right = (scores.detach() > 0) == (is_same > 0)
        loss = binary_cross_entropy_with_logits(scores, is_same)
        return [loss, 100 * is_right.float().mean()]

    @torch.no_grad()
    def set_scale(self, rng: torch.Generator) -> None:
        """Set gain and bias so that the scores of some pairs have variance 1 and mean 0."""
        rows, _ = self.draw_pairs(rng)
        scores = self.compare(*self(rows).unbind())
        self.gain.copy_(1 / scores.std().clamp(min=torch.finfo(torch.float32).tiny))
        self.bias.copy_(-self.gain * scores.mean())

    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Embed the shots and some examples of every base class."""
        comparison = self._config.comparison
        base = self(task.draw_exemplars(self._config.num_exemplars, rng))
        most_shots = max(problem.num_shots for problem in task.problems)
        shots = {
            draw: self(task.shots[draw, :, :most_shots])
            for draw in sorted({problem.draw for problem in task.problems})
        }

        def compared(queries: Tensor, examples: Tensor) -> Tensor:
            """Return scores (..., Q, classes, examples) of examples (classes, examples, D)."""
            if comparison == "centroid":
                examples = examples.mean(dim=1, keepdim=True)
            scores = self.compare_all(queries, examples.flatten(0, 1))
            return scores.unflatten(-1, examples.shape[:2])

        def scores(queries: Tensor) -> Tensor:
            embedded, num_problems = self(queries), len(task.problems)
            of_base = compared(embedded, base).expand(num_problems, -1, -1, -1)
            of_problem = zip(
                task.problems, embedded.expand(num_problems, -1, -1), of_base, strict=True
            )
            scores = []
            for (num_shots, draw), its_queries, its_base in of_problem:
                # In the benchmark, scores of 1,024 queries and 6,220 shots of a draw take 25 MB.
                parts = [its_base, compared(its_queries, shots[draw][:, :num_shots])]
                if comparison == "max":
                    num_compared = min(num_shots, its_base.shape[-1])
                    parts = [part[..., :num_compared].amax(dim=-1) for part in parts]
                else:
                    parts = [part.mean(dim=-1) for part in parts]
                scores.append(torch.cat(parts, dim=1))
            return torch.stack(scores)

        return scores


_SUMMARY = "Siamese network, Koch et al. 2015"
_RECIPES = (SiameseConfig(), PUBLISHED, SPACE, {"num_episodes": 100})
ROWS = [learned_row("SN", _SUMMARY, SiameseNetwork, *_RECIPES, kind=Method)]

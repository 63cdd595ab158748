"""MAML. Finn, Abbeel & Levine (2017), Model-Agnostic Meta-Learning for Fast Adaptation of Deep
Networks; and Proto-MAML: Triantafillou et al. (2020), Meta-Dataset.

A few steps of gradient descent on the supports of a task adapt a network to its classes. Training
optimises the initial weights through these steps, by the loss of queries after the last step. The
body is a two-layer perceptron on features.

A head with one row per training class does not fit other numbers of classes. Its rows start in one
of two ways. "shared": all rows are equal. An offset common to all rows shifts all logits equally at
every step, so it cannot be learnt and rows start at zero. "prototype": w = 2c, b = -‖c‖² for the
class mean c of embedded supports, averaged over dimensions and times a learnt scale. Before the
first step, this is a nearest-centroid classifier.

Choices where the source is silent on this benchmark:
* Adaptation uses base and novel classes together, with equal weights. The mean loss of many classes
  moves each row by less, so the learning rate of rows is multiplied by the number of classes
  (``scales_rows``).
* The body starts as the identity and has weight decay, because a plain one overfits the train rows
  of a small data set. Each element of the meta-gradient is clipped, as in the authors' code.

Shapes: T = tasks, C = classes, K = shots, R = rows, D = feature dimension, P = problems, B = base
classes of the phase, N = novel classes, Q = queries.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot, relu

from cpaan.methods.base import LowShotLearner
from cpaan.methods.table_row import Range, SearchSpace, learned_row
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.few_shot_episodes import FewShotEpisodes, FewShotLearner
from cpaan.training.layers import Perceptron, PerceptronSettings
from cpaan.training.learning import EpisodeSettings, LearningSettings

_MOST_BASE_SHOTS = 20


@dataclass(frozen=True, kw_only=True)
class MAMLConfig(PerceptronSettings, EpisodeSettings, LearningSettings):
    """Settings of MAML."""

    head: Literal["shared", "prototype"] = "shared"
    """Start of the head's rows: all equal, or at the prototypes (Proto-MAML)."""
    num_episodes: int = 1_500
    """Training episodes, each of several tasks."""
    num_tasks: int = 1
    """Tasks per episode, all with the same number of shots."""
    num_ways: int = 200
    """Classes per task; all base classes if there are fewer."""
    num_inner_steps: int = 5
    """Steps of gradient descent on the supports in training."""
    num_test_steps: int = 5
    """Steps of gradient descent on the supports at test."""
    inner_learning_rate: float = 0.01
    """Learning rate of these steps."""
    scales_rows: bool = True
    """Whether the head's learning rate is multiplied by the number of classes, so that the steps of
    a row do not depend on that number."""
    clip: float = 10.0
    """Largest absolute value of each element of the meta-gradient."""
    num_base_shots: int | None = 20
    """Examples of each base class at test; None: the number of shots, at most 20."""

    output: Literal["sphere", "linear"] = "sphere"
    """Output of the body. Sphere: every embedded row is scaled to a mean square of one."""
    prototype_scale: float = 10.0
    """Factor of mean squared distances to prototypes at the start; it is learnt."""
    dropout: float = 0.8
    """Dropout rate of the input in training; all steps of a task use the same mask."""
    weight_decay: float = 2.0
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_tasks", "inner_learning_rate", "clip", "prototype_scale")
        self._refuse_unless_positive("num_base_shots")
        self._refuse_negative("num_inner_steps", "num_test_steps")
        if not self.num_inner_steps and self.head == "shared":
            raise ValueError("num_inner_steps must be positive with head=shared, got 0")


PROTOTYPE = MAMLConfig(
    head="prototype",
    num_tasks=2,
    num_inner_steps=2,
    num_test_steps=2,
    dropout=0.7,
    weight_decay=5.0,
    learning_rate=2e-3,
)
PUBLISHED = MAMLConfig(
    num_episodes=60_000,
    num_tasks=4,
    num_ways=20,
    num_queries=15,
    num_test_steps=10,
    num_base_shots=None,
    scales_rows=False,
    normalisation="none",
    residual=False,
    output="linear",
    dropout=0.0,
    weight_decay=0.0,
    learning_rate=1e-3,
)
SPACE: SearchSpace = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "inner_learning_rate": Range(1e-3, 0.05, log=True),
    "num_test_steps": Range(1, 50, log=True),
    "dropout": Range(0.0, 0.8),
    "weight_decay": Range(0.1, 10.0, log=True),
}


class Weights(NamedTuple):
    """Weights of a network for each of several tasks."""

    hidden: Tensor  # (T, hidden_dim, D)
    hidden_bias: Tensor  # (T, 1, hidden_dim)
    last: Tensor  # (T, D, hidden_dim)
    last_bias: Tensor  # (T, 1, D)
    rows: Tensor  # (T, C, D)
    row_bias: Tensor  # (T, 1, C)


class Support(NamedTuple):
    """Examples that a network is adapted to; all tasks have the same numbers of them.

    Every class has the same weight, divided equally among its examples.
    """

    inputs: Tensor  # (T, R, D), normalised
    labels: Tensor  # (R,)
    shares: Tensor  # (R,), weight of each example within its class
    num_classes: int

    @classmethod
    def of(cls, *groups: Tensor) -> "Support":
        """Concatenate groups of classes, each of shape (T, classes, shots, D)."""
        labels, shares, num_classes = [], [], 0
        for group in groups:
            _, num_more, num_shots, _ = group.shape
            numbers = torch.arange(num_classes, num_classes + num_more, device=group.device)
            labels.append(numbers.repeat_interleave(num_shots))
            shares.append(group.new_full((num_more * num_shots,), 1 / num_shots))
            num_classes += num_more
        inputs = torch.cat([group.flatten(1, 2) for group in groups], dim=1)
        return cls(inputs, torch.cat(labels), torch.cat(shares), num_classes)


class AdaptedNetwork(Perceptron, FewShotLearner, LowShotLearner):
    """The initial weights of a network, and their adaptation."""

    _config: MAMLConfig

    def __init__(self, base: BaseSet, config: MAMLConfig, rng: torch.Generator) -> None:
        super().__init__(base, config, rng)
        self.episodes = FewShotEpisodes(base, config)
        if config.head == "prototype":
            self.log_scale = nn.Parameter(torch.tensor(math.log(config.prototype_scale)))

    def embed(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Return the body's output of each task's inputs, shape (T, R, D)."""
        hidden = relu(inputs @ weights.hidden.mT + weights.hidden_bias)
        return self.finish(inputs, hidden @ weights.last.mT + weights.last_bias)

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Return logits of each task's inputs, shape (T, R, C)."""
        return self.embed(weights, inputs) @ weights.rows.mT + weights.row_bias

    def begin(self, support: Support) -> Weights:
        """Return the weights before the first step."""
        num_tasks, _, num_dims = support.inputs.shape
        body = [
            self._clipped(parameter).expand(num_tasks, -1, -1)
            for layer in (self.hidden, self.last)
            for parameter in (layer.weight, layer.bias.unsqueeze(0))
        ]
        rows = support.inputs.new_zeros(num_tasks, support.num_classes, num_dims)
        row_bias = support.inputs.new_zeros(num_tasks, 1, support.num_classes)
        weights = Weights._make([*body, rows.requires_grad_(), row_bias.requires_grad_()])
        if self._config.head == "shared":
            return weights
        members = one_hot(support.labels, support.num_classes).T * support.shares  # (C, R)
        prototypes = members @ self.embed(weights, support.inputs)
        scale = self._clipped(self.log_scale).exp() / num_dims
        rows = 2 * scale * prototypes
        row_bias = -scale * prototypes.square().sum(dim=-1).unsqueeze(1)
        # New views: the inner step treats rows and body as independent weights. The meta-gradient
        # still flows through the rows into the body.
        return Weights._make([*(weight.view_as(weight) for weight in body), rows, row_bias])

    def _clipped(self, parameter: Tensor) -> Tensor:
        """Return a view of a parameter whose summed gradient is clipped."""
        view, clip = parameter.view_as(parameter), self._config.clip
        if view.requires_grad:
            view.register_hook(lambda gradient: gradient.clamp(-clip, clip))
        return view

    def adapt(
        self, weights: Weights, support: Support, num_steps: int, *, is_training: bool = False
    ) -> Weights:
        """Return the weights after some steps of gradient descent on each task's supports.

        In training, gradients flow through the steps back to ``weights``.
        """
        rate = self._config.inner_learning_rate
        row_rate = rate * support.num_classes if self._config.scales_rows else rate
        rates = (rate, rate, rate, rate, row_rate, row_rate)  # in the order of `Weights`
        for _ in range(num_steps):
            with torch.enable_grad():
                if not is_training:
                    weights = Weights._make(weight.detach().requires_grad_() for weight in weights)
                logits = self.logits(weights, support.inputs)
                labels = support.labels.expand(len(logits), -1)
                losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
                # Of each task, the mean over classes.
                losses = losses.view_as(labels) @ support.shares / support.num_classes
                gradients = torch.autograd.grad(losses.sum(), weights, create_graph=is_training)
            steps = zip(weights, rates, gradients, strict=True)
            weights = Weights._make(weight - by * gradient for weight, by, gradient in steps)
        return weights if is_training else Weights._make(weight.detach() for weight in weights)

    def query_logits(self, supports: Tensor, queries: Tensor) -> Tensor:
        """Return logits (T, R, C) of queries (T, R, D) after adaptation to (T, C, K, D)."""
        support = Support.of(supports)
        num_steps = self._config.num_inner_steps
        weights = self.adapt(self.begin(support), support, num_steps, is_training=True)
        return self.logits(weights, queries)

    def draw_logits(self, num_shots: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw tasks; return logits of all of their queries after adaptation, and the labels."""
        tasks = [self.episodes.draw(num_shots, rng) for _ in range(self._config.num_tasks)]
        supports, queries = (
            self.drop(self.normalise(torch.stack(rows)), rng)
            for rows in ([task.supports for task in tasks], [task.queries for task in tasks])
        )
        logits = self.query_logits(supports, queries).flatten(0, 1)
        return logits, torch.cat([task.labels for task in tasks])

    def solve(self, task: LowShotTask, rng: torch.Generator) -> Callable[[Tensor], Tensor]:
        """Adapt the network to all classes of each problem, base and novel ones together."""
        most = self._num_base_shots(max(problem.num_shots for problem in task.problems))
        base = self.normalise(task.draw_exemplars(most, rng)).unsqueeze(0)
        adapted = []
        # One at a time: in the benchmark, a problem's 10,140 supports need about 100 MB for hidden
        # layers and logits. Its adapted weights, which are kept, need 3 MB.
        for problem in task.problems:
            shots = self.normalise(task.support(problem)).unsqueeze(0)
            support = Support.of(base[:, :, : self._num_base_shots(problem.num_shots)], shots)
            adapted.append(self.adapt(self.begin(support), support, self._config.num_test_steps))

        def scores(queries: Tensor) -> Tensor:
            inputs = self.normalise(queries).expand(len(adapted), -1, -1).unsqueeze(1)
            pairs = zip(adapted, inputs, strict=True)
            return torch.cat([self.logits(*pair) for pair in pairs])

        return scores

    def _num_base_shots(self, num_shots: int) -> int:
        return self._config.num_base_shots or min(num_shots, _MOST_BASE_SHOTS)


_QUICK = {"num_episodes": 40}
_OF_PROTOTYPE = replace(PUBLISHED, head=PROTOTYPE.head)
ROWS = [
    learned_row(
        "MAML", "MAML, Finn et al. 2017", AdaptedNetwork, MAMLConfig(), PUBLISHED, SPACE, _QUICK
    ),
    learned_row(
        "Proto-MAML",
        "MAML from prototypes, Triantafillou et al. 2020",
        AdaptedNetwork,
        PROTOTYPE,
        _OF_PROTOTYPE,
        SPACE,
        _QUICK,
        is_printed=False,
    ),
]

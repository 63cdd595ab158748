"""Feature Hallucination (FH). Hariharan & Girshick (2017), Low-shot Visual Recognition by Shrinking
and Hallucinating Features.

Base classes are clustered. Pairs of clusters of two classes with similar differences form
analogies: a is to b as c is to d. A network learns to predict b from a, c and d. Its output should
be near b and, for a frozen classifier of base classes, in the class of b. It then applies the step
between two clusters of a base class to shots of a novel class, until this has twenty examples.

Choices where the source's recipe (`PUBLISHED`) does not suit other features:
* The network's output is added to a + (d - c), because predictions from few clusters alone blur.
* Features are divided by the spread within base classes, so that both losses are comparable.
* k-means starts from rows. Shots take turns as seeds: random seeds give shots unequal weights,
  which cost two points at five shots on real features.
* The network ends in a ReLU only if the features do. The frozen classifier is softmax regression on
  base rows; the source uses that of its backbone if it can.
With the source's recipe, accuracy at one shot depends on the first weights of the network: it
varies by points between training seeds, here as in the source's code.

Shapes: P = problems or pairs of clusters, N = novel classes, S = synthetic examples of a class,
C = base classes, M = clusters of a class, D = feature dimension.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, relu

from cpaan.core.randomness import draw_word, new_rng
from cpaan.methods.analogies import Clusters, cluster_classes, mine_analogies
from cpaan.methods.base import TrainedAugmentation
from cpaan.methods.table_row import (
    MIXING_SHOTS,
    NUMBERS_OF_EXAMPLES,
    PN,
    Method,
    Range,
    SearchSpace,
    TableRow,
)
from cpaan.protocol.config import HEADS, LINEAR_AS_IN_BENCHMARK, EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask
from cpaan.training.layers import draw_linear, set_to_zero
from cpaan.training.learning import Learner, LearningRun, LearningSettings
from cpaan.training.workers import Workers

_CLASSIFIER_BATCH_SIZE, _CLASSIFIER_RATE, _CLASSIFIER_DECAY = 1_000, 0.05, 1e-4


@dataclass(frozen=True, kw_only=True)
class HallucinationConfig(LearningSettings):
    """Settings of feature hallucination."""

    num_episodes: int = 5_000
    """Training batches."""
    batch_size: int = 256
    """Analogies per batch."""
    learning_rate: float = 3e-4
    weight_decay: float = 0.1

    num_clusters: int = 20
    """Clusters of each base class; one per row if a class has fewer rows."""
    num_cluster_steps: int = 20
    """Iterations of k-means."""
    cluster_start: Literal["rows", "sphere"] = "rows"
    """Start of k-means: random rows of the class, or random points of the unit sphere."""
    least_cosine: float = 0.0
    """Analogies are used only if the cosine of their differences is larger than this."""

    normalisation: Literal["spread", "none"] = "spread"
    """Spread: divide features by one number, for a mean variance of one within base classes."""
    hidden_dim: int = 512
    """Width of both hidden layers."""
    residual: bool = True
    """Whether the network's output is added to a + (d - c); training then starts there."""
    output: Literal["match", "linear", "relu"] = "match"
    """Output of the network. Match: ReLU if no feature is negative, otherwise linear."""
    squared_error_weight: float = 10.0
    """Weight of the mean squared error relative to the cross-entropy of the frozen classifier."""
    num_classifier_steps: int = 300
    """Training batches of the frozen classifier of base classes. If ``optimiser`` is SGD, the
    classifier is trained as in the source: by SGD, on batches of rows that are equally likely."""

    seeds: Literal["in-turn", "random"] = "in-turn"
    """Shots that are moved: in turn, each equally often and between two different clusters. Random:
    shots and clusters are independent draws, so that clusters c and d may be equal."""

    max_per_class: int = 20
    """Number of examples of a novel class after augmentation, shots included."""
    mixing_shots: float | None = 2.0
    """Shots that weigh as much as all synthetic examples of a class; None: equal weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("batch_size", "num_cluster_steps", "hidden_dim")
        self._refuse_unless_positive("num_classifier_steps", "max_per_class", "mixing_shots")
        self._refuse_negative("squared_error_weight")
        self._refuse_unless_below_one("least_cosine")
        self._refuse(["num_clusters"], lambda count: count >= 2, "2 or more")


PUBLISHED = HallucinationConfig(
    num_episodes=120_000,
    batch_size=128,
    optimiser="sgd",
    learning_rate=0.1,
    schedule="thirds",
    weight_decay=1e-4,
    num_clusters=100,
    cluster_start="sphere",
    normalisation="none",
    residual=False,
    output="relu",
    num_classifier_steps=10_000,
    seeds="random",
    mixing_shots=None,
)
SPACE: SearchSpace = {
    "learning_rate": Range(3e-5, 3e-3, log=True),
    "weight_decay": Range(1e-3, 1.0, log=True),
    "num_clusters": (5, 10, 20, 50),
    "squared_error_weight": Range(1.0, 100.0, log=True),
    "least_cosine": Range(0.0, 0.6),
}


class AnalogyNetwork(Learner):
    """The network, with the clusters and analogies that it is trained on."""

    TERMS = ("hallucination_loss", "cross_entropy", "squared_error")

    unit: Tensor
    centroids: Tensor  # (C, M, D) in units of ``unit``, classes in the order of ``base``
    counts: Tensor  # (C,) clusters of each class
    pairs: Tensor  # (2, P) clusters a and b
    classes: Tensor
    third: Tensor
    fourth: Tensor
    cosines: Tensor
    class_weight: Tensor  # (C, D) of the frozen classifier
    class_bias: Tensor

    def __init__(self, base: BaseSet, config: HallucinationConfig, seed: int) -> None:
        """Draw the weights; `prepare` computes clusters and analogies."""
        super().__init__()
        if int((base.counts >= 2).sum()) < 2:
            raise ValueError(
                "analogies need at least 2 base classes with at least 2 rows, got "
                f"{int((base.counts >= 2).sum())} of {len(base.counts)}"
            )
        base.check_finite()
        self._base = base
        self._config = config
        self._seed = seed
        self._kept: Tensor | None = None
        num_classes, num_dims = len(base.counts), base.features.shape[1]
        num_clusters = min(config.num_clusters, int(base.counts.max()))
        is_positive = bool((base.features >= 0).all())
        self._is_rectified = config.output == "relu" or (config.output == "match" and is_positive)
        unit = math.sqrt(base.variance / num_dims) if config.normalisation == "spread" else 1.0
        self.register_buffer("unit", torch.tensor(unit))
        self.register_buffer("centroids", torch.zeros(num_classes, num_clusters, num_dims))
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.long))
        pairs = torch.combinations(torch.arange(num_clusters)).T
        self.register_buffer("pairs", pairs, persistent=False)
        of_classes = {"classes": torch.int, "third": torch.short, "fourth": torch.short}
        for name, dtype in {**of_classes, "cosines": torch.float32}.items():
            self.register_buffer(name, torch.zeros(num_classes, pairs.shape[1], dtype=dtype))
        self.register_buffer("class_weight", torch.zeros(num_classes, num_dims))
        self.register_buffer("class_bias", torch.zeros(num_classes))

        rng = new_rng(seed, 0)
        self.hidden = draw_linear(3 * num_dims, config.hidden_dim, rng)
        self.second_hidden = draw_linear(config.hidden_dim, config.hidden_dim, rng)
        self.last = draw_linear(config.hidden_dim, num_dims, rng)
        if config.residual:
            set_to_zero(self.last)

    def prepare(self) -> None:
        """Cluster the base classes, find the analogies, and train the frozen classifier, once.

        Analogies are part of the state: a trained network keeps those of its training.
        """
        if self._kept is not None:
            return
        if not self.counts.any():
            config = self._config
            clusters = cluster_classes(
                self._base,
                config.num_clusters,
                new_rng(self._seed, 1, 0),
                num_iterations=config.num_cluster_steps,
                start=config.cluster_start,
            )
            clusters = Clusters(clusters.centroids / self.unit, clusters.counts)
            for part in (clusters, mine_analogies(clusters)):
                for name, value in part._asdict().items():
                    getattr(self, name).copy_(value)
            weight, bias = _train_classifier(self._base, config, new_rng(self._seed, 1, 2))
            self.class_weight.copy_(weight * self.unit)
            self.class_bias.copy_(bias)
        kept = (self.cosines > self._config.least_cosine).flatten().nonzero().squeeze(1)
        if not len(kept):
            raise ValueError(
                f"no analogy has a cosine above {self._config.least_cosine}; the largest is "
                f"{float(self.cosines.max()):.3g} (--set least_cosine=...)"
            )
        # Every analogy also holds in the reverse direction: even numbers, and odd ones.
        both = torch.cat([2 * kept, 2 * kept + 1])
        order = torch.randperm(len(both), generator=new_rng(self._seed, 1, 3))
        self._kept = both[order.to(both.device)]

    def forward(self, seeds: Tensor, third: Tensor, fourth: Tensor) -> Tensor:
        """Predict b from a seed a and clusters c and d, all (..., D) in units of ``unit``."""
        hidden = relu(self.hidden(torch.cat([seeds, third, fourth], dim=-1)))
        output = self.last(relu(self.second_hidden(hidden)))
        if self._config.residual:
            output = output + seeds + (fourth - third)
        return relu(output) if self._is_rectified else output

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        """Return the loss of a batch of analogies, and its two parts."""
        self.prepare()
        assert self._kept is not None
        config, device = self._config, self.unit.device
        # A batch follows the random order from a random start, so it repeats no analogy.
        start = torch.rand((), generator=rng, device=device, dtype=torch.float64) * len(self._kept)
        places = start.long() + torch.arange(config.batch_size, device=device)
        drawn = self._kept[places % len(self._kept)]
        number, is_turned = drawn // 2, drawn % 2 == 1
        label, pair = number // self.pairs.shape[1], number % self.pairs.shape[1]
        ends = self.pairs[:, pair]
        its_ends = torch.stack([self.third.flatten()[number], self.fourth.flatten()[number]]).long()
        first, second = torch.where(is_turned, ends.flip(0), ends)
        third, fourth = torch.where(is_turned, its_ends.flip(0), its_ends)
        other = self.classes.flatten()[number].long()
        wanted = self.centroids[label, second]
        made = self(
            self.centroids[label, first],
            self.centroids[other, third],
            self.centroids[other, fourth],
        )
        logits = linear(made, self.class_weight, self.class_bias)
        of_class = cross_entropy(logits, label)
        error = (made - wanted).square().mean()
        return [of_class + config.squared_error_weight * error, of_class, error]

    @torch.no_grad()
    def hallucinate(self, supports: Tensor, num_examples: int, rng: torch.Generator) -> Tensor:
        """Make examples of novel classes, shape (N, num_examples, D), from shots (N, K, D).

        Each is a shot, moved along the difference of two random clusters of a random base class. A
        larger number of examples starts with those of a smaller one.
        """
        self.prepare()
        num_novel, num_shots, num_dims = supports.shape
        drawn = torch.rand((num_examples, 4, num_novel), generator=rng, dtype=torch.float64)
        for_seed, for_class, for_third, for_fourth = drawn.to(supports.device).permute(1, 2, 0)
        seed = (for_seed * num_shots).long()
        if self._config.seeds == "in-turn":
            seed = (seed[:, :1] + torch.arange(num_examples, device=seed.device)) % num_shots
        seed = seed.unsqueeze(-1).expand(-1, -1, num_dims)
        classes = (for_class * len(self.counts)).long()
        counts = self.counts[classes]
        third, fourth = (for_third * counts).long(), (for_fourth * counts).long()
        if self._config.seeds == "in-turn":  # a different cluster
            fourth = (third + 1 + (for_fourth * (counts - 1)).long()) % counts
        made = self(
            supports.gather(1, seed) / self.unit,
            self.centroids[classes, third],
            self.centroids[classes, fourth],
        )
        return made * self.unit


def _train_classifier(
    base: BaseSet, config: HallucinationConfig, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Train softmax regression on base rows; return weights (C, D) and biases (C,)."""
    if config.optimiser == "sgd":
        return _train_as_in_source(base, config.num_classifier_steps, rng)
    num_steps = config.num_classifier_steps
    device, num_classes = base.features.device, len(base.counts)
    centre = base.prototypes.float().mean(dim=0)
    spread = base.variance + float((base.prototypes.float() - centre).square().sum(dim=1).mean())
    weight = torch.zeros(num_classes, len(centre), device=device, requires_grad=True)
    bias = torch.zeros(num_classes, device=device, requires_grad=True)
    optimiser = torch.optim.Adam([weight, bias], weight_decay=_CLASSIFIER_DECAY)
    classes = torch.arange(num_classes, device=device)
    classes = classes.repeat_interleave(max(1, round(_CLASSIFIER_BATCH_SIZE / num_classes)))
    with torch.enable_grad():
        for number in range(num_steps):
            uniforms = torch.rand(len(classes), generator=rng, dtype=torch.float64).to(device)
            rows = (base.pick(classes, uniforms).float() - centre) / math.sqrt(spread)
            loss = cross_entropy(linear(rows, weight, bias), classes)
            weight.grad, bias.grad = torch.autograd.grad(loss, [weight, bias])
            optimiser.param_groups[0]["lr"] = _CLASSIFIER_RATE * (1 - number / num_steps)
            optimiser.step()
    weight = weight.detach() / math.sqrt(spread)
    return weight, bias.detach() - weight @ centre


def _train_as_in_source(
    base: BaseSet, num_steps: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Train by SGD without dampening; a batch has distinct rows, whatever their classes."""
    device, num_rows = base.features.device, len(base.features)
    layer = draw_linear(base.features.shape[1], len(base.counts), rng).to(device)
    decay = _CLASSIFIER_DECAY
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=decay)
    labels = torch.arange(len(base.counts), device=device).repeat_interleave(base.counts)
    with torch.enable_grad():
        for _ in range(num_steps):
            rows = torch.randperm(num_rows, generator=rng)[:_CLASSIFIER_BATCH_SIZE].to(device)
            optimiser.zero_grad()
            cross_entropy(layer(base.features[rows].float()), labels[rows]).backward()
            optimiser.step()
    return layer.weight.detach(), layer.bias.detach()


class Hallucination(TrainedAugmentation[LearningRun]):
    """Augmentation by analogies, up to a number of examples that includes the shots."""

    def __init__(self, config: HallucinationConfig, evaluation: EvaluationConfig) -> None:
        """Take the weight of synthetic examples from ``config``, the rest from ``evaluation``."""
        weighing = {"mixing_shots": config.mixing_shots, "mixing_weight": None}
        super().__init__(evaluation.with_overrides(weighing))
        self._settings = config

    def new_run(self, base: BaseSet, rng: torch.Generator, workers: Workers) -> LearningRun:
        """Create the network with random weights."""
        ordered, seed = base.in_order_of_names(), draw_word(rng)
        learner = AnalogyNetwork(ordered, self._settings, seed)
        return LearningRun("feature hallucination", learner, ordered, self._settings, seed, workers)

    def synthesise(
        self, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0
    ) -> list[Tensor]:
        """Return the missing examples of each problem, shape (N, S, D); S may be zero.

        Each draw has its own stream, so a problem's examples do not depend on other problems.
        """
        run, for_sources = self.trained(task.base, rng)
        assert isinstance(run.learner, AnalogyNetwork)
        word, hallucinated = draw_word(for_sources), []
        for problem in task.problems:
            count = num_synthetic or max(0, self._settings.max_per_class - problem.num_shots)
            of_draw = new_rng(word, problem.draw)
            hallucinated.append(run.learner.hallucinate(task.support(problem), count, of_draw))
        return hallucinated


_ROW = TableRow(
    name="FH",
    summary="feature hallucination by analogies, Hariharan et al. 2017",
    group="FH",
    generation="LR w/ A.",
    is_printed=True,
    head="linear",
    heads=HEADS,
    method=Method(
        make=Hallucination,
        config=HallucinationConfig(),
        published=PUBLISHED,
        published_head={**LINEAR_AS_IN_BENCHMARK, "linear_weight_decay": 1e-3},
        space=SPACE,
        sweep={"mixing_shots": MIXING_SHOTS, "max_per_class": NUMBERS_OF_EXAMPLES},
        quick={"num_episodes": 100, "num_clusters": 10},
    ),
)
ROWS = [_ROW, replace(_ROW, name="P-FH", group="P-FH", representation=PN, is_embedded=True)]

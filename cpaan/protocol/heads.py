"""Classifier heads, which learn class scores from real and synthetic examples.

Each head fits all problems of a task at once. Base classes have only real examples. Novel classes
have a few real and many synthetic examples, weighted by `real_shares`.

Shapes: P = problems, B = base classes of the phase, N = novel classes, C = B + N,
S = synthetic examples per class, Q = queries, D = feature dimension.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cpaan.core.devices import CudaGraph, new_rate, quick_products, set_rate
from cpaan.protocol.config import OWN, EvaluationConfig
from cpaan.protocol.tasks import LowShotTask

_COSINE_SCALE = 10.0  # a softmax of plain cosines would make all classes nearly equally likely


class Head(ABC):
    """A classifier fitted to real and synthetic examples."""

    def __init__(self, config: EvaluationConfig) -> None:
        self._config = config

    @abstractmethod
    def fit(self, task: LowShotTask, synthetic: Tensor | None, rng: torch.Generator) -> None:
        """Fit all problems; ``synthetic`` has shape (P, N, S, D)."""

    @abstractmethod
    def scores(self, queries: Tensor) -> Tensor:
        """Return scores of shape (P, Q, C) for queries (Q, D), or (P, Q, D) of each problem."""


class NearestCentroid(Head):
    """Classify by the nearest centroid in Euclidean distance, as prototypical networks do."""

    def fit(self, task: LowShotTask, synthetic: Tensor | None, rng: torch.Generator) -> None:
        """Compute the centroids; synthetic and real means have the weights of `real_shares`."""
        novel = task.novel_prototypes
        if synthetic is not None:
            share = real_shares(task, synthetic, self._config).view(-1, 1, 1)
            novel = share * novel + (1 - share) * synthetic.mean(dim=2)
        base = task.base.prototypes[: task.num_base].expand(len(novel), -1, -1)
        # Centred, because distances between points far from zero lose precision.
        self._centre = task.base.prototypes.mean(dim=0)
        self._centroids = torch.cat([base, novel], dim=1) - self._centre
        self._unit = task.base.variance

    def scores(self, queries: Tensor) -> Tensor:
        """Return negative squared distances, in units of the variance within base classes."""
        return -_squared_distances(queries - self._centre, self._centroids) / self._unit


class CosineCentroid(NearestCentroid):
    """Classify by the centroid at the smallest angle, measured from the mean base prototype.

    Features after a ReLU lie in one orthant, where all angles measured from zero are small.
    """

    def scores(self, queries: Tensor) -> Tensor:
        """Return scaled cosines."""
        queries, centroids = (
            normalize(each, dim=-1) for each in (queries - self._centre, self._centroids)
        )
        return _COSINE_SCALE * queries @ centroids.transpose(1, 2)


class SoftNearestNeighbours(Head):
    """Soft k-NN: a class's score is the mean of exp(-distance²/temperature) over its examples.

    All examples count, near ones more, so k is the number of examples. A smaller k would favour
    large classes, because the nearest of many examples are nearer by chance.
    """

    def fit(self, task: LowShotTask, synthetic: Tensor | None, rng: torch.Generator) -> None:
        """Store the examples."""
        self._task = task
        self._synthetic = synthetic
        self._centre = task.base.prototypes.mean(dim=0)
        self._scale = self._config.knn_temperature * task.base.variance

    def scores(self, queries: Tensor) -> Tensor:
        """Return log mean similarities."""
        task = self._task
        of_phase = task.base.by_class()[: task.num_base]
        base = [self._log_mean(queries, rows.unsqueeze(0)) for rows in of_phase]
        every_base = torch.cat([queries[..., :0], *base], dim=-1)
        scores = []
        for number, problem in enumerate(task.problems):
            its_base, its_queries = (
                part.expand(len(task.problems), -1, -1)[number] for part in (every_base, queries)
            )
            novel = self._log_mean(its_queries, task.support(problem))
            if self._synthetic is not None:
                share = real_shares(task, self._synthetic, self._config)[number]
                synthetic = self._log_mean(its_queries, self._synthetic[number])
                novel = torch.logaddexp(novel + share.log(), synthetic + (1 - share).log())
            scores.append(torch.cat([its_base, novel], dim=1))
        return torch.stack(scores)

    def _log_mean(self, queries: Tensor, examples: Tensor) -> Tensor:
        """Return log mean similarities (..., classes) to examples (classes, examples, D)."""
        num_classes, num_examples, _ = examples.shape
        points = examples.float().flatten(0, 1) - self._centre
        distances = _squared_distances(queries - self._centre, points)
        similarities = (-distances / self._scale).unflatten(-1, (num_classes, num_examples))
        return similarities.logsumexp(dim=-1) - torch.tensor(float(num_examples)).log()


class LinearHead(Head):
    """Softmax regression on class-balanced batches.

    All problems are trained together. They share the base examples of each step, which thus need
    only one large matrix product with the weights of all problems.

    A batch takes evenly spaced rows of each class from a random start. All rows are equally
    likely, with much less noise than in independent draws. A class that fits is taken whole.
    """

    def fit(self, task: LowShotTask, synthetic: Tensor | None, rng: torch.Generator) -> None:
        """Minimise cross-entropy and weight decay."""
        config = self._config
        num_problems, num_base, num_novel = len(task.problems), task.num_base, task.num_novel
        num_classes = num_base + num_novel
        examples_per_class = max(1, round(config.linear_batch_size / num_classes))
        self._factor = 1 / task.base.mean_norm if config.linear_unit_norm else 1.0

        device, num_dims = task.device, task.shots.shape[-1]
        # Problem and class share a dimension, so that the base product needs no copy.
        bias = torch.zeros(num_problems * num_classes, device=device)
        weight = torch.zeros(num_dims, len(bias), device=device)
        optimiser = self._optimiser([weight, bias], device)

        pool = NovelPool(task, synthetic, config, examples_per_class)
        every_example = torch.arange(examples_per_class, device=device)
        labels = torch.arange(num_classes, device=device).repeat_interleave(examples_per_class)
        base_classes, novel_classes = labels.tensor_split([num_base * examples_per_class])
        base_labels = base_classes.repeat_interleave(num_problems)
        novel_labels = novel_classes.repeat(num_problems)
        uniforms = torch.zeros(num_classes, 2, dtype=torch.float64, device=device)

        def step() -> None:
            for_base, for_novel = uniforms.split([num_base, num_novel])
            places = (for_base[:, :1] + every_example) / examples_per_class
            base = task.base.pick(base_classes, places.flatten())
            novel = pool.pick(for_novel)

            # Scale the weights instead of the features: the logits are equal, and it costs less.
            scaled = weight * self._factor
            by_problem = scaled.unflatten(1, (num_problems, num_classes)).transpose(0, 1)
            base_logits = torch.addmm(bias, base, scaled)
            novel_logits = torch.baddbmm(bias.view(num_problems, 1, -1), novel, by_problem)
            of_base = _to_gradient(base_logits, base_labels, num_classes)
            of_novel = _to_gradient(novel_logits, novel_labels, num_classes)
            # The means are over the examples of a problem, so it has the gradient of its own loss.
            of_weight = base.T @ of_base + (novel.mT @ of_novel).transpose(0, 1).flatten(1)
            weight.grad = of_weight * (self._factor / len(labels))
            # Classes are balanced, so the gradient of a bias is zero at first. Rounding, which
            # depends on the number of problems, would become a whole step of Adam.
            of_bias = of_base.sum(dim=0, dtype=torch.float64)
            of_bias += of_novel.sum(dim=1, dtype=torch.float64).flatten()
            bias.grad = (of_bias / len(labels)).to(bias.dtype)
            optimiser.step()

        set_rate(optimiser, config.linear_learning_rate)
        graph = CudaGraph(step, device)
        with quick_products(device):
            for number in range(config.linear_num_steps):
                drawn = torch.rand(num_classes, 2, generator=rng, dtype=torch.float64)
                uniforms.copy_(drawn, non_blocking=True)
                if config.linear_decays:
                    left = 1 - number / config.linear_num_steps
                    set_rate(optimiser, config.linear_learning_rate * left)
                graph()

        self._weight = weight.detach().unflatten(1, (num_problems, num_classes)).transpose(0, 1)
        self._bias = bias.detach().view(num_problems, 1, num_classes)

    def scores(self, queries: Tensor) -> Tensor:
        """Return logits."""
        return (queries * self._factor) @ self._weight + self._bias

    def _optimiser(self, parameters: list[Tensor], device: torch.device) -> torch.optim.Optimizer:
        rate, decay = new_rate(device), self._config.linear_weight_decay
        if self._config.linear_optimiser == "adam":
            is_cuda = device.type == "cuda"
            return torch.optim.Adam(
                parameters, lr=rate, weight_decay=decay, fused=True, capturable=is_cuda
            )
        return torch.optim.SGD(
            parameters, lr=rate, momentum=0.9, dampening=0.9, weight_decay=decay, fused=True
        )


class NovelPool:
    """Pool of real and synthetic examples of the novel classes of all problems, for batches."""

    def __init__(
        self,
        task: LowShotTask,
        synthetic: Tensor | None,
        config: EvaluationConfig,
        num_examples: int,
    ) -> None:
        device, classes = task.device, torch.arange(task.num_novel, device=task.device).view(-1, 1)
        self._num_examples = num_examples
        self._real_share = real_shares(task, synthetic, config).view(-1, 1, 1)
        self._num_real, draws = (
            torch.tensor(each, device=device).view(-1, 1, 1)
            for each in zip(*task.problems, strict=True)
        )
        # The first row of each class of each draw or problem in one long table, shape (P, N, 1).
        self._real = task.shots.flatten(0, 2)
        self._first_real = (draws * task.num_novel + classes) * task.shots.shape[2]
        self._num_synthetic, self._synthetic = 0, task.shots[0, 0, :0]
        if synthetic is not None:
            self._num_synthetic, self._synthetic = synthetic.shape[2], synthetic.flatten(0, 2)
        problems = torch.arange(len(task.problems), device=device).view(-1, 1, 1)
        self._first_synthetic = (problems * task.num_novel + classes) * self._num_synthetic
        # On a CPU, new memory for each step costs more time than picking the examples.
        num_rows = self._first_synthetic.numel() * num_examples
        self._picked = self._real.new_empty(2, num_rows, self._real.shape[1])

    def pick(self, uniforms: Tensor) -> Tensor:
        """Pick examples of every novel class, shape (P, N * num_examples, D).

        All problems share ``uniforms``, numbers from 0 to 1, shape (N, 2). They determine the
        first row, and whether the number of real examples is rounded up. The next call overwrites
        the result.
        """
        start, rounding = uniforms.split(1, dim=-1)
        order = torch.arange(self._num_examples, device=uniforms.device)
        num_real = (self._real_share * self._num_examples + rounding).floor()  # (P, N, 1)
        place = (order + start) / num_real.clamp(min=1)
        # The product can round up to the number of examples.
        rows = (place * self._num_real).long().minimum(self._num_real - 1)
        picked, synthetic = self._picked
        torch.index_select(self._real, 0, (self._first_real + rows).flatten(), out=picked)
        if self._num_synthetic:
            place = (order - num_real + start) / (self._num_examples - num_real).clamp(min=1)
            rows = (place * self._num_synthetic).long().clamp(0, self._num_synthetic - 1)
            rows = (self._first_synthetic + rows).flatten()
            torch.index_select(self._synthetic, 0, rows, out=synthetic)
            is_real = (order < num_real).view(-1, 1)
            torch.where(is_real, picked, synthetic, out=picked)
        return picked.unflatten(0, (len(self._num_real), -1))


def _to_gradient(logits: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the gradient of the summed cross-entropy, in the memory of the logits."""
    gradient = logits.view(-1, num_classes)
    torch.softmax(gradient, dim=-1, out=gradient)
    gradient[torch.arange(len(labels), device=labels.device), labels] -= 1
    return gradient.view_as(logits)


HEAD_CLASSES: dict[str, type[Head]] = {
    "centroid": NearestCentroid,
    "cosine": CosineCentroid,
    "knn": SoftNearestNeighbours,
    "linear": LinearHead,
}


class GroupedHeads:
    """Separate heads for each group of problems with the same number of synthetic examples."""

    def __init__(self, config: EvaluationConfig) -> None:
        self._config = config
        self._names = [name for name in config.heads if name != OWN]
        self._groups: list[tuple[list[int], dict[str, Head]]] = []

    def fit(
        self,
        task: LowShotTask,
        synthetic: Tensor | Sequence[Tensor] | None,
        rng_of: Callable[[str, int], torch.Generator],
    ) -> None:
        """Fit every head to real and synthetic examples.

        Args:
            task: The problems.
            synthetic: Examples of each of P problems, shape (N, S, D); S may differ or be zero.
            rng_of: Returns a new generator for the name of a head and a number S.
        """
        if synthetic is None:
            synthetic = [task.shots[0, :, :0]] * len(task.problems)
        counts = [each.shape[1] for each in synthetic]
        self._groups = []
        for count in sorted(set(counts)):
            members = [place for place, its_count in enumerate(counts) if its_count == count]
            part = replace(task, problems=tuple(task.problems[place] for place in members))
            examples = None
            if count and isinstance(synthetic, Tensor):  # not copied, because it may fill a GPU
                examples = synthetic
            elif count:
                examples = torch.stack([synthetic[place] for place in members])
            heads = {name: HEAD_CLASSES[name](self._config) for name in self._names}
            for name, head in heads.items():
                head.fit(part, examples, rng_of(name, count))
            self._groups.append((members, heads))

    def scores(self, queries: Tensor) -> dict[str, Tensor]:
        """Return each head's scores, shape (P, Q, C), problems in the order of the task.

        Queries have shape (Q, D), or (P, Q, D) if each problem has its own.
        """
        places = torch.tensor([place for members, _ in self._groups for place in members])
        order = places.argsort().to(queries.device)
        groups = [
            (queries if queries.ndim == 2 else queries[members], heads)
            for members, heads in self._groups
        ]
        return {
            name: torch.cat([heads[name].scores(of_group) for of_group, heads in groups])[order]
            for name in self._names
        }


def real_shares(task: LowShotTask, synthetic: Tensor | None, config: EvaluationConfig) -> Tensor:
    """Return the weight of the real examples of a novel class in each problem, shape (P,)."""
    shots = torch.tensor(
        [float(problem.num_shots) for problem in task.problems], device=task.device
    )
    return real_share(shots, 0 if synthetic is None else synthetic.shape[2], config)


def real_share(num_shots: Tensor, num_synthetic: int, config: EvaluationConfig) -> Tensor:
    """Return the weight of the real examples of a class, for numbers of shots of any shape.

    This is ``mixing_weight`` if it is set. Otherwise it grows with the number of shots, as
    ``mixing_shots`` defines. Without synthetic examples it is one.
    """
    if not num_synthetic:
        return torch.ones_like(num_shots)
    if config.mixing_weight is not None:
        return torch.full_like(num_shots, config.mixing_weight)
    of_synthetic = num_synthetic if config.mixing_shots is None else config.mixing_shots
    return num_shots / (num_shots + of_synthetic)


def _squared_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Return squared distances, shape (..., Q, points), for points of shape (..., points, D)."""
    squares = queries.square().sum(dim=-1, keepdim=True) + points.square().sum(-1).unsqueeze(-2)
    return squares - 2 * queries @ points.transpose(-2, -1)

"""Benchmark of an evaluation with the linear head: all problems at once, or one by one.

Shapes: P = problems, N = novel classes, C = all classes of the phase, S = synthetic examples per
class, D = feature dimension.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from cpaan.bench.measuring import Bench, Subject
from cpaan.bench.scales import Scale
from cpaan.core.randomness import new_rng
from cpaan.methods.controls import Control
from cpaan.protocol.accuracy import score
from cpaan.protocol.augmentation import copy
from cpaan.protocol.config import LINEAR_AS_IN_BENCHMARK, EvaluationConfig
from cpaan.protocol.heads import LinearHead, NovelPool
from cpaan.protocol.tasks import BaseSet, LowShotTask, Problem, Queries

HELP = "an evaluation with the linear head, all problems at once, against one after the other"

_PLAIN_STEPS = 3  # of every problem, in one timed call
_EXAMPLES_A_CLASS = 1_300  # of ImageNet's base classes


def make_task(
    scale: Scale, config: EvaluationConfig, seed: int, device: torch.device
) -> tuple[LowShotTask, Queries]:
    """Return random classes of these sizes; the cost does not depend on feature values."""
    rng = new_rng(seed, device=device)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, device=device)

    num_dims, num_novel = scale.num_dims, scale.num_novel
    num_classes = scale.num_base + num_novel
    num_base = max(scale.num_classes, scale.num_base)
    per_class = min(_EXAMPLES_A_CLASS, 40 * scale.num_queries // num_classes)
    means = normal(num_base + num_novel, num_dims)
    base = torch.cat([mean + normal(per_class, num_dims) for mean in means[:num_base]])
    labels = torch.arange(scale.num_queries, device=device) % num_classes
    task = LowShotTask(
        base=BaseSet(base.half(), torch.full((num_base,), per_class, device=device)),
        num_base=scale.num_base,
        shots=means[num_base:, None]
        + normal(config.num_draws, num_novel, max(config.shots), num_dims),
        problems=tuple(
            Problem(shots, draw) for shots in config.shots for draw in range(config.num_draws)
        ),
    )
    means_of_phase = torch.cat([means[: scale.num_base], means[num_base:]])
    return task, Queries(means_of_phase[labels] + normal(scale.num_queries, num_dims), labels)


class PlainLinear:
    """Softmax regression of one problem, by a plain loop on the batches of the fast head."""

    def __init__(
        self, task: LowShotTask, number: int, synthetic: Tensor, config: EvaluationConfig
    ) -> None:
        """Take problem ``number`` of a task, and its part of synthetic examples (P, N, S, D)."""
        self._task = replace(task, problems=(task.problems[number],))
        self._config, self._num_classes = config, task.num_base + task.num_novel
        self._count = max(1, round(config.linear_batch_size / self._num_classes))
        self._pool = NovelPool(self._task, synthetic[number : number + 1], config, self._count)
        shape = (self._num_classes, task.shots.shape[-1])
        self.weight = torch.zeros(shape, device=task.device, requires_grad=True)
        self.bias = torch.zeros(self._num_classes, device=task.device, requires_grad=True)

    def train(self, num_steps: int, rng: torch.Generator) -> None:
        """Run some steps of SGD from the current weights."""
        config, base, num_base = self._config, self._task.base, self._task.num_base
        optimiser = torch.optim.SGD(
            [self.weight, self.bias],
            lr=config.linear_learning_rate,
            momentum=0.9,
            dampening=0.9,
            weight_decay=config.linear_weight_decay,
        )
        count = self._count
        order = torch.arange(count, device=self._task.device)
        labels = torch.arange(self._num_classes, device=self._task.device)
        labels = labels.repeat_interleave(count)
        for _ in range(num_steps):
            uniforms = torch.rand(self._num_classes, 2, generator=rng, dtype=torch.float64)
            for_base, for_novel = uniforms.to(order.device).tensor_split([num_base])
            places = (for_base[:, :1] + order) / count
            examples = base.pick(labels[: num_base * count], places.flatten())
            (novel,) = self._pool.pick(for_novel)
            logits = linear(torch.cat([examples, novel]), self.weight, self.bias)
            optimiser.zero_grad()
            cross_entropy(logits, labels).backward()
            optimiser.step()


def compare_logits(
    task: LowShotTask,
    synthetic: Tensor,
    queries: Tensor,
    config: EvaluationConfig,
    num_steps: int,
    seed: int,
) -> float:
    """Return the largest difference of logits after the same batches, over the largest logit."""
    config = config.with_overrides({"linear_num_steps": num_steps})
    head = LinearHead(config)
    head.fit(task, synthetic, new_rng(seed))
    together = head.scores(queries)
    worst = largest = 0.0
    for number in range(0, len(task.problems), max(1, len(task.problems) // 4)):
        alone = PlainLinear(task, number, synthetic, config)
        alone.train(num_steps, new_rng(seed))
        with torch.no_grad():
            logits = linear(queries, alone.weight, alone.bias)
        worst = max(worst, float((together[number] - logits).abs().max()))
        largest = max(largest, float(logits.abs().max()))
    return worst / largest


def measure(bench: Bench) -> None:
    """Measure an iteration of the linear head over all problems, and a whole evaluation."""
    scale, seed = bench.scale, bench.seed
    iteration, whole = "evaluate linear iteration", "evaluate linear whole"
    if not (bench.wants(iteration) or bench.wants(whole)):
        return
    counts = {"num_synthetic": scale.num_synthetic, "linear_num_steps": scale.num_linear_steps}
    config = EvaluationConfig(**{**LINEAR_AS_IN_BENCHMARK, "heads": ("linear",), **counts})
    task, queries = make_task(scale, config, seed, bench.device)
    # Copies cost nothing, so the measured time is that of the head.
    synthetic = Control(copy, config).synthesise(task, new_rng(seed))
    assert synthetic is not None
    num_problems, num_classes = len(task.problems), task.num_base + task.num_novel
    timed = config.with_overrides({"linear_num_steps": scale.num_timed_steps})
    alone = [PlainLinear(task, number, synthetic, config) for number in range(num_problems)]

    def fit_together() -> None:
        LinearHead(timed).fit(task, synthetic, new_rng(seed))

    def fit_one_by_one() -> None:
        for problem in alone:
            problem.train(_PLAIN_STEPS, new_rng(seed))

    def evaluate() -> None:
        fitted = Control(copy, config).fit(task, new_rng(seed))
        list(score(fitted.predict, task, queries))

    bench.say(f"{iteration} ...")
    fit_together()
    times = bench.time(
        ours=Subject(fit_together, scale.num_timed_steps),
        plain=Subject(fit_one_by_one, _PLAIN_STEPS),
    )
    sizes: dict[str, Any] = {
        "num_dims": task.shots.shape[-1],
        "num_problems": num_problems,
        "num_base": task.num_base,
        "num_novel": task.num_novel,
        "num_queries": len(queries.labels),
        "num_synthetic": synthetic.shape[2],
        "batch_size": num_classes * max(1, round(config.linear_batch_size / num_classes)),
        "num_iterations": config.linear_num_steps,
        "plain_timed_iterations": _PLAIN_STEPS,
    }
    if bench.wants(iteration):
        some, steps = queries.features[:1024], scale.num_timed_steps
        error = compare_logits(task, synthetic, some, config, steps, seed)
        bench.row(iteration, times["ours"], times["plain"], relative_error=error, **sizes)
    if bench.wants(whole):
        alone, synthetic = [], None  # free their memory: the evaluation synthesises its own
        bench.say(f"{whole} ...")
        # Plain time is extrapolated from a few training steps and excludes everything else.
        plain = times["plain"].times(config.linear_num_steps)
        bench.row(whole, bench.time(ours=Subject(evaluate))["ours"], plain, **sizes)

"""Benchmark of a training episode of every meta-learned row, against a plain training loop."""

from functools import partial

import torch

from cpaan.bench.measuring import Bench, Subject
from cpaan.bench.scales import real_base
from cpaan.core.devices import set_rate
from cpaan.core.randomness import new_rng
from cpaan.methods.registry import ROWS, make_method
from cpaan.protocol.config import EvaluationConfig
from cpaan.training.learning import LearningRun

HELP = "a training episode of each meta-learned row, against a plain loop in float32"

_EPISODES_AT_ONCE = {"cpu": 2, "cuda": 40}


def measure(bench: Bench) -> None:
    """Measure every row whose training is a `LearningRun`, with its recommended settings."""
    base = real_base(bench.scale.num_classes, bench.scale.num_dims, bench.device)
    count = _EPISODES_AT_ONCE[bench.device.type]
    for name, row in ROWS.items():
        if row.is_embedded or not bench.wants(name):
            continue
        run, other = (
            make_method(name, EvaluationConfig()).begin(base, new_rng(bench.seed)) for _ in range(2)
        )
        if not isinstance(run, LearningRun) or not isinstance(other, LearningRun):
            continue
        loop = PlainLoop(other)
        first, plain_first = run.advance(1), loop.train(1)
        loss = run.losses[0]
        times = bench.time(
            ours=Subject(partial(run.advance, count), count),
            plain=Subject(partial(loop.train, count), count),
        )
        error = abs(first[loss] - plain_first[loss]) / abs(plain_first[loss])
        bench.row(name, times["ours"], times["plain"], relative_error=error)


class PlainLoop:
    """Plain loop: gradients, then an optimiser step, without CUDA graphs."""

    def __init__(self, run: LearningRun) -> None:
        self._run = run
        kind = torch.optim.AdamW if run.config.optimiser == "adam" else torch.optim.SGD
        trained = [each for each in run.learner.parameters() if each.requires_grad]
        self._optimiser = kind(trained, lr=1e-3, weight_decay=run.config.weight_decay)
        self._episode = 0

    def train(self, num_episodes: int) -> dict[str, float]:
        """Train for some episodes; return the terms of the last one."""
        run, device = self._run, self._run.device
        for _ in range(num_episodes):
            shape = run.learner.draw_shape(new_rng(run.seed, 2, self._episode))
            rng = new_rng(run.seed, 3, self._episode, device=device)
            self._optimiser.zero_grad()
            terms = run.learner.episode_terms(shape, rng)
            terms[0].backward()
            set_rate(self._optimiser, run.config.rate_after(self._episode))
            self._optimiser.step()
            self._episode += 1
        return dict(zip(run.losses, (float(term) for term in terms), strict=True))

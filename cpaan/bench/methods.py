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
        kind = torch.optim.AdamW if other.config.optimiser == "adam" else torch.optim.SGD
        trained = [weight for weight in other.learner.parameters() if weight.requires_grad]
        optimiser = kind(trained, lr=1e-3, weight_decay=other.config.weight_decay)
        plain = partial(train_plainly, other, optimiser)
        first, plain_first = run.advance(1), plain(1)
        loss = run.losses[0]
        times = bench.time(
            ours=Subject(partial(run.advance, count), count),
            plain=Subject(partial(plain, count), count),
        )
        error = abs(first[loss] - plain_first[loss]) / abs(plain_first[loss])
        bench.row(name, times["ours"], times["plain"], relative_error=error)


def train_plainly(
    run: LearningRun, optimiser: torch.optim.Optimizer, num_episodes: int
) -> dict[str, float]:
    """Train in a plain loop without CUDA graphs; return the terms of the last episode."""
    for _ in range(num_episodes):
        shape = run.learner.draw_shape(new_rng(run.seed, 2, run.episode))
        rng = new_rng(run.seed, 3, run.episode, device=run.device)
        optimiser.zero_grad()
        terms = run.learner.episode_terms(shape, rng)
        terms[0].backward()
        set_rate(optimiser, run.config.rate_after(run.episode))
        optimiser.step()
        run.episode += 1
    return dict(zip(run.losses, (float(term.detach()) for term in terms), strict=True))

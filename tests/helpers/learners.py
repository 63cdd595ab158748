"""A learner with a linear loss, so that every step can be computed by hand."""

import torch
from torch import Tensor, nn

from cpaan.core.randomness import new_rng
from cpaan.protocol.tasks import BaseSet
from cpaan.training.learning import Learner, LearningRun, LearningSettings
from cpaan.training.workers import ALONE, Workers

BASE = BaseSet(torch.tensor([[0.0], [1.0]]), torch.tensor([1, 1]))
PLAIN = LearningSettings(num_episodes=12, optimiser="sgd", schedule="thirds", learning_rate=0.1)


def direction(seed: int, episode: int) -> Tensor:
    """Return the gradient of an episode's loss."""
    return torch.randn(2, generator=new_rng(seed, 3, episode))


class Plane(Learner):
    """A learner whose loss is the product of its weights with a random direction."""

    TERMS = ("slope", "drawn")

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.tensor([[2.0]]))
        self.vector = nn.Parameter(torch.tensor([3.0]))
        self.scale = scale

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[Tensor]:
        drawn = torch.randn(2, generator=rng)
        loss = self.scale * (drawn[0] * self.matrix.sum() + drawn[1] * self.vector.sum())
        return [loss, drawn[0]]


def new_run(
    learner: Learner | None = None,
    *,
    name: str = "plane",
    base: BaseSet = BASE,
    seed: int = 7,
    workers: Workers = ALONE,
    **settings: object,
) -> LearningRun:
    config = PLAIN.with_overrides(settings)
    return LearningRun(name, learner or Plane(), base, config, seed, workers)


def weights(run: LearningRun) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.learner.parameters()])

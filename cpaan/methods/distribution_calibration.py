"""Distribution Calibration (DC). Yang, Liu & Xu (2021), Free Lunch for Few-shot Learning:
Distribution Calibration.

Nothing is trained. Features are brought nearer to Gaussian ones by a power (Tukey); each shot then
makes a Gaussian of its own, whose mean is that of the shot and of the nearest base classes' means,
and whose covariance is the mean of those classes', with a constant added. Samples of all shots'
Gaussians fill the novel class, and heads learn in the transformed space.

Chosen where the source does not fit: features below zero keep their sign beside the power of their
size; base classes' means and covariances are those of transformed features (the source mixes
transformed shots with base classes that are not); the constant is in units of the base classes'
variance, as features of other scales need another; power and number of samples suit our features
and memory, and how much samples weigh beside shots is for the evaluation to say, as for every
generator.

Shapes: P = problems, N = novel classes, K = shots, S = samples of a class, D = feature dimension,
C = base classes, k = nearest ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng
from cpaan.core.settings import Settings
from cpaan.methods.base import Augmented
from cpaan.methods.table_row import Range, SearchSpace, TableRow
from cpaan.protocol.config import HEADS, EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask

_ROWS_PER_BLOCK = 8192


@dataclass(frozen=True, kw_only=True)
class DistributionCalibrationConfig(Settings):
    """Everything that decides the samples, apart from features and seed."""

    tukey_power: float = 0.75
    """Power to which the sizes of features are raised; they keep their signs."""
    num_nearest: int = 4
    """Base classes whose means and covariances a shot takes; all where there are fewer."""
    spread: float = 0.2
    """What is added to covariances."""
    relative_spread: bool = True
    """Whether its unit is the mean variance of a dimension within base classes; 1 in the source."""
    spread_everywhere: bool = True
    """Whether the spread is added to every entry, as in the source: all dimensions of a sample then
    move together. Otherwise to the diagonal alone."""
    num_samples: int = 100
    """Samples of a novel class, of all shots together. At the benchmark's scale, those of 25
    problems fill 1.6 GB for every hundred."""
    transformed_base: bool = True
    """Whether base classes are transformed, too; in the source only shots are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("tukey_power", "num_nearest", "num_samples")
        self._refuse_negative("spread")


PUBLISHED = DistributionCalibrationConfig(
    tukey_power=0.5,
    num_nearest=2,
    spread=0.21,
    relative_spread=False,
    num_samples=750,
    transformed_base=False,
)
SPACE: SearchSpace = {
    "tukey_power": Range(0.25, 1.0),
    "num_nearest": Range(1, 8),
    "spread": Range(0.01, 2.0, log=True),
}


def tukey(features: Tensor, power: float) -> Tensor:
    """Return features raised to a power, with their signs; in their own precision."""
    if power == 1:
        return features
    wide = features.float()
    return (wide.sign() * wide.abs() ** power).to(features.dtype)


def tukey_base(base: BaseSet, power: float) -> BaseSet:
    """Return the same base examples, transformed; block by block, as there may be many."""
    blocks = [tukey(rows, power) for rows in base.features.split(_ROWS_PER_BLOCK)]
    return BaseSet(torch.cat(blocks), base.counts, base.names)


def calibrated_samples(
    supports: Tensor,
    base: BaseSet,
    spread: float,
    config: DistributionCalibrationConfig,
    rng: torch.Generator,
) -> Tensor:
    """Return samples of the Gaussians of all shots, shape (N, S, D).

    A mean of covariances is the covariance of a sum of independent samples, one of each class over
    the root of their number. And of centred rows X with covariance XᵀX/(n - 1), zᵀX/√(n - 1) is a
    sample if z is standard normal. So no covariance is ever formed or factorised.

    Args:
        supports: Transformed shots, shape (N, K, D).
        base: The base examples whose means and covariances are taken.
        spread: What is added to covariances, in units of the features' squares.
        config: The rest.
        rng: On the device of the shots.
    """
    num_novel, num_shots, num_dims = supports.shape
    num_nearest = min(config.num_nearest, len(base.counts))
    device = supports.device
    # Samples take turns among shots, so that these have equally many, or one more.
    shot_of = torch.arange(config.num_samples, device=device) % num_shots
    distances = torch.cdist(supports.flatten(0, 1).double(), base.prototypes.double())
    nearest = distances.topk(num_nearest, largest=False).indices  # (N * K, k)
    means = (base.prototypes[nearest].sum(dim=1) + supports.flatten(0, 1)) / (num_nearest + 1)
    samples = means.view(num_novel, num_shots, num_dims)[:, shot_of].flatten(0, 1)

    # All samples that take from a base class at once, whatever novel class they are of.
    sources = nearest.view(num_novel, num_shots, num_nearest)[:, shot_of].flatten()
    taken = sources.argsort(stable=True).div(num_nearest, rounding_mode="floor")
    counts = sources.bincount(minlength=len(base.counts)).tolist()
    rows_of = base.by_class()
    for rows, mean, places in zip(rows_of, base.prototypes, taken.split(counts), strict=True):
        if len(places) == 0:
            continue
        deviations = (rows.float() - mean) / (max(len(rows) - 1, 1) * num_nearest) ** 0.5
        drawn = torch.randn((len(places), len(rows)), generator=rng, device=device)
        samples.index_add_(0, places, drawn @ deviations)

    if spread:
        width = 1 if config.spread_everywhere else num_dims
        noise = torch.randn((len(samples), width), generator=rng, device=device)
        samples += spread**0.5 * noise
    return samples.view(num_novel, config.num_samples, num_dims)


class DistributionCalibration(Augmented):
    """Heads on transformed shots and on samples of calibrated Gaussians."""

    def __init__(self, config: DistributionCalibrationConfig, evaluation: EvaluationConfig) -> None:
        super().__init__(evaluation)
        self._settings = config
        self._known: tuple[BaseSet, BaseSet] | None = None

    def fit(self, task: LowShotTask, rng: torch.Generator) -> None:
        """Transform everything, sample, and fit every head."""
        if self._known is None or self._known[0] is not task.base:
            self._known = (task.base, tukey_base(task.base, self._settings.tukey_power))
        super().fit(replace(task, base=self._known[1], shots=self.represent(task.shots)), rng)

    def represent(self, examples: Tensor) -> Tensor:
        """Return examples transformed, as samples are."""
        return tukey(examples, self._settings.tukey_power)

    def predict(self, queries: Tensor) -> Mapping[str, Tensor]:
        """Return each head's scores of transformed queries."""
        return super().predict(self.represent(queries))

    def synthesise(self, task: LowShotTask, rng: torch.Generator) -> Tensor:
        """Sample for every problem of a transformed task, each independent of the others."""
        assert self._known is not None, "fit transforms the base examples first"
        config = self._settings
        base = self._known[config.transformed_base]
        spread = config.spread
        if config.relative_spread:
            spread *= base.variance / base.features.shape[1]
        word = draw_word(rng)
        shape = (len(task.problems), task.num_novel, config.num_samples, task.shots.shape[-1])
        synthetic = task.shots.new_empty(shape)
        for number, problem in enumerate(task.problems):
            for_problem = new_rng(word, problem.draw, problem.num_shots, device=task.device)
            synthetic[number] = calibrated_samples(
                task.support(problem), base, spread, config, for_problem
            )
        return synthetic


ROWS = [
    TableRow(
        name="DC",
        group="Later",
        generation="calibration",
        head="linear",
        heads=HEADS,
        config=DistributionCalibrationConfig(),
        published=PUBLISHED,
        space=SPACE,
        make=lambda config, evaluation, checkpointing: DistributionCalibration(config, evaluation),
    )
]

"""Distribution Calibration (DC). Yang, Liu & Xu (2021), Free Lunch for Few-shot Learning:
Distribution Calibration.

Nothing is trained. A power transform (Tukey) makes features more Gaussian. Each shot defines a
Gaussian. Its mean averages the shot and the nearest base-class means. Its covariance is the mean of
those of these classes plus a constant. Samples of all Gaussians augment the novel class, and heads
are trained in the transformed space.

Choices where the source does not fit:
* Negative features keep their sign; the power applies to their absolute value.
* Base-class statistics are those of transformed features; the source transforms only shots.
* The constant is in units of the base classes' variance, so that it suits features of any scale.
* The power and the number of samples are chosen for our features and memory. The evaluation decides
  the weight of samples against shots, as for every generator.

Shapes: P = problems, N = novel classes, K = shots, S = samples of a class, D = feature dimension,
C = base classes, k = nearest ones.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cpaan.core.randomness import draw_word, new_rng
from cpaan.core.settings import Settings
from cpaan.methods.base import Augmented, Fitted
from cpaan.methods.table_row import (
    MIXING_SHOTS,
    NUMBERS_OF_EXAMPLES,
    Method,
    Range,
    SearchSpace,
    TableRow,
)
from cpaan.protocol.config import HEADS, EvaluationConfig
from cpaan.protocol.tasks import BaseSet, LowShotTask

_ROWS_PER_BLOCK = 8192


@dataclass(frozen=True, kw_only=True)
class DistributionCalibrationConfig(Settings):
    """Settings of the power transform and of the sampled Gaussians."""

    tukey_power: float = 0.75
    """Power applied to the absolute values of features; signs are kept."""
    num_nearest: int = 4
    """Number of nearest base classes that calibrate a shot; all base classes if there are fewer."""
    spread: float = 0.2
    """Constant added to every entry of a covariance, as in the source; it moves all dimensions of a
    sample together."""
    relative_spread: bool = True
    """Unit of ``spread``. True: mean variance of a dimension within base classes; false: 1, as in
    the source."""
    num_samples: int = 100
    """Samples of a novel class, over all shots. At the benchmark's scale, 100 samples take 1.6 GB
    for 25 problems."""
    transformed_base: bool = True
    """Whether base classes are transformed as well; the source transforms only shots."""

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
    """Return signed powers of features, in the precision of the features."""
    if power == 1:
        return features
    wide = features.float()
    return (wide.sign() * wide.abs() ** power).to(features.dtype)


def calibrated_samples(
    supports: Tensor,
    base: BaseSet,
    spread: float,
    config: DistributionCalibrationConfig,
    rng: torch.Generator,
) -> Tensor:
    """Return samples of the Gaussians of all shots, shape (N, S, D).

    The mean of k covariances is the covariance of a sum of k independent samples, one per class,
    each divided by √k. For centred rows X with covariance XᵀX/(n - 1) and standard normal z,
    zᵀX/√(n - 1) is such a sample. So no covariance matrix is formed or factorised.

    Args:
        supports: Transformed shots, shape (N, K, D).
        base: Base examples that define means and covariances.
        spread: Constant added to covariances, in units of squared features.
        config: Other settings.
        rng: Random stream on the device of the shots.
    """
    num_novel, num_shots, num_dims = supports.shape
    num_nearest = min(config.num_nearest, len(base.counts))
    device = supports.device
    # Samples take turns among shots, so that numbers of samples per shot differ by at most one.
    shot_of = torch.arange(config.num_samples, device=device) % num_shots
    distances = torch.cdist(supports.flatten(0, 1).double(), base.prototypes.double())
    nearest = distances.topk(num_nearest, largest=False).indices  # (N * K, k)
    means = (base.prototypes[nearest].sum(dim=1) + supports.flatten(0, 1)) / (num_nearest + 1)
    samples = means.view(num_novel, num_shots, num_dims)[:, shot_of].flatten(0, 1)

    # For each base class, process all samples that use it, of any novel class, at once.
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
        noise = torch.randn((len(samples), 1), generator=rng, device=device)  # in all dimensions
        samples += spread**0.5 * noise
    return samples.view(num_novel, config.num_samples, num_dims)


class DistributionCalibration(Augmented):
    """Heads on transformed shots and on samples of calibrated Gaussians."""

    def __init__(self, config: DistributionCalibrationConfig, evaluation: EvaluationConfig) -> None:
        super().__init__(evaluation)
        self._settings = config
        self._known: tuple[BaseSet, BaseSet] | None = None

    def fit(self, task: LowShotTask, rng: torch.Generator, keep: int | None = None) -> Fitted:
        """Transform all examples, sample, and fit every head."""
        represent, base = partial(tukey, power=self._settings.tukey_power), task.base
        if self._known is None or self._known[0] is not base:
            blocks = [represent(rows) for rows in base.features.split(_ROWS_PER_BLOCK)]
            self._known = base, BaseSet(torch.cat(blocks), base.counts, base.names)
        transformed = replace(task, base=self._known[1], shots=represent(task.shots))
        heads = super().fit(transformed, rng, keep)
        return heads.after(represent)

    def synthesise(self, task: LowShotTask, rng: torch.Generator, num_synthetic: int = 0) -> Tensor:
        """Sample for every problem of a transformed task, each independent of the others."""
        assert self._known is not None, "call fit first"
        config = self._settings
        if num_synthetic:
            config = replace(config, num_samples=num_synthetic)
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
        summary="distribution calibration, Yang et al. 2021",
        group="Later",
        generation="calibration",
        head="linear",
        heads=HEADS,
        method=Method(
            make=DistributionCalibration,
            config=DistributionCalibrationConfig(),
            published=PUBLISHED,
            space=SPACE,
            sweep={"mixing_shots": MIXING_SHOTS, "num_samples": NUMBERS_OF_EXAMPLES},
        ),
    )
]

"""Data with a known ground truth: Gaussian classes that share covariances, and a spiral."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.data.splits import Phase, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable

GROUPS = ("validation-base", "validation-novel", "test-base", "test-novel")


@dataclass(frozen=True, eq=False)
class GaussianClasses:
    """A feature table and its ground truth."""

    table: FeatureTable
    split: Split
    means: dict[str, Tensor]  # class name -> (D,)
    covariances: dict[str, Tensor]  # class name -> (D, D), one for each family


def gaussian_classes(
    *,
    num_families: int = 12,
    classes_per_group: int = 2,
    num_train: int = 60,
    num_test: int = 20,
    num_dims: int = 32,
    seed: int = 0,
) -> GaussianClasses:
    """Draw families of related classes.

    A family has a centre and a covariance. Each of its classes has a mean near the centre and
    exactly this covariance. Every family has ``classes_per_group`` classes in each of the four
    groups of the split. So every novel class has related base classes, as the method assumes.
    """
    rng = new_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    spectrum = 1.0 / torch.arange(1, num_dims + 1, dtype=torch.float64)
    spectrum *= 3.0 * num_dims / spectrum.sum()  # the total variance of a class
    means: dict[str, Tensor] = {}
    covariances: dict[str, Tensor] = {}
    classes_of_group: dict[str, list[str]] = {group: [] for group in GROUPS}
    blocks, classes, partitions = [], [], []
    for family in range(num_families):
        centre = normal(num_dims)
        directions, _ = torch.linalg.qr(normal(num_dims, num_dims))
        root = directions * spectrum.sqrt()  # covariance = root @ root.T
        for group in GROUPS:
            for member in range(classes_per_group):
                name = f"family{family:02d}-{group}-{member}"
                classes_of_group[group].append(name)
                means[name] = centre + 0.5 * normal(num_dims)
                covariances[name] = root @ root.T
                num_rows = num_train + num_test
                blocks.append(means[name] + normal(num_rows, num_dims) @ root.T)
                classes += [name] * num_rows
                partitions += [TRAIN] * num_train + [TEST] * num_test

    names = {group: tuple(members) for group, members in classes_of_group.items()}
    return GaussianClasses(
        table=FeatureTable.from_arrays(
            torch.cat(blocks).float().numpy(), classes, partitions, backbone="gaussian classes"
        ),
        split=Split(
            validation=Phase(names["validation-base"], names["validation-novel"]),
            test=Phase(names["test-base"], names["test-novel"]),
        ),
        means=means,
        covariances=covariances,
    )


@dataclass(frozen=True, eq=False)
class Spiral:
    """Four arms of a spiral in the plane; methods are given a few points of the novel arms."""

    base: Tensor  # (2, examples, 2): top and bottom
    novel: Tensor  # (2, examples, 2): left and right, the ground truth
    shots: Tensor  # (2, shots, 2): some of the novel points


def spiral(rng: torch.Generator, *, num_examples: int = 300, num_shots: int = 4) -> Spiral:
    """Draw the paper's toy data set.

    The paper does not give its geometry. Here the bottom arm mirrors the top arm, so that their
    covariances differ. The left arm resembles the top arm and is nearer to it, the right arm the
    bottom arm. Both are slightly larger, so that related covariances are nearly equal.
    """

    def arm(mirror: float, size: float, centre: tuple[float, float]) -> Tensor:
        along = torch.rand(num_examples, generator=rng, dtype=torch.float64)
        angle = 1.25 * torch.pi * along  # makes the longest axis oblique to both coordinates
        radius = size * (0.4 + 1.6 * along)
        points = torch.stack([mirror * radius * angle.cos(), radius * angle.sin()], dim=1)
        noise = torch.randn(num_examples, 2, generator=rng, dtype=torch.float64)
        return points + 0.08 * noise + torch.tensor(centre, dtype=torch.float64)

    base = torch.stack([arm(1, 1.0, (0.0, 3.5)), arm(-1, 1.0, (0.0, -3.5))])
    novel = torch.stack([arm(1, 1.05, (-3.5, 1.0)), arm(-1, 1.05, (3.5, -1.0))])
    # The points of an arm are already in random order.
    return Spiral(base=base, novel=novel, shots=novel[:, :num_shots])

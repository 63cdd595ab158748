"""Gaussian classes with a known covariance."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpaan.core.randomness import new_rng
from cpaan.data.splits import Phase, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable

GROUPS = ("validation-base", "validation-novel", "test-base", "test-novel")


@dataclass(frozen=True, eq=False)
class GaussianClasses:
    table: FeatureTable
    split: Split
    covariances: dict[str, Tensor]  # class name -> (D, D), one for each family


def gaussian_classes(
    *, num_dims: int, num_train: int = 25, num_test: int = 10, seed: int = 0
) -> GaussianClasses:
    """Draw six families of related classes: 12 base and 12 novel ones in each phase.

    A family has a centre and a covariance. Each of its classes has a mean near the centre and
    exactly this covariance. Every family has two classes in each of the four groups of the split.
    So every novel class has related base classes, as the method assumes.
    """
    rng = new_rng(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    spectrum = 1.0 / torch.arange(1, num_dims + 1, dtype=torch.float64)
    spectrum *= 3.0 * num_dims / spectrum.sum()  # the total variance of a class
    covariances: dict[str, Tensor] = {}
    members: dict[str, list[str]] = {group: [] for group in GROUPS}
    blocks = []
    for family in range(6):
        centre = normal(num_dims)
        directions, _ = torch.linalg.qr(normal(num_dims, num_dims))
        root = directions * spectrum.sqrt()  # covariance = root @ root.T
        for group in GROUPS:
            for member in range(2):
                name = f"family{family:02d}-{group}-{member}"
                members[group].append(name)
                covariances[name] = root @ root.T
                mean = centre + 0.5 * normal(num_dims)
                blocks.append(mean + normal(num_train + num_test, num_dims) @ root.T)
    classes = [name for name in covariances for _ in range(num_train + num_test)]
    partitions = ([TRAIN] * num_train + [TEST] * num_test) * len(covariances)
    features = torch.cat(blocks).float().numpy()
    validation, test = (
        Phase(tuple(members[f"{phase}-base"]), tuple(members[f"{phase}-novel"]))
        for phase in ("validation", "test")
    )
    table = FeatureTable.from_arrays(features, classes, partitions, backbone="gaussian classes")
    return GaussianClasses(table, Split(validation, test), covariances)

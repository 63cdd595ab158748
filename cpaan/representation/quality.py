"""How good features are on base classes, and whether train and test rows look alike."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpaan.data.table import TEST, TRAIN, FeatureTable


@dataclass(frozen=True)
class CentroidQuality:
    """Accuracy of the nearest class mean in percent; means are those of the train rows."""

    base_train: float
    base_test: float

    @property
    def gap(self) -> float:
        """How much better train rows do.

        A large gap means that the representation was fitted to these very rows: base classes are
        then tighter than any novel class can be.
        """
        return self.base_train - self.base_test


def centroid_quality(table: FeatureTable, base_classes: list[str]) -> CentroidQuality:
    """Score the nearest centroid on the rows of base classes, top-1 among them."""
    train = [table.gather(table.rows_of(name, TRAIN)).float() for name in base_classes]
    centroids = torch.stack([rows.mean(dim=0) for rows in train])
    test = [table.gather(table.rows_of(name, TEST)).float() for name in base_classes]
    return CentroidQuality(_accuracy(train, centroids), _accuracy(test, centroids))


def _accuracy(rows_of_class: list[Tensor], centroids: Tensor) -> float:
    right = sum(
        int((torch.cdist(rows, centroids).argmin(dim=1) == label).sum())
        for label, rows in enumerate(rows_of_class)
    )
    return 100 * right / sum(map(len, rows_of_class))


def top_accuracies(ranks: NDArray[np.int32]) -> dict[str, float]:
    """Return top-1 and top-5 accuracy in percent from the ranks of true classes, best zero."""
    return {f"top{k}": 100 * float((ranks < k).mean()) for k in (1, 5)}

"""Low-shot tasks and their queries.

Shapes: P = problems, B = base classes of the phase, N = novel classes, D = feature dimension.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpaan.core.provenance import record_test_read
from cpaan.data.splits import TEST_PHASE, ShotRows, Split
from cpaan.data.table import TEST, TRAIN, FeatureTable, name_some


class Problem(NamedTuple):
    """One low-shot problem: the first ``num_shots`` shots of one draw."""

    num_shots: int
    draw: int


class BaseSet:
    """Train rows of the base classes, grouped by class."""

    def __init__(
        self, features: Tensor, counts: Tensor, names: Sequence[str] | None = None
    ) -> None:
        """Index rows (R, D), grouped by class; ``counts`` are the numbers of rows per class."""
        self.features = features
        self.counts = counts
        self.names = tuple(names or (f"{number:09d}" for number in range(len(counts))))
        self.first_row = counts.cumsum(0) - counts
        self.prototypes = torch.stack(
            [_at_least_float32(rows).mean(dim=0) for rows in self.by_class()]
        )

    @cached_property
    def order(self) -> list[int]:
        """Positions of the classes sorted by name, an order that both phases share."""
        return sorted(range(len(self.names)), key=lambda number: self.names[number])

    @cached_property
    def fingerprint(self) -> str:
        """Digest of all examples, independent of the order of classes."""
        rows = self.by_class()
        digest = hashlib.sha256(str([len(rows[number]) for number in self.order]).encode())
        for number in self.order:
            digest.update(rows[number].contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def in_order_of_names(self) -> "BaseSet":
        """Return the same examples with classes sorted by name."""
        return self.reordered(self.order)

    def reordered(self, order: list[int]) -> "BaseSet":
        """Return the same examples with classes in another order."""
        rows, names = self.by_class(), [self.names[number] for number in order]
        return BaseSet(torch.cat([rows[number] for number in order]), self.counts[order], names)

    def by_class(self) -> tuple[Tensor, ...]:
        """Return a view of the rows of each class."""
        return self.features.split(self.counts.tolist())

    @cached_property
    def variance(self) -> float:
        """Mean squared distance of an example to its class centroid, the unit of distances."""
        pairs = zip(self.by_class(), self.prototypes, strict=True)
        squared = sum(
            (_at_least_float32(rows) - mean).square().sum().double() for rows, mean in pairs
        )
        return float(squared) / len(self.features) or 1.0  # zero if every class has one example

    @cached_property
    def mean_norm(self) -> float:
        """Mean Euclidean norm of an example."""
        total = sum(_at_least_float32(rows).norm(dim=1).sum().double() for rows in self.by_class())
        return float(total) / len(self.features) or 1.0

    def check_finite(self) -> None:
        """Raise ValueError if the squared features are not finite."""
        if not math.isfinite(self.variance):
            raise ValueError("the features are not finite, or their squares overflow; rescale them")

    def pick(self, classes: Tensor, uniforms: Tensor) -> Tensor:
        """Pick a row of each of the given classes, in float32 or float64.

        ``uniforms``, numbers from 0 to 1 of the same shape, select the rows within classes.
        """
        offset = (uniforms * self.counts[classes]).long().minimum(self.counts[classes] - 1)
        return _at_least_float32(self.features[self.first_row[classes] + offset])


def _at_least_float32(rows: Tensor) -> Tensor:
    return rows if rows.dtype == torch.float64 else rows.float()


@dataclass(frozen=True, eq=False)
class LowShotTask:
    """Low-shot problems of one phase, which a method may solve together.

    All problems share their classes and base examples; they differ in the shots. Scores have the
    phase's B base classes first, then its N novel classes.
    """

    base: BaseSet
    """All base classes, the phase's own B first. The others may be inputs of a generator, but are
    not among the answers."""
    num_base: int
    shots: Tensor  # (draws, N, most shots, D), float32
    problems: tuple[Problem, ...]

    @property
    def num_novel(self) -> int:
        """Number of novel classes N."""
        return self.shots.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self.shots.device

    def support(self, problem: Problem) -> Tensor:
        """Return the real examples of one problem's novel classes, shape (N, shots, D)."""
        return self.shots[problem.draw, :, : problem.num_shots]

    def columns_from(self, order: Sequence[int]) -> Tensor:
        """Return the position of each class of the scores, shape (B + N,), in another order.

        ``order`` has all base classes or only the phase's own; novel classes follow them.
        """
        base = torch.tensor(order).argsort()[: self.num_base]
        novel = torch.arange(len(order), len(order) + self.num_novel)
        return torch.cat([base, novel]).to(self.device)

    def draw_exemplars(self, num_exemplars: int, rng: torch.Generator) -> Tensor:
        """Draw rows of the phase's base classes, shape (B, num_exemplars, D), in float32.

        A row repeats only after all rows of its class have been drawn.
        """
        counts = self.base.counts[: self.num_base].cpu().unsqueeze(1)
        every_row = torch.arange(max(counts.flatten().tolist(), default=0))
        keys = torch.rand(len(counts), len(every_row), generator=rng)
        order = keys.masked_fill(every_row >= counts, math.inf).argsort(dim=1)
        chosen = order.gather(1, torch.arange(num_exemplars) % counts).to(self.device)
        first_row = self.base.first_row[: self.num_base].unsqueeze(1)
        return self.base.features[first_row + chosen].float()

    @cached_property
    def novel_prototypes(self) -> Tensor:
        """Centroids of the shots, shape (P, N, D)."""
        return torch.stack([self.support(problem).mean(dim=1) for problem in self.problems])


class Queries(NamedTuple):
    """Test examples of a phase."""

    features: Tensor  # (Q, D), float32
    labels: Tensor  # (Q,) in the order of scores: base classes, then novel classes


def read_phase(
    table: FeatureTable,
    split: Split,
    phase_name: str,
    shot_rows: ShotRows,
    shots: Sequence[int],
    device: torch.device,
    *,
    is_noted: bool = False,
) -> tuple[LowShotTask, Queries]:
    """Read the rows of one phase into memory: base train rows, shots, and test rows.

    Each combination of a number of shots and a draw is one problem. A read of the test phase is
    logged first, unless the caller has logged it for all processes (``is_noted``).
    """
    phase = split.phase(phase_name)
    if phase_name == TEST_PHASE and not is_noted:
        record_test_read(table.fingerprint)
    query_rows = [table.rows_of(name, TEST) for name in phase.base + phase.novel]
    counts = torch.tensor([len(rows) for rows in query_rows])
    task = LowShotTask(
        base=read_base(table, split.base_classes(phase_name), device),
        num_base=len(phase.base),
        shots=table.gather(shot_rows).float().to(device),
        problems=tuple(Problem(k, draw) for k in shots for draw in range(len(shot_rows))),
    )
    queries = Queries(
        features=table.gather(np.concatenate(query_rows)).float().to(device),
        labels=torch.arange(len(counts)).repeat_interleave(counts).to(device),
    )
    return task, queries


def read_base(table: FeatureTable, classes: Sequence[str], device: torch.device) -> BaseSet:
    """Read the train rows of base classes into memory."""
    rows = [table.rows_of(name, TRAIN) for name in classes]
    counts = torch.tensor([len(each) for each in rows], device=device)
    return BaseSet(table.gather(np.concatenate(rows)).to(device), counts, classes)


def check_phase(
    table: FeatureTable, split: Split, phase_name: str, *, allow_trained_novel: bool = False
) -> None:
    """Raise ValueError for missing classes or rows, or a backbone trained on novel classes."""
    phase = split.phase(phase_name)
    wanted = split.base_classes(phase_name) + phase.novel
    missing = [name for name in wanted if name not in table.class_names]
    if missing:
        raise ValueError(f"the features lack {name_some('class', missing)} of the split")
    needed = {TRAIN: split.base_classes(phase_name), TEST: phase.base + phase.novel}
    for partition, classes in needed.items():
        empty = [name for name in classes if len(table.rows_of(name, partition)) == 0]
        if empty:
            raise ValueError(f"no {partition} rows for {name_some('class', empty)}")
    known = [name for name in phase.novel if name in (table.backbone_classes or ())]
    if known and not allow_trained_novel:
        raise ValueError(
            f"the backbone was trained on {len(known)} of {len(phase.novel)} novel classes of the "
            f"{phase_name} phase ({name_some('class', known)}), so they are not novel; "
            "use --allow-trained-novel to evaluate anyway"
        )

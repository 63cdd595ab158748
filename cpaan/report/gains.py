"""Paired comparisons of rows.

A row is always named with the head that classifies. All rows are scored on the same draws. A
difference is therefore taken for each draw and training seed; its interval counts both.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cpaan.protocol.calibration import CALIBRATED
from cpaan.protocol.statistics import ROW, Crossed, crossed_cells
from cpaan.report.tables import Cell, side_of

Scored = tuple[str, str]
"""Name of a row, and a head that it is scored with."""


@dataclass(frozen=True)
class PairedDifference:
    """One row minus another, paired by draw and seed."""

    difference: float
    """Mean over draws and seeds."""
    interval: float
    """Half the width of its 95 % interval; NaN for a single draw."""
    p_value: float
    """Of a difference of zero, two-sided."""
    by_seed: tuple[float, ...] = ()
    """The difference for each training seed that both have. An untrained row may have a single
    seed, which is compared with each seed of the other row."""

    @classmethod
    def of(cls, gaps: Crossed, num_comparisons: int = 1) -> "PairedDifference":
        """Return the mean of differences by draw and seed."""
        found = gaps.estimate()
        numbers = found.mean, found.interval(num_comparisons), found.p_value(num_comparisons)
        return cls(*numbers, tuple(gaps.values.mean(axis=0).tolist()))

    @property
    def cell(self) -> Cell:
        """The difference as a cell of a table."""
        return Cell(self.difference, self.interval)

    @property
    def side(self) -> int:
        """The side of zero that the whole interval is on; see `side_of`."""
        return side_of(self.difference, self.interval)

    def text(self, digits: int = 2) -> str:
        """Return the difference with half its interval, with a minus sign instead of a hyphen."""
        text = signed(self.difference, digits)
        return text if math.isnan(self.interval) else f"{text} ± {self.interval:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign; zero is positive."""
    return f"{value:+z.{digits}f}".replace("-", "−")


class PairedScores:
    """One metric of scores by method (name of a row), head, column, shots, draw and seed.

    Where a column or a number of shots is asked for, a list of them stands for their mean.
    """

    def __init__(self, scores: pd.DataFrame, metric: str = "top5") -> None:
        self._cells = crossed_cells(scores, metric)
        self.rows: set[Scored] = set(scores[ROW].itertuples(index=False, name=None))
        self.shots = sorted(int(k) for k in scores["shots"].unique())
        is_calibrated = CALIBRATED in set(scores["column"])
        glsl = {CALIBRATED: "calibrated GLSL"} if is_calibrated else {"all": "GLSL"}
        self.titles = {"novel": "LSL", **glsl}
        """LSL and, where the scores have it, calibrated GLSL in place of plain GLSL."""

    def heads(self, names: Iterable[str]) -> list[str]:
        """Return the heads with which all of these rows are scored."""
        found = [{head for name, head in self.rows if name == each} for each in names]
        return sorted(set.intersection(*found))

    def values(self, scored: Scored, column: ArrayLike, shots: ArrayLike) -> Crossed:
        """Return a row's scores by draw and seed.

        Raises:
            ValueError: If there are no such scores.
        """
        parts: list[Crossed] = []
        for cell in product(np.atleast_1d(column).tolist(), np.atleast_1d(shots).tolist()):
            if (*scored, *cell) not in self._cells:
                name = f"{scored[0]} with the head {scored[1]}"
                raise ValueError(f"no scores of {name} for {cell[0]} at K = {cell[1]}")
            parts.append(self._cells[*scored, *cell])
        values = sum((part.values for part in parts[1:]), parts[0].values) / len(parts)
        return Crossed(parts[0].draws, parts[0].seeds, values)

    def compare(
        self,
        subject: Scored,
        other: Scored,
        column: ArrayLike,
        shots: ArrayLike,
        *,
        num_comparisons: int = 1,
        same_seeds: bool = False,
    ) -> PairedDifference:
        """Return the subject minus the other.

        Where a comparison was picked out of several, ``num_comparisons`` is their number, and its
        interval holds for all. ``same_seeds`` is that of `Crossed.minus`.

        Raises:
            ValueError: If a row has no scores, or the two rows have different draws.
        """
        end, start = (self.values(each, column, shots) for each in (subject, other))
        try:
            gaps = end.minus(start, same_seeds=same_seeds)
        except ValueError as error:
            raise ValueError(f"{subject[0]} and {other[0]}: {error}") from error
        return PairedDifference.of(gaps, num_comparisons)


class MethodScores(PairedScores):
    """Scores whose rows are found by method, each with its head."""

    def __init__(
        self,
        scores: pd.DataFrame,
        row_of: Mapping[str, str],
        head_of: Mapping[str, str],
        metric: str = "top5",
    ) -> None:
        super().__init__(scores, metric)
        self._row_of, self._head_of = row_of, head_of
        self.cells = [(column, k) for column in self.titles for k in self.shots]
        self.few = self.cells[0]
        """LSL with the fewest shots, which most claims are about."""

    def label(self, column: str, shots: int) -> str:
        """Return a cell in words."""
        return f"{self.titles[column]} K = {shots}"

    def find(self, *methods: str) -> list[Scored]:
        """Return the rows of these methods, without those that have no scores with their head."""
        names = [self._row_of.get(method, "") for method in methods]
        rows = [(name, self._head_of.get(name, "")) for name in names]
        return [row for row in rows if row in self.rows]

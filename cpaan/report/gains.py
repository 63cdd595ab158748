"""Paired comparisons of rows.

A row is always named with the head that classifies. All rows are scored on the same draws, so
differences are taken by draw and training seed; their intervals count both.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from cpaan.protocol.calibration import CALIBRATED
from cpaan.protocol.statistics import ROW, Crossed, crossed_cells
from cpaan.report.tables import Cell

Scored = tuple[str, str]
"""Name of a row, and a head that it is scored with."""
Shots = ArrayLike | Mapping[int, float]
"""A number of shots, several for their mean, or the weight of each number in a sum."""


class PairedScores:
    """One metric of scores by method (name of a row), head, column, shots, draw and seed.

    Where a column is asked for, a list of columns stands for their mean; so it does for shots.
    """

    def __init__(self, scores: pd.DataFrame, metric: str = "top5") -> None:
        self._cells = crossed_cells(scores, metric)
        self.rows: set[Scored] = set(scores[ROW].itertuples(index=False, name=None))
        self.shots = sorted(int(k) for k in scores["shots"].unique())
        is_calibrated = CALIBRATED in set(scores["column"])
        glsl = {CALIBRATED: "calibrated GLSL"} if is_calibrated else {"all": "GLSL"}
        self.titles = {"novel": "LSL", **glsl}
        """LSL and, where the scores have it, calibrated GLSL in place of plain GLSL."""

    def heads(self, names: Iterable[str], first: str = "") -> list[str]:
        """Return the heads with which all of these rows are scored; ``first`` comes first."""
        heads = [{head for row, head in self.rows if row == name} for name in names]
        return sorted(set.intersection(*heads), key=lambda head: (head != first, head))

    def has(self, scored: Scored, column: str, shots: Iterable[int]) -> bool:
        """Return whether a row was scored in a column for all of these numbers of shots."""
        return all((*scored, column, k) in self._cells for k in shots)

    def values(self, scored: Scored, column: ArrayLike, shots: Shots) -> Crossed:
        """Return a row's scores by draw and seed.

        Raises:
            ValueError: If there are no such scores.
        """
        columns = np.atleast_1d(column).tolist()
        if not isinstance(shots, Mapping):
            numbers = np.atleast_1d(shots).tolist()
            shots = dict.fromkeys(numbers, 1 / len(numbers))
        keys = [(*scored, name, k) for name in columns for k in shots]
        for _, _, name, k in (key for key in keys if key not in self._cells):
            row = f"{scored[0]} with the head {scored[1]}"
            raise ValueError(f"no scores of {row} for {name} at K = {k}")
        cells = [self._cells[key] for key in keys]
        weights = [weight / len(columns) for _ in columns for weight in shots.values()]
        values = np.tensordot(weights, [cell.values for cell in cells], axes=1)
        return Crossed(cells[0].draws, cells[0].seeds, values)

    def compare(
        self,
        subject: Scored,
        other: Scored,
        column: ArrayLike,
        shots: Shots,
        *,
        num_comparisons: int = 1,
        same_seeds: bool = False,
    ) -> Cell:
        """Return the subject minus the other.

        Where a comparison was picked out of several, ``num_comparisons`` is their number, and its
        interval holds for all. ``same_seeds`` is that of `Crossed.minus`.

        Raises:
            ValueError: If a row has no scores, or the two rows have different draws.
        """
        ours, theirs = (self.values(scored, column, shots) for scored in (subject, other))
        try:
            gaps = ours.minus(theirs, same_seeds=same_seeds)
        except ValueError as error:
            raise ValueError(f"{subject[0]} and {other[0]}: {error}") from error
        return Cell.of(gaps, num_comparisons)

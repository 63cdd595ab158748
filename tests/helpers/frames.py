"""Scores that one can check by hand, as a report has them."""

from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.report.claims import Claim, judge_claims
from cpaan.report.table_one import heads_by_paper

Cell = tuple[str, int]
Draws = float | Sequence[float | Sequence[float]]
CELLS = [(column, shots) for column in ("novel", "all") for shots in (1, 20)]


def same(value: Draws, changes: Mapping[Cell, Draws] | None = None) -> dict[Cell, Draws]:
    """Return the same draws for LSL and GLSL at one and at twenty shots, but for these changes."""
    return {**dict.fromkeys(CELLS, value), **(changes or {})}


def frame_of(rows: Mapping[tuple[str, str], Mapping[Cell, Draws] | Draws]) -> pd.DataFrame:
    """Return scores by row and head: draws of top-5 for all cells, or for each cell.

    A draw is a number, or one for each seed. A single number in place of the draws stands for three
    draws around it, the same way around for all: differences of two such rows then have no spread,
    and an interval of zero.
    """
    records = [
        (*row, *cell, draw, seed, value / 2, value)
        for row, cells in rows.items()
        for cell, draws in (cells if isinstance(cells, Mapping) else same(cells)).items()
        for draw, seeds in enumerate(
            draws if isinstance(draws, Sequence) else [draws - 1, draws, draws + 1]
        )
        for seed, value in enumerate(seeds if isinstance(seeds, Sequence) else [seeds])
    ]
    names = ["method", "head", "column", "shots", "draw", "seed", "top1", "top5"]
    return pd.DataFrame(records, columns=names)


def scores_of(
    rows: Mapping[tuple[str, str], Mapping[int, Sequence[float]]], *, gain_of_all: float = 10.0
) -> pd.DataFrame:
    """Return top-5 of each (method, head), by shots and draw; two seeds, one below and one above.

    GLSL is LSL plus ``gain_of_all``.
    """
    columns = {"novel": 0.0, "all": gain_of_all, "base": 99.0}
    return frame_of(
        {
            row: {
                (column, shots): [(value + more - 0.5, value + more + 0.5) for value in draws]
                for shots, draws in by_shots.items()
                for column, more in columns.items()
            }
            for row, by_shots in rows.items()
        }
    )


def claims_of(rows: Mapping[tuple[str, str], Mapping[Cell, Draws] | Draws]) -> dict[str, Claim]:
    """Return the claims on rows by their own names, with the heads of the paper's rule."""
    scores = frame_of(rows)
    methods = {name: name for name in scores["method"].unique()}
    claims = judge_claims(scores, pd.DataFrame(), methods, heads_by_paper(methods))
    return {claim.name: claim for claim in claims}

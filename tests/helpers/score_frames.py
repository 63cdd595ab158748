"""Scores that one can check by hand, as a report has them."""

from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.report.claims import Claim, judge_claims
from cpaan.report.table_one import heads_by_paper

Cell = tuple[str, int]
Draws = float | Sequence[float]
CELLS = [(column, shots) for column in ("novel", "all") for shots in (1, 20)]


def same(value: Draws, changes: Mapping[Cell, Draws] | None = None) -> dict[Cell, Draws]:
    """Return the same draws for LSL and GLSL at one and at twenty shots, but for these changes."""
    return {**dict.fromkeys(CELLS, value), **(changes or {})}


def frame_of(rows: Mapping[tuple[str, str], Mapping[Cell, Draws] | Draws]) -> pd.DataFrame:
    """Return scores by row and head: draws of top-5 for all cells, or for each cell.

    A single number stands for three draws around it, the same way around for all: differences of
    two such rows then have no spread, and an interval of zero.
    """
    records = []
    for (method, head), cells in rows.items():
        for (column, shots), draws in (
            cells if isinstance(cells, Mapping) else same(cells)
        ).items():
            values = draws if isinstance(draws, Sequence) else [draws - 1, draws, draws + 1]
            records += [
                {
                    "method": method,
                    "head": head,
                    "column": column,
                    "shots": shots,
                    "draw": draw,
                    "seed": 0,
                    "top1": value / 2,
                    "top5": value,
                }
                for draw, value in enumerate(values)
            ]
    return pd.DataFrame(records)


def claims_of(rows, **arguments) -> dict[str, Claim]:
    """Return the claims on rows by their own names, with the heads of the paper's rule."""
    scores = frame_of(rows)
    methods = {name: name for name in scores["method"].unique()}
    arguments.setdefault("diversity", pd.DataFrame())
    claims = judge_claims(scores, methods=methods, head_of=heads_by_paper(methods), **arguments)
    return {claim.name: claim for claim in claims}

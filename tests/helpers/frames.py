"""Tables of scores with values that can be checked by hand."""

from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.verdict import Claim

Cell = tuple[str, int]
Draws = float | Sequence[float | Sequence[float]]
CELLS = [(column, shots) for column in ("novel", "all") for shots in (1, 20)]


def same(value: Draws, changes: Mapping[Cell, Draws] | None = None) -> dict[Cell, Draws]:
    """Return equal draws for LSL and GLSL at one and twenty shots, except for the changes."""
    return {**dict.fromkeys(CELLS, value), **(changes or {})}


def frame_of(rows: Mapping[tuple[str, str], Mapping[Cell, Draws] | Draws]) -> pd.DataFrame:
    """Return scores by row and head, from draws of top-5 for all cells or for each cell.

    A draw is a number, or one number for each seed. A single number in place of draws stands for
    three draws around it with the same offsets in all rows. Differences of two such rows have no
    spread, so their interval is zero.
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
    """Return top-5 of each (method, head) by shots and draw, with one seed below and one above.

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


def claims_of(
    rows: Mapping[tuple[str, str], Mapping[Cell, Draws] | Draws],
    family: str = "",
    ratios: Mapping[str, float] | None = None,
) -> dict[str, Claim]:
    """Return claims by name; rows have the names of their methods and the paper's heads.

    A name "method: label" is of an ablation of this family. Scores are equal for two training
    seeds, so that seeds do not widen the intervals. ``ratios`` are diversities by row.
    """
    scores = frame_of(rows)
    scores = pd.concat([scores, scores.assign(seed=1)], ignore_index=True)
    diversity = scores[["method", "shots", "draw", "seed"]].drop_duplicates()
    diversity["ratio"] = diversity["method"].map(dict(ratios or {}))
    ablations, methods = [], {}
    for name in scores["method"].unique():
        of, _, label = name.partition(": ")
        if label:
            ablations.append({"name": name, "of": of, "family": family, "label": label})
        else:
            methods[name] = name
    heads = {name: ROWS[name].head for name in methods}
    claims = judge_claims(scores, diversity, methods, heads, ablations)
    return {claim.name: claim for claim in claims}

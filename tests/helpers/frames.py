"""Tables of scores with values that can be checked by hand."""

from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.report.ablations import LABELS, Ablation
from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.verdict import Judgement

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
    ratios: Mapping[str, Mapping[int, Sequence[float]]] | None = None,
    num_seeds: int = 2,
) -> dict[str, Judgement]:
    """Return claims by name; rows have the names of claims, and the paper's heads.

    Scores are equal for all training seeds, so that seeds do not widen the intervals. ``ratios``
    are diversities by row, shots and draw; each of their rows has accuracies, too.
    """
    ratios = dict(ratios or {})
    names = {name for name, _ in rows}
    scores = frame_of({**rows, **{(name, "any"): 50.0 for name in ratios.keys() - names}})
    scores = pd.concat([scores.assign(seed=seed) for seed in range(num_seeds)], ignore_index=True)
    diversity = pd.DataFrame(
        [
            (name, shots, draw, seed, ratio)
            for name, by_shots in ratios.items()
            for shots, draws in by_shots.items()
            for draw, ratio in enumerate(draws)
            for seed in range(num_seeds)
        ],
        columns=["method", "shots", "draw", "seed", "ratio"],
    )
    methods = {name: name for name in scores["method"].unique() if "/" not in name}
    ablations = {name: ablation_of(*name.split("/")) for name in {*scores["method"]} - {*methods}}
    heads = {name: ROWS[name].head for name in methods}
    claims = judge_claims(scores, diversity, methods, heads, ablations)
    return {judgement.claim.name: judgement for judgement in claims}


def ablation_of(row: str, key: str) -> Ablation:
    """Return an ablation of a row, of the first family with this key."""
    return Ablation(row, next(family for family, keys in LABELS.items() if key in keys), key)

"""Small frames of scores whose means and differences one can see."""

from collections.abc import Mapping, Sequence

import pandas as pd


def scores_of(
    rows: Mapping[tuple[str, str], Mapping[int, Sequence[float]]], *, gain_of_all: float = 10.0
) -> pd.DataFrame:
    """Return top-5 of each (method, head), by shots and draw; two seeds, one below and one above.

    GLSL is LSL plus ``gain_of_all``.
    """
    return pd.DataFrame(
        {
            "method": method,
            "head": head,
            "column": column,
            "shots": shots,
            "draw": draw,
            "seed": seed,
            "top1": value / 2,
            "top5": value + more + (seed - 0.5),
        }
        for (method, head), by_shots in rows.items()
        for shots, draws in by_shots.items()
        for draw, value in enumerate(draws)
        for column, more in {"novel": 0.0, "all": gain_of_all, "base": 99.0}.items()
        for seed in (0, 1)
    )

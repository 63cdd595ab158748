"""What of an evaluation's scores a picture shows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cpaan.protocol.statistics import paired_differences
from cpaan.report.figures.style import PANELS


def with_heads(
    scores: pd.DataFrame, head_of: Mapping[str, str], rows: Sequence[str] = ()
) -> pd.DataFrame:
    """Return LSL and GLSL of every row that has a head, with that head alone.

    Args:
        scores: As in `cpaan.evaluation.runner.Results`.
        head_of: The head of each row; rows that are not in it are left out.
        rows: These must have scores.

    Raises:
        ValueError: If one of the rows has none with its head.
    """
    relevant = scores[scores["column"].isin(PANELS)]
    found = relevant[relevant["head"] == relevant["method"].map(dict(head_of))]
    known = set(found["method"])
    for row in rows:
        if row not in known:
            raise ValueError(f"{row} has no scores with the head {head_of.get(row)}")
    # One name for all heads, so that rows with different ones can be compared.
    return found.assign(head="chosen")


def shots_in(scores: pd.DataFrame, wanted: Sequence[int] | None = None) -> list[int]:
    """Return the numbers of shots there are, ascending; of the wanted ones, if any are there."""
    there = sorted(int(k) for k in scores["shots"].unique())
    return [k for k in there if wanted is None or k in wanted] or there[:1]


def differences_to(scores: pd.DataFrame, reference: str) -> pd.DataFrame:
    """Return every row minus the reference, paired by draw, in top-5.

    Args:
        scores: Of one head for each row, see `with_heads`.
        reference: A row.

    Returns:
        Columns method, column, shots, difference, interval.

    Raises:
        ValueError: If there is no such row.
    """
    found = paired_differences(scores, reference)
    names = {"top5_difference": "difference", "top5_interval": "interval"}
    return found.rename(columns=names)[["method", "column", "shots", *names.values()]]


def highest(frame: pd.DataFrame, column: str) -> "pd.Series[Any]":
    """Return the row of a frame with the highest value in a column; of equal ones, the first."""
    return frame.sort_values(column, ascending=False, kind="stable").iloc[0]


def cells_of(summary: pd.DataFrame, column: str, shots: int | None = None) -> pd.DataFrame:
    """Return the cells of a column, and of one number of shots."""
    chosen = summary["column"] == column
    if shots is not None:
        chosen &= summary["shots"] == shots
    return summary[chosen]

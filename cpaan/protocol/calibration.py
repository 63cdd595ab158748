"""Choices made on the validation phase: the bias of novel classes, and the head."""

from typing import Any

import pandas as pd

CALIBRATED = "all_calibrated"
SCORED = ("novel", CALIBRATED)
"""Columns that choose among heads and among settings: LSL and calibrated GLSL."""

_KEYS = ["method", "head", "shots"]
_METRICS = ("top1", "top5")


def best_biases(scores: pd.DataFrame) -> pd.DataFrame:
    """Choose the bias with the best mean, for each method, head, number of shots and metric.

    Of several, the one nearest to zero is chosen, and of both signs the negative one. Top-1 and
    top-5 have separate biases. Many biases tie in one of them and differ by points in the other.

    Returns:
        Columns method, head, shots, bias_top1 and bias_top5.
    """
    calibrated = scores[scores["column"] == CALIBRATED]
    chosen = calibrated[_KEYS].drop_duplicates()
    order = sorted(calibrated["bias"].unique().tolist(), key=lambda bias: (abs(bias), bias))
    for metric in _METRICS:
        means = calibrated.groupby([*_KEYS, "bias"])[metric].mean().unstack("bias")
        # Rounded, so that the last bit of a mean does not break ties.
        best = means.round(9)[order].idxmax(axis="columns").rename(f"bias_{metric}")
        chosen = chosen.merge(best.reset_index(), on=_KEYS)
    return chosen


def calibrate(scores: pd.DataFrame, biases: pd.DataFrame | None = None) -> pd.DataFrame:
    """Keep only the calibrated scores with the given biases, by default the best ones."""
    biases = best_biases(scores) if biases is None else biases
    is_plain = scores["column"] != CALIBRATED
    parts = []
    for metric in _METRICS:
        wanted = biases[[*_KEYS, f"bias_{metric}"]].set_axis([*_KEYS, "bias"], axis="columns")
        rows = scores[~is_plain].merge(wanted, on=[*_KEYS, "bias"])
        parts.append(rows.set_index([*_KEYS, "column", "draw", "seed"])[metric])
    chosen = pd.concat(parts, axis="columns").reset_index()
    together = pd.concat([scores[is_plain], chosen], ignore_index=True).drop(columns="bias")
    return together.sort_values("method", key=in_order, kind="stable", ignore_index=True)


def best_heads(scores: pd.DataFrame) -> pd.DataFrame:
    """Score each head of a method: the mean of LSL and calibrated GLSL top-5 over all shots.

    Returns:
        Columns method, head and score; the best head of a method first.
    """
    calibrated = calibrate(scores)
    relevant = calibrated[calibrated["column"].isin(SCORED)]
    means = relevant.groupby(["method", "head", "column"], sort=False)["top5"].mean()
    found = means.groupby(["method", "head"], sort=False).mean().rename("score").reset_index()
    found["score"] = found["score"].round(9)  # so that the last bit does not break ties
    return found.sort_values(
        ["method", "score"], ascending=[True, False], key=in_order, ignore_index=True
    )


def means_over_draws(scores: pd.DataFrame) -> pd.DataFrame:
    """Average scores over draws, as draw 0. The best biases and heads stay the same."""
    keys = [*_KEYS, "column", "seed", "bias"]
    means = scores.groupby(keys, sort=False, dropna=False)[[*_METRICS]].mean()
    return means.reset_index().assign(draw=0)


def in_order(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a sort key: names in order of first appearance, numbers by value."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    return column.map({name: number for number, name in enumerate(column.unique())})

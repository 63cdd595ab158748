"""Choices made on the validation phase: the prior of the column all_prior, and the head."""

from typing import Any

import pandas as pd

_KEYS = ["method", "head", "shots"]
_METRICS = ("top1", "top5")


def best_priors(scores: pd.DataFrame) -> pd.DataFrame:
    """Choose the prior with the best mean, for each method, head, number of shots and metric.

    Top-1 and top-5 have separate priors. Many priors tie in one of them and differ by points in
    the other, so a shared prior would leave the other to chance.

    Returns:
        Columns method, head, shots, prior_top1 and prior_top5.
    """
    with_prior = scores[scores["column"] == "all_prior"]
    chosen = with_prior[_KEYS].drop_duplicates()
    for metric in _METRICS:
        means = with_prior.groupby([*_KEYS, "prior"])[metric].mean()
        # Rounded, so that the last bit of a mean does not break ties.
        best = means.unstack("prior").round(9).idxmax(axis="columns").rename(f"prior_{metric}")
        chosen = chosen.merge(best.reset_index(), on=_KEYS)
    return chosen


def with_priors(scores: pd.DataFrame, priors: pd.DataFrame) -> pd.DataFrame:
    """Keep only the scores of all_prior with the chosen priors."""
    is_plain = scores["column"] != "all_prior"
    parts = []
    for metric in _METRICS:
        wanted = priors[[*_KEYS, f"prior_{metric}"]].set_axis([*_KEYS, "prior"], axis="columns")
        rows = scores[~is_plain].merge(wanted, on=[*_KEYS, "prior"])
        parts.append(rows.set_index([*_KEYS, "column", "draw", "seed"])[metric])
    chosen = pd.concat(parts, axis="columns").reset_index()
    together = pd.concat([scores[is_plain], chosen], ignore_index=True).drop(columns="prior")
    return together.sort_values("method", key=in_order, kind="stable", ignore_index=True)


def best_heads(scores: pd.DataFrame) -> pd.DataFrame:
    """Score each head of a method: the mean of LSL and GLSL top-5 over all shots.

    Returns:
        Columns method, head and score; the best head of a method first.
    """
    relevant = scores[scores["column"].isin(["novel", "all"])]
    means = relevant.groupby(["method", "head", "column"], sort=False)["top5"].mean()
    found = means.groupby(["method", "head"], sort=False).mean().rename("score").reset_index()
    found["score"] = found["score"].round(9)  # so that the last bit does not break ties
    return found.sort_values(
        ["method", "score"], ascending=[True, False], key=in_order, ignore_index=True
    )


def in_order(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a sort key: names in order of first appearance, numbers by value."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    return column.map({name: number for number, name in enumerate(column.unique())})

"""The column all_prior: the share of novel queries that is assumed, and how it is chosen."""

from typing import Any

import pandas as pd


def best_priors(scores: pd.DataFrame) -> pd.DataFrame:
    """Choose the prior with the best mean top-5 for each method, head and number of shots.

    Neighbouring priors often tie in top-5 and differ by points in top-1, so top-1 decides then;
    without rounding, the last bit of a mean would.
    """
    keys = ["method", "head", "shots"]
    with_prior = scores[scores["column"] == "all_prior"]
    means = with_prior.groupby([*keys, "prior"], sort=False)[["top5", "top1"]].mean().round(9)
    ranked = means.reset_index().sort_values(["top5", "top1"], ascending=False, kind="stable")
    best = ranked.groupby(keys).first()["prior"]
    every_key = with_prior[keys].drop_duplicates()
    return every_key.merge(best.reset_index(), on=keys)


def with_priors(scores: pd.DataFrame, priors: pd.DataFrame) -> pd.DataFrame:
    """Keep, of all_prior, the rows with the chosen priors."""
    is_plain = scores["column"] != "all_prior"
    chosen = scores[~is_plain].merge(priors, on=["method", "head", "shots", "prior"])
    together = pd.concat([scores[is_plain], chosen], ignore_index=True)
    return together.sort_values("method", key=in_order, kind="stable", ignore_index=True)


def in_order(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a sort key that keeps names as they first appear, and numbers as they are."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    return column.map({name: number for number, name in enumerate(column.unique())})

"""Means, standard deviations, confidence intervals and paired differences of scores.

Scores vary more between draws than between training seeds, and all methods use the same draws. So
scores are averaged over seeds, intervals are over draws, and methods are compared draw by draw.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd

ROW = ["method", "head"]
CELL = [*ROW, "column", "shots"]
CONFIDENCE = 0.95


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """Compute the mean, standard deviations and confidence interval of every cell.

    Returns:
        Columns method, head, column, shots; and for each of top1 and top5 its ``_mean``,
        ``_std_draws`` (of the means over seeds), ``_std_seeds`` (of the means over draws) and
        ``_interval``: half the width of the 95 % t-interval over draws. Values that need
        several draws or seeds are NaN if there is only one.
    """
    parts = []
    for metric in ("top1", "top5"):
        of_draw = scores.groupby([*CELL, "draw"], sort=False)[metric].mean()
        of_seed = scores.groupby([*CELL, "seed"], sort=False)[metric].mean()
        draws = of_draw.groupby(CELL, sort=False)
        parts += [
            draws.mean().rename(f"{metric}_mean"),
            draws.std().rename(f"{metric}_std_draws"),
            of_seed.groupby(CELL, sort=False).std().rename(f"{metric}_std_seeds"),
            draws.agg(mean_interval).rename(f"{metric}_interval"),
        ]
    return pd.concat(parts, axis=1).reset_index()


def paired_differences(scores: pd.DataFrame, against: str) -> pd.DataFrame:
    """Compare every row with a reference row, draw by draw.

    Args:
        scores: As in `cpaan.evaluation.runner.Results`.
        against: "method/head", or "method" to compare each row with that method's same head.

    Returns:
        Columns method, head, column, shots; ``top1_difference`` and ``top5_difference``, mean
        over draws; and their ``_interval``, half the width of the 95 % t-interval.
    """
    check_row(against, scores[ROW].drop_duplicates().itertuples(index=False, name=None))
    method, _, head = against.partition("/")
    is_reference = scores["method"] == method
    if head:
        is_reference &= scores["head"] == head
    keys = ["column", "shots", "draw"] + ([] if head else ["head"])
    metrics = ["top1", "top5"]
    reference = scores[is_reference].groupby(keys)[metrics].mean()
    of_draw = scores[~is_reference].groupby([*CELL, "draw"], sort=False)[metrics].mean()
    paired = of_draw.reset_index().merge(
        reference.reset_index(), on=keys, suffixes=("", "_reference")
    )
    parts = []
    for metric in metrics:
        paired[metric] -= paired[f"{metric}_reference"]
        groups = paired.groupby(CELL, sort=False)[metric]
        parts += [
            groups.mean().rename(f"{metric}_difference"),
            groups.agg(mean_interval).rename(f"{metric}_interval"),
        ]
    return pd.concat(parts, axis=1).reset_index()


def check_row(against: str, rows: Iterable[tuple[str, str]]) -> None:
    """Raise ValueError unless a "method" or "method/head" is among the rows (method, head)."""
    names = [f"{method}/{head}" for method, head in rows]
    if not any(against in (name, name.partition("/")[0]) for name in names):
        raise ValueError(f"no row {against!r} to compare with; the rows are {', '.join(names)}")


def is_only_row(against: str, scores: pd.DataFrame) -> bool:
    """Return whether the scores have no other row to compare with."""
    rows = scores[ROW].drop_duplicates().itertuples(index=False, name=None)
    return all(against in (method, f"{method}/{head}") for method, head in rows)


def mean_interval(values: pd.Series, num_comparisons: int = 1) -> float:
    """Compute half the width of the 95 % t-interval of a mean; NaN for a single value.

    If this mean was selected from several comparisons, the interval is widened so that the
    intervals of all of them hold jointly (Bonferroni).
    """
    if len(values) < 2:
        return float("nan")
    # Imported here, because every process of a study imports this module and few need SciPy.
    from scipy.special import stdtrit

    quantile = stdtrit(len(values) - 1, 1 - (1 - CONFIDENCE) / (2 * num_comparisons))
    return float(quantile * values.std() / np.sqrt(len(values)))

"""Reports of older versions, so that their pages can be drawn again."""

from typing import Any

import pandas as pd

from cpaan.report.ablations import LABELS

DEFAULT = "default settings"
"""How the name of a row with the settings of trial 0 ends; once it was "trial 0"."""
_KEYS = {label: key for labels in LABELS.values() for key, label in labels.items()}


def update_report(about: dict[str, Any]) -> dict[str, Any]:
    """Return the content of ``report.json`` as today's version writes it."""
    if "study" in about and "studies" not in about:  # reports of one row once had it alone
        best = about["best"]
        about |= {"studies": {best["method"]: about["study"]}, "best": {best["method"]: best}}
    if "cost" in about:  # once that of the last command alone, by whole cards
        about["cost"] = {"worker_seconds": None, "num_uncounted": 0, **about["cost"]}
    for row in about.get("rows", ()):
        row["name"] = row["name"].replace(", trial 0", f", {DEFAULT}")
        if (varied := row.get("ablation")) and "key" not in varied:  # once its words on the page
            row["ablation"] = {**varied, "key": _KEYS[varied["label"]]}
    return about


def update_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the names of rows that today's version writes."""
    return frame.assign(method=frame["method"].str.replace(", trial 0", f", {DEFAULT}"))

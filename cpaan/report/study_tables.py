"""The tables of a study's report: `report.md` and `table.csv`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION
from cpaan.protocol.statistics import CELL, paired_differences, summarise
from cpaan.report.page.templates import fill
from cpaan.report.table_one import TableOne

_METRICS = ("top1", "top5")
_UNAUGMENTED = [
    name for name, row in ROWS.items() if row.group == "Control" and row.generation == NO_GENERATION
]


def make_cells(scores: pd.DataFrame, num_fixed: int) -> pd.DataFrame:
    """Summarise scores, whose first draws are the fixed ones.

    Returns:
        For each method, head, column and number of shots, and for top1 and top5: ``_fixed``, the
        mean over the fixed draws; over the seeded ones ``_mean`` and ``_interval``; ``_std_seeds``
        between trainings. If a row has no augmentation, also ``_minus_none`` and its ``_interval``,
        paired by seeded draw and seed, with the same head.
    """
    is_fixed = scores["draw"] < num_fixed
    fixed, seeded = scores[is_fixed], scores[~is_fixed]
    names = {f"{m}_mean": f"{m}_fixed" for m in _METRICS}
    cells = summarise(fixed)[[*CELL, *names]].rename(columns=names)
    wanted = [f"{m}_{part}" for m in _METRICS for part in ("mean", "interval", "std_seeds")]
    cells = cells.merge(summarise(seeded)[[*CELL, *wanted]], on=CELL)
    for none in [name for name in _UNAUGMENTED if name in set(scores["method"])][:1]:
        names = {f"{m}_difference": f"{m}_minus_none" for m in _METRICS}
        names |= {f"{m}_interval": f"{m}_minus_none_interval" for m in _METRICS}
        differences = paired_differences(seeded, none).rename(columns=names)
        cells = cells.merge(differences, on=CELL, how="left")
    return cells


def report_page(title: str, layouts: Sequence[TableOne], about: Mapping[str, Any]) -> str:
    """Return the report of a study as a page to read; ``about`` is the content of its JSON."""
    return fill("report.md.jinja", title=title, layouts=layouts, about=about)

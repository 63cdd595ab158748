"""The tables of a study's report: `report.md` and `table.csv`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cpaan.data.table import counted
from cpaan.protocol.statistics import CELL, paired_differences, summarise
from cpaan.report.table_one import TableOne
from cpaan.report.tables import markdown_table

_METRICS = ("top1", "top5")
_UNAUGMENTED = ("none", "none-PN")


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
    chosen = [["row", "trial", "of", "score on fresh draws", "finalists", "parameters"]]
    for row, best in about["best"].items():
        chosen_of = {**best["parameters"], **best.get("swept", {})}  # older searches had no sweep
        parameters = ", ".join(f"{key} {value}" for key, value in chosen_of.items())
        finalists = ", ".join(f"{x['trial']}: {x['score']:.2f}" for x in best["finalists"])
        numbers = [str(best["trial"]), str(best["num_trials"]), f"{best['score']:.2f}"]
        chosen.append([row, *numbers, finalists, parameters or "as recommended"])
    num_seeded, run = about["settings"]["num_seeded_draws"], about["run"]
    seeds = sorted({seed for row in about["rows"] for seed in row["seeds"]})
    data = next(iter(about["studies"].values()))["data"]
    parts = [
        f"# {title} on the test phase",
        "Each search was on the validation phase; its best configuration is trained anew here. "
        f"{about['num_fixed']} fixed draws; intervals over {num_seeded} seeded ones are in "
        "`table.csv`, and differences over them are on the page.",
        *(layout.markdown for layout in layouts),
        *(f"- {reason}" for reason in about["failed"].values()),
        "## What the searches chose",
        markdown_table(chosen),
        "## Where this comes from",
        f"- command: `{run['command']}`\n- commit: `{run['commit']}`\n"
        f"- features: fingerprint `{data['fingerprint']}`\n"
        f"- training seeds: {', '.join(map(str, seeds))} (the search used others)\n"
        "- the test phase of these features was read "
        f"{counted(about['test_reads'], 'time')} so far\n"
        "- every cell, top-1 too: `table.csv`; every score: `scores.parquet`",
    ]
    return "\n\n".join(parts) + "\n"

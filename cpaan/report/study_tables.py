"""A study's report as files to read: `report.md`, `table.csv` and `table.tex`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpaan.protocol.statistics import CELL, paired_differences, summarise
from cpaan.report.gains import PairedScores
from cpaan.report.table_one import TableOne
from cpaan.report.tables import OTHER_COLUMNS, TITLES, grid_of, markdown_table

_METRICS = ("top1", "top5")


@dataclass(frozen=True, eq=False)
class Tables:
    """Every cell of the report of one method, and its headline."""

    cells: pd.DataFrame
    """See `make_cells`; against "paper", the row of trial 0, and "none"."""
    paper: str | None
    """The row of trial 0; None if the best is that row, or it has no scores."""
    gains: dict[str, dict[str, Any]]
    """By head: the ``difference`` of the best to the paper's row in the mean of LSL and GLSL top-5
    over all shots, half the width of its 95 % ``interval``, and the difference ``by_seed``."""
    headline: str
    """How much the search gained, whatever its sign."""
    num_fixed: int
    num_seeded: int
    layouts: Sequence[TableOne] = ()
    """The fixed draws in the paper's layout, by each rule for the final classifier."""

    def markdown(self, about: dict[str, Any]) -> str:
        """Return the report as a page to read."""
        best = about["best"]
        paired = f"paired by draw, {self.num_seeded} seeded draws"
        parts = [
            f"# {best['method']} on the test phase",
            self.headline,
            f"## Top-5 accuracy, %: mean over the {self.num_fixed} fixed draws",
            f"± is half the 95 % interval over {self.num_seeded} seeded draws.",
            grid_of(self.cells, "top5_fixed", "top5_interval").markdown(),
            "The other columns, same draws:",
            grid_of(self.cells, "top5_fixed", columns=OTHER_COLUMNS).markdown(),
            f"## Top-5 minus no augmentation, {paired}",
            self._differences("top5_minus_none"),
        ]
        if self.paper is not None:
            heading = f"## Top-5 minus {self.paper}, {paired}"
            parts += [heading, self._differences("top5_minus_paper")]
        parameters = [[name, str(value)] for name, value in best["parameters"].items()]
        finalists = [
            [str(row["trial"]), f"{row['score_in_search']:.2f}", f"{row['score']:.2f}"]
            for row in best["finalists"]
        ]
        parts += [
            "## In the paper's layout",
            *(layout.markdown for layout in self.layouts),
            f"## The best configuration: trial {best['trial']}",
            markdown_table([["parameter", "value"], *parameters]),
            "Chosen on the validation phase among these finalists, by "
            f"{best['num_draws']} fresh draws and {len(best['score_by_seed'])} seeds:",
            markdown_table([["trial", "score in the search", "score again"], *finalists]),
            _origin(about, about["study"]),
        ]
        return "\n\n".join(parts) + "\n"

    def _differences(self, name: str) -> str:
        return grid_of(self.cells, name, f"{name}_interval", sign="+").markdown()

    def latex(self) -> str:
        """Return LSL and GLSL top-5 as a table for a paper that uses booktabs."""
        table = grid_of(self.cells, "top5_fixed", "top5_interval")
        return table.latex(f"Top-5, mean over {self.num_fixed} fixed draws")


def table_page(
    layouts: Sequence[TableOne], about: dict[str, Any], *, num_fixed: int, num_seeded: int
) -> str:
    """Return the report of many rows as a page to read."""
    rows = [["row", "trial", "of", "score on fresh draws", "parameters"]]
    for name, best in about["best"].items():
        parameters = ", ".join(f"{key} {value}" for key, value in best["parameters"].items())
        counts = [str(best["trial"]), str(best["num_trials"]), f"{best['score']:.2f}"]
        rows.append([name, *counts, parameters or "as recommended"])
    parts = [
        "# Every row on the test phase",
        f"Each row had a search of its own on the validation phase; its best is trained anew here. "
        f"{num_fixed} fixed draws; intervals over {num_seeded} seeded ones are in `table.csv`.",
        *(layout.markdown for layout in layouts),
        *(f"- {reason}" for reason in about["failed"].values()),
        "## What the searches chose",
        markdown_table(rows),
        _origin(about, next(iter(about["studies"].values()))),
    ]
    return "\n\n".join(parts) + "\n"


def _origin(about: dict[str, Any], study: dict[str, Any]) -> str:
    """Return where the numbers of a report come from."""
    run = about["run"]
    seeds = sorted({seed for row in about["rows"] for seed in row["seeds"]})
    return (
        "## Where this comes from\n\n"
        f"- command: `{run['command']}`\n- commit: `{run['commit']}`\n"
        f"- features: fingerprint `{study['data']['fingerprint']}`\n"
        f"- training seeds: {', '.join(map(str, seeds))} (the search used others)\n"
        f"- the test phase of these features was read {about['test_reads']} times so far\n"
        "- every cell, top-1 too: `table.csv`, `report.json`; every score: `scores.parquet`"
    )


def make_cells(scores: pd.DataFrame, *, num_fixed: int, **against: str) -> pd.DataFrame:
    """Summarise scores, whose first draws are the fixed ones.

    Returns:
        For each method, head, column and number of shots, and for top1 and top5: ``_fixed``, the
        mean over the fixed draws; over the seeded ones ``_mean`` and ``_interval``; ``_std_seeds``
        between trainings; and for each row to compare with, ``_minus_`` and its keyword, with their
        ``_interval``, paired by seeded draw.
    """
    is_fixed = scores["draw"] < num_fixed
    fixed, seeded = scores[is_fixed], scores[~is_fixed]
    names = {f"{m}_mean": f"{m}_fixed" for m in _METRICS}
    cells = summarise(fixed)[[*CELL, *names]].rename(columns=names)
    wanted = [f"{m}_{part}" for m in _METRICS for part in ("mean", "interval", "std_seeds")]
    cells = cells.merge(summarise(seeded)[[*CELL, *wanted]], on=CELL)
    for name, row in against.items():
        names = {f"{m}_difference": f"{m}_minus_{name}" for m in _METRICS}
        names |= {f"{m}_interval": f"{m}_minus_{name}_interval" for m in _METRICS}
        differences = paired_differences(seeded, row).rename(columns=names)
        cells = cells.merge(differences, on=CELL, how="left")
    return cells


def make_tables(
    scores: pd.DataFrame,
    *,
    num_fixed: int,
    best: str,
    paper: str | None,
    is_best_paper: bool = False,
    none: str = "none",
    layouts: Sequence[TableOne] = (),
    trial_0: str = "default settings",
) -> Tables:
    """Summarise the scores of a report; see `Tables`. Trial 0 is the first trial in words."""
    seeded = scores[scores["draw"] >= num_fixed]
    num_seeded = int(seeded["draw"].nunique())
    paired, gains = PairedScores(seeded), dict[str, dict[str, Any]]()
    for head in seeded["head"].unique() if paper else ():
        if {(best, head), (paper, head)} <= paired.rows:
            rows = (best, head), (str(paper), head)
            gain = paired.compare(*rows, list(TITLES), paired.shots)
            gains[head] = {key: vars(gain)[key] for key in ("difference", "interval", "by_seed")}
    lines = [
        f"{gain['difference']:+.2f} ± {gain['interval']:.2f} ({head} head; by seed "
        f"{', '.join(f'{value:+.2f}' for value in gain['by_seed'])})"
        for head, gain in gains.items()
    ]
    headline = (
        f"Best minus trial 0 ({trial_0}), mean of LSL and GLSL top-5 over "
        f"all shots, paired over {num_seeded} draws: {', '.join(lines)}."
    )
    if is_best_paper:
        headline = f"Best minus trial 0 ({trial_0}) is zero: trial 0 is the best."
    elif paper is None:
        headline = "Trial 0 could not be trained anew: there is nothing to compare the best with."
    against = {"paper": paper, "none": none} if paper else {"none": none}
    cells = make_cells(scores, num_fixed=num_fixed, **against)
    return Tables(cells, paper, gains, headline, num_fixed, num_seeded, layouts)

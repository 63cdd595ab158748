"""A report's numbers as tables: for readers, for programs, for papers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from cpaan.protocol.statistics import CELL, mean_interval, paired_differences, summarise
from cpaan.report.table_one import TableOne, escape_latex

_TITLES = {"novel": "LSL", "all": "GLSL"}
_OTHERS = ("novel_joint", "base", "all_prior")
_METRICS = ("top1", "top5")


@dataclass(frozen=True, eq=False)
class Tables:
    """Every cell of a report, and its headline."""

    cells: pd.DataFrame
    """For each method, head, column and number of shots, and for top1 and top5: ``_fixed``, mean
    over the fixed draws; ``_mean`` and ``_interval`` over the seeded ones, ``_std_seeds`` between
    trainings; ``_minus_paper`` and
    ``_minus_none`` with their ``_interval``, paired by draw, over the seeded ones."""
    best: str
    paper: str | None
    """The row with the paper's printed weights; None if the best is that, or it has no scores."""
    is_best_paper: bool
    gains: dict[str, dict[str, Any]]
    """By head: the ``difference`` of the best to the paper's row in the mean of LSL and GLSL top-5
    over all shots, half the width of its 95 % ``interval``, and the difference ``by_seed``."""
    num_fixed: int
    num_seeded: int
    layouts: Sequence[TableOne] = ()
    """The fixed draws in the paper's layout, by each rule for the final classifier."""
    trial_0: str = "the paper's printed weights"
    """What the first trial has, in words."""

    def markdown(self, about: dict[str, Any]) -> str:
        """Return the report as a page to read."""
        best = about["best"]
        parameters = "\n".join(
            f"| {name} | {value} |" for name, value in best["parameters"].items()
        )
        finalists = "\n".join(
            f"| {row['trial']} | {row['score_in_search']:.2f} | {row['score']:.2f} |"
            for row in best["finalists"]
        )
        parts = [
            f"# {best['method']} on the test phase",
            self.headline(),
            f"## Top-5 accuracy, %: mean over the {self.num_fixed} fixed draws",
            f"± is half the 95 % interval over {self.num_seeded} seeded draws.",
            self._grid(list(_TITLES), "top5_fixed", "top5_interval"),
            "The other columns, same draws:",
            self._grid(list(_OTHERS), "top5_fixed", None),
            f"## Top-5 minus no augmentation, paired by draw, {self.num_seeded} seeded draws",
            self._grid(list(_TITLES), "top5_minus_none", "top5_minus_none_interval", sign="+"),
        ]
        if self.paper is not None:
            parts += [
                f"## Top-5 minus {self.paper}, paired by draw, {self.num_seeded} seeded draws",
                self._grid(
                    list(_TITLES), "top5_minus_paper", "top5_minus_paper_interval", sign="+"
                ),
            ]
        parts += [
            "## In the paper's layout",
            *(layout.markdown() for layout in self.layouts),
            f"## The best configuration: trial {best['trial']}",
            f"| parameter | value |\n|---|---|\n{parameters}",
            "Chosen on the validation phase among these finalists, by "
            f"{best['num_draws']} fresh draws and {len(best['score_by_seed'])} seeds:",
            f"| trial | score in the search | score again |\n|---|---|---|\n{finalists}",
            _origin(about, about["study"]),
        ]
        return "\n\n".join(parts) + "\n"

    def headline(self) -> str:
        """Return what the search gained, whatever its sign."""
        if self.is_best_paper:
            return (
                f"Best minus trial 0 ({self.trial_0}) is zero: the search found "
                "nothing better than trial 0."
            )
        if self.paper is None:
            return "Trial 0 could not be trained anew: there is nothing to compare the best with."
        lines = [
            f"{gain['difference']:+.2f} ± {gain['interval']:.2f} ({head} head; by seed "
            f"{', '.join(f'{value:+.2f}' for value in gain['by_seed'])})"
            for head, gain in self.gains.items()
        ]
        return (
            f"Best minus trial 0 ({self.trial_0}), mean of LSL and GLSL top-5 over "
            f"all shots, paired over {self.num_seeded} draws: {', '.join(lines)}."
        )

    def latex(self) -> str:
        """Return LSL and GLSL top-5 as a table for a paper that uses booktabs."""
        shots = self._shots()
        columns = list(_TITLES)
        spans = " & ".join(
            f"\\multicolumn{{{len(shots)}}}{{c}}{{{_TITLES[column]}}}" for column in columns
        )
        numbers = " & ".join(f"$K{{=}}{k}$" for _ in columns for k in shots)
        lines = [
            f"% Top-5, mean over {self.num_fixed} fixed draws; needs \\usepackage{{booktabs}}",
            f"\\begin{{tabular}}{{ll{'r' * len(columns) * len(shots)}}}",
            "\\toprule",
            f"& & {spans} \\\\",
            f"Method & Head & {numbers} \\\\",
            "\\midrule",
        ]
        for method, head, found in self._rows():
            cells = " & ".join(
                f"{found[column, k]['top5_fixed']:.1f}"
                f"\\,{{\\scriptsize$\\pm${found[column, k]['top5_interval']:.1f}}}"
                for column in columns
                for k in shots
            )
            lines.append(f"{escape_latex(method)} & {escape_latex(head)} & {cells} \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"

    def _grid(
        self, columns: Sequence[str], value: str, interval: str | None, sign: str = ""
    ) -> str:
        """Lay one value out as a Markdown table, without rows that have none."""
        shots = self._shots()
        names = [f"{_TITLES.get(column, column)} K={k}" for column in columns for k in shots]
        lines = [
            f"| method | head | {' | '.join(names)} |",
            f"|---|---|{'---|' * len(names)}",
        ]
        for method, head, found in self._rows():
            if all(pd.isna(cell[value]) for cell in found.values()):
                continue
            cells = []
            for column in columns:
                for k in shots:
                    cell = found[column, k]
                    text = f"{cell[value]:{sign}.1f}"
                    if interval is not None and pd.notna(cell[interval]):
                        text += f"±{cell[interval]:.1f}"
                    cells.append(text)
            lines.append(f"| {method} | {head} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, str, dict[Any, dict[Any, Any]]]]:
        """Return method, head, and the cells by column and number of shots."""
        return [
            (str(method), str(head), rows.set_index(["column", "shots"]).to_dict("index"))
            for (method, head), rows in self.cells.groupby(["method", "head"], sort=False)
        ]

    def _shots(self) -> list[int]:
        return sorted(int(k) for k in self.cells["shots"].unique())


def table_page(
    layouts: Sequence[TableOne], about: dict[str, Any], *, num_fixed: int, num_seeded: int
) -> str:
    """Return the report of many rows as a page to read."""
    rows = []
    for name, best in about["best"].items():
        parameters = ", ".join(f"{key} {value}" for key, value in best["parameters"].items())
        rows.append(
            f"| {name} | {best['trial']} | {best['num_trials']} | {best['score']:.2f} | "
            f"{parameters or 'as recommended'} |"
        )
    chosen = "\n".join(rows)
    study = next(iter(about["studies"].values()))
    parts = [
        "# Every row on the test phase",
        f"Each row had a search of its own on the validation phase; its best is trained anew here. "
        f"{num_fixed} fixed draws; intervals over {num_seeded} seeded ones are in `table.csv`.",
        *(layout.markdown() for layout in layouts),
        *(f"- {reason}" for reason in about["failed"].values()),
        "## What the searches chose",
        "| row | trial | of | score on fresh draws | parameters |\n|---|---|---|---|---|\n"
        + chosen,
        _origin(about, study),
    ]
    return "\n\n".join(parts) + "\n"


def _origin(about: dict[str, Any], study: dict[str, Any]) -> str:
    """Return where a report comes from."""
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


def make_cells(scores: pd.DataFrame, *, num_fixed: int) -> pd.DataFrame:
    """Return means over the fixed draws, and means and intervals over the seeded ones."""
    is_fixed = scores["draw"] < num_fixed
    fixed, seeded = scores[is_fixed], scores[~is_fixed]
    cells = summarise(fixed)[[*CELL, *(f"{m}_mean" for m in _METRICS)]]
    cells = cells.rename(columns={f"{m}_mean": f"{m}_fixed" for m in _METRICS})
    wanted = [f"{m}_{part}" for m in _METRICS for part in ("mean", "interval", "std_seeds")]
    return cells.merge(summarise(seeded)[[*CELL, *wanted]], on=CELL)


def make_tables(
    scores: pd.DataFrame,
    *,
    num_fixed: int,
    best: str,
    paper: str | None,
    is_best_paper: bool = False,
    none: str = "none",
    layouts: Sequence[TableOne] = (),
) -> Tables:
    """Summarise the scores of a report.

    Args:
        scores: A row for each method, head, column, number of shots, draw and seed.
        num_fixed: The first so many draws are the fixed ones.
        best: The row that the search chose.
        paper: The row that it is compared with; None if there is none.
        is_best_paper: Whether the best is that row itself.
        none: The row without augmentation.
        layouts: The fixed draws in the paper's layout.
    """
    seeded = scores[scores["draw"] >= num_fixed]
    cells = make_cells(scores, num_fixed=num_fixed)
    for name, against in (("paper", paper), ("none", none)):
        if against is None:
            continue
        differences = paired_differences(seeded, against)
        differences = differences.rename(
            columns={
                f"{m}_{old}": f"{m}_minus_{name}{new}"
                for m in _METRICS
                for old, new in (("difference", ""), ("interval", "_interval"))
            }
        )
        cells = cells.merge(differences, on=CELL, how="left")
    gains = {} if paper is None else _gains(seeded, best, paper)
    num_seeded = int(seeded["draw"].nunique())
    return Tables(cells, best, paper, is_best_paper, gains, num_fixed, num_seeded, layouts)


def _gains(scores: pd.DataFrame, best: str, paper: str) -> dict[str, dict[str, Any]]:
    """Return, by head, how far apart two rows are."""
    relevant = scores[scores["column"].isin(_TITLES)]
    gains = {}
    for head, rows in relevant.groupby("head", sort=False):
        if not {best, paper} <= set(rows["method"]):  # a head that only others have
            continue
        of_draw = rows.groupby(["method", "draw"])["top5"].mean()
        of_seed = rows.groupby(["method", "seed"])["top5"].mean()
        differences = of_draw[best] - of_draw[paper]
        gains[str(head)] = {
            "difference": float(differences.mean()),
            "interval": mean_interval(differences),
            "by_seed": (of_seed[best] - of_seed[paper]).tolist(),
        }
    return gains

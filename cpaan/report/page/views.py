"""Table 1 as data: a view for every rule for heads, metric and kind of draws; and comparisons.

The page only chooses among them: ranks are decided here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import isnan
from typing import Any

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import TableRow
from cpaan.protocol.calibration import CALIBRATED
from cpaan.protocol.config import HEADS, OWN
from cpaan.protocol.statistics import summarise
from cpaan.report.page.contents import Contents
from cpaan.report.table_one import (
    PAPER,
    VALIDATION,
    CellKey,
    Cells,
    printed_cells,
    ranked_cells,
    rules_of,
)
from cpaan.report.tables import ALL_TITLES, TITLES, Cell

COLUMNS = {**TITLES, CALIBRATED: "Calibrated GLSL", "base": "Base", "novel_joint": "Joint"}
_METRICS = ("top5", "top1")
RULES = {
    PAPER: "the paper’s rule",
    VALIDATION: "chosen on validation",
    **{head: head for head in (*HEADS, OWN)},
}
SEEDED, FIXED = "seeded", "fixed"
"""Kinds of draws: many, for narrow intervals; and the few that a benchmark has in its files."""


@dataclass(frozen=True)
class TableViews:
    """All views of the table, and all comparisons of its rows."""

    rows: Mapping[str, TableRow]
    """The place of a row in the paper's layout, by name, in the order of the table."""
    shots: tuple[int, ...]
    columns: Mapping[str, str]
    """Titles of the columns that were scored."""
    rules: Mapping[str, Mapping[str, str]]
    """By rule: the heads of the rows; rows without scores of that head are left out."""
    default_rule: str
    draws: Mapping[str, int]
    """The number of draws by kind; the kind that is shown first comes first."""
    views: Mapping[tuple[str, str, str], Cells]
    """By rule, metric and kind of draws."""
    differences: Mapping[str, Mapping[str, Cells]]
    """By rule and row: top-5 of the other rows minus this one, over the seeded draws."""
    printed: Cells

    @property
    def head_of(self) -> Mapping[str, str]:
        """Return the heads of the rows in the view that is shown first."""
        return self.rules[self.default_rule]

    @property
    def cells(self) -> Cells:
        """Return the view that is shown first: top-5."""
        return self.views[self.default_rule, "top5", next(iter(self.draws))]

    @property
    def ranked(self) -> list[str]:
        """Return the rows of that view, the best in LSL with the fewest shots first."""
        return sorted(self.head_of, key=lambda name: self.cells[name, "novel", self.shots[0]].rank)

    def for_page(self) -> dict[str, Any]:
        """Return views and comparisons as plain lists, rounded as the page shows them."""

        def numbers(cells: Cells, name: str, columns: Iterable[str]) -> dict[str, Any]:
            return {c: [_plain(cells.get((name, c, k))) for k in self.shots] for c in columns}

        views = {}
        for (rule, *others), cells in self.views.items():
            heads = self.rules[rule]
            views[" ".join([rule, *others])] = [
                {"head": heads[name], "cells": numbers(cells, name, self.columns)}
                if name in heads
                else None
                for name in self.rows
            ]
        compared = [column for column in self.columns if column in ALL_TITLES]
        pairs = {
            rule: [
                [numbers(gaps_of.get(other, {}), row, compared) for row in self.rows]
                for other in self.rows
            ]
            for rule, gaps_of in self.differences.items()
        }
        return {"draws": list(self.draws), "views": views, "pairs": pairs}


def _plain(cell: Cell | None) -> list[float | None] | None:
    """Return a cell rounded, with its rank, or else the side of zero that its interval is on."""
    if cell is None:
        return None
    interval = None if isnan(cell.interval) else round(cell.interval, 1)
    return [round(cell.value, 1) + 0.0, interval, cell.rank or cell.side]


def make_views(contents: Contents) -> TableViews:
    """Summarise and compare the rows of a report; their variants are left out."""
    methods = contents.methods
    scores = contents.scores[contents.scores["method"].isin(list(methods))]
    is_fixed = scores["draw"] < contents.num_fixed
    kinds = {SEEDED: scores[~is_fixed], FIXED: scores[is_fixed]}
    rules = rules_of(contents.seeded, methods, contents.heads)
    # The first rule that leaves out no row, or else the one that leaves out the fewest.
    default_rule = max(rules, key=lambda rule: len(rules[rule]))
    known = set(scores["column"])
    return TableViews(
        rows={name: ROWS[method] for name, method in methods.items()},
        shots=tuple(contents.paired.shots),
        columns={column: title for column, title in COLUMNS.items() if column in known},
        rules=rules,
        default_rule=default_rule,
        draws={kind: int(of_kind["draw"].nunique()) for kind, of_kind in kinds.items()},
        views={
            (rule, metric, kind): ranked_cells(summary, head_of, metric)
            for kind, summary in ((kind, summarise(of_kind)) for kind, of_kind in kinds.items())
            for rule, head_of in rules.items()
            for metric in _METRICS
        },
        differences={
            rule: _compare(contents, rules[rule])
            for rule in dict.fromkeys([PAPER, VALIDATION, default_rule])
            if rule in rules
        },
        printed=printed_cells(methods, contents.paired.shots),
    )


def _compare(contents: Contents, head_of: Mapping[str, str]) -> Mapping[str, Cells]:
    """Compare every row with every other, paired by draw and seed."""
    columns = [column for column in ALL_TITLES if column in set(contents.seeded["column"])]
    gaps: dict[str, dict[CellKey, Cell]] = {name: {} for name in head_of}
    for subject, other in combinations(head_of.items(), 2):
        for cell in product(columns, contents.paired.shots):
            gap = contents.compare(subject, other, *cell)
            gaps[other[0]][subject[0], *cell] = gap
            gaps[subject[0]][other[0], *cell] = gap._replace(value=-gap.value)
    return gaps

"""Table 1 as data: a view for every rule that gives rows their heads, metric and kind of draws.

The page only chooses among views and lays them out: what is best or second is decided here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.protocol.config import HEADS, OWN
from cpaan.protocol.statistics import CELL, summarise
from cpaan.report.page.contents import Contents
from cpaan.report.published import SHOTS, printed_of
from cpaan.report.table_one import heads_by_paper, heads_by_validation

COLUMNS = {
    "novel": "LSL",
    "all": "GLSL",
    "base": "Base",
    "novel_joint": "Joint",
    "all_prior": "With prior",
}
MEANINGS = {
    "novel": "novel classes among themselves",
    "all": "novel and base classes among all",
    "base": "base classes among themselves",
    "novel_joint": "novel classes among all",
    "all_prior": "among all, with a prior on novel classes that validation chose",
}
METRICS = {"top5": "Top-5", "top1": "Top-1"}
PAPER, VALIDATION = "paper", "validation"
RULES = {
    PAPER: "the paper’s rule",
    VALIDATION: "chosen on validation",
    **{head: head for head in (*HEADS, OWN)},
}
SEEDED, FIXED = "seeded", "fixed"
"""Kinds of draws: many, for narrow intervals; and the few that a benchmark has in its files."""
PRINTED_COLUMNS = ("novel", "all")
OURS = ("CP-AAN", "CP-AAN+")
"""Groups of the rows that the page is about."""


class Cell(NamedTuple):
    """One number of the table, in percent."""

    mean: float
    """Over the draws of the view."""
    interval: float | None
    """Half the width of its 95 % interval over the same draws; None if there are too few."""
    rank: int
    """Among the rows of this view, from 1 for the best."""


@dataclass(frozen=True)
class View:
    """The table by one rule, one metric and one kind of draws."""

    head_of: Mapping[str, str]
    """By name of row; rows without such a head are missing."""
    cells: Mapping[tuple[str, str, int], Cell]
    """By name of row, column and shots."""


@dataclass(frozen=True)
class Place:
    """A row's place in the paper's layout."""

    name: str
    group: str
    representation: str
    generation: str
    is_ours: bool
    printed: Mapping[tuple[str, int], float]
    """What the papers print, by column and shots: top-5, %, on ImageNet."""


@dataclass(frozen=True)
class TableData:
    """All views, and what they share."""

    places: tuple[Place, ...]
    """In the order of the table."""
    shots: tuple[int, ...]
    columns: Mapping[str, str]
    """Titles of the columns there are."""
    rules: Mapping[str, str]
    """Titles of the rules that give a head to any row."""
    default_rule: str
    draws: Mapping[str, int]
    """How many there are of each kind of draws; what is shown first comes first."""
    views: Mapping[tuple[str, str, str], View]
    """By rule, metric and kind of draws."""

    @property
    def default(self) -> View:
        """What is shown first: top-5."""
        return self.view(self.default_rule)

    def view(self, rule: str, metric: str = "top5") -> View:
        """Return the view of a rule and a metric, of the draws that are shown first."""
        return self.views[rule, metric, next(iter(self.draws))]

    @property
    def has_printed(self) -> bool:
        """Whether any row has a printed number."""
        return any(place.printed for place in self.places)

    def for_page(self) -> dict[str, Any]:
        """Return it as plain lists, rounded as they are shown, for the switches of the page."""

        def plain(view: View, name: str) -> dict[str, Any] | None:
            if name not in view.head_of:
                return None
            cells = {
                column: [_plain_cell(view.cells.get((name, column, k))) for k in self.shots]
                for column in self.columns
            }
            return {"head": view.head_of[name], "cells": cells}

        return {
            "rows": [place.name for place in self.places],
            "shots": list(self.shots),
            "draws": list(self.draws),
            "views": {
                " ".join(key): [plain(view, place.name) for place in self.places]
                for key, view in self.views.items()
            },
        }


def _plain_cell(cell: Cell | None) -> list[float | int | None] | None:
    if cell is None:
        return None
    interval = None if cell.interval is None else round(cell.interval, 1)
    return [round(cell.mean, 1), interval, cell.rank]


def make_table_data(contents: Contents) -> TableData:
    """Summarise the scores of a report's rows; their variants are left out.

    Raises:
        ValueError: If no row has any score.
    """
    names = list(contents.methods)
    scores = contents.scores[contents.scores["method"].isin(names)]
    if scores.empty:
        raise ValueError("the report has no scores of any row of the table")
    is_fixed = scores["draw"] < contents.num_fixed
    kinds = {SEEDED: scores[~is_fixed], FIXED: scores[is_fixed]}
    kinds = {kind: of_kind for kind, of_kind in kinds.items() if len(of_kind)}
    rules = _rules_of(contents, scores)
    views = {
        (rule, metric, kind): _view(head_of, metric, summary)
        for kind, of_kind in kinds.items()
        for summary in [_summary(of_kind)]
        for rule, head_of in rules.items()
        for metric in METRICS
    }
    known = set(scores["column"])
    return TableData(
        places=tuple(_place(name, method) for name, method in contents.methods.items()),
        shots=contents.shots,
        columns={column: title for column, title in COLUMNS.items() if column in known},
        rules={rule: RULES[rule] for rule in rules},
        default_rule=_default_rule(rules, len(names)),
        draws={kind: int(of_kind["draw"].nunique()) for kind, of_kind in kinds.items()},
        views=views,
    )


def _summary(scores: pd.DataFrame) -> dict[Any, dict[Any, Any]]:
    found: dict[Any, dict[Any, Any]] = summarise(scores).set_index(CELL).to_dict("index")
    return found


def _rules_of(contents: Contents, scores: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return the heads of rows by every rule, as far as they were scored."""
    known = set(scores[["method", "head"]].itertuples(index=False, name=None))
    rules = {PAPER: heads_by_paper(contents.methods)}
    if contents.heads is not None:
        rules[VALIDATION] = heads_by_validation(contents.heads)
    rules |= {head: dict.fromkeys(contents.methods, head) for head in (*HEADS, OWN)}
    scored = {
        rule: {name: head for name, head in head_of.items() if (name, head) in known}
        for rule, head_of in rules.items()
    }
    return {rule: head_of for rule, head_of in scored.items() if head_of}


def _default_rule(rules: Mapping[str, Mapping[str, str]], num_rows: int) -> str:
    """Return the first rule that leaves no row out; or else the one that leaves out the fewest."""
    for rule in (PAPER, VALIDATION):
        if len(rules.get(rule, {})) == num_rows:
            return rule
    return max(rules, key=lambda rule: len(rules[rule]))


def _view(
    head_of: Mapping[str, str], metric: str, summary: Mapping[Any, Mapping[Any, Any]]
) -> View:
    chosen = {
        (method, column, shots): (float(cell[f"{metric}_mean"]), cell[f"{metric}_interval"])
        for (method, head, column, shots), cell in summary.items()
        if head_of.get(method) == head
    }
    of_column: dict[Any, list[float]] = {}
    for (_, column, shots), (mean, _) in chosen.items():
        of_column.setdefault((column, shots), []).append(round(mean, 9))
    cells = {}
    for (name, column, shots), (mean, interval) in chosen.items():
        # Rounded, or the last bit of a mean would decide between equal ones.
        better = sum(other > round(mean, 9) for other in of_column[column, shots])
        cells[name, column, int(shots)] = Cell(
            mean, None if pd.isna(interval) else float(interval), 1 + better
        )
    return View(head_of, cells)


def _place(name: str, method: str) -> Place:
    row, printed = ROWS[method], printed_of(method)
    values = {
        (column, k): value
        for column in PRINTED_COLUMNS
        for k in SHOTS
        if printed is not None and (value := printed.at(column, k)) is not None
    }
    return Place(name, row.group, row.representation, row.generation, row.group in OURS, values)

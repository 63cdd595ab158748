"""The paper's Table 1 with our numbers: a head for each row, printed numbers in their own columns.

Which head a row has is decided by a rule for all of them: the paper's (nearest centroid in a
prototypical embedding, linear on ResNet-10 features, a method's own classifier where it has one),
or the best on the validation phase.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.protocol.statistics import paired_differences, summarise
from cpaan.report.published import printed_elsewhere, printed_of

TITLES = {"novel": "LSL", "all": "GLSL"}
BY_PAPER, BY_VALIDATION = "the paper's rule for the final classifier", "head chosen on validation"


class Cell(NamedTuple):
    """One number of the table: column "novel" or "all", top-5 in percent."""

    mean: float
    interval: float
    """Half the width of the 95 % interval over draws; NaN for a single draw."""
    rank: int
    """Among the rows, from 1 for the best."""
    printed: float | None
    difference: float | None
    """To the best row, paired by draw; None for that row itself."""
    difference_interval: float | None


@dataclass(frozen=True)
class TableRow:
    """A row: where it stands in the paper's layout, and its cells by column and shots."""

    label: str
    method: str
    head: str
    cells: Mapping[tuple[str, int], Cell]


@dataclass(frozen=True)
class TableOne:
    """All rows, in the paper's order."""

    rule: str
    rows: tuple[TableRow, ...]
    shots: tuple[int, ...]
    best: str
    """Label of the row with the highest mean of LSL and GLSL over all shots."""

    def text(self) -> str:
        """Return the table for a terminal: best in [ ], second best in ( )."""
        marks = {1: ("[", "]"), 2: ("(", ")")}

        def ours(cell: Cell) -> str:
            before, after = marks.get(cell.rank, (" ", " "))
            return f"{before}{cell.mean:.1f}{after}"

        parts = [
            f"Top-5, %, {self.rule}; [best], (second best)\n{self._lay_out(ours)}",
            "Printed in the papers, ImageNet, top-5, %\n"
            + self._lay_out(lambda cell: _or_dash(cell.printed), only_printed=True),
            f"Minus {self.best}, paired by draw, ± 95 % interval\n"
            + self._lay_out(_difference, width=11),
        ]
        return "\n\n".join(parts)

    def _lay_out(
        self, show: Callable[[Cell], str], *, width: int = 8, only_printed: bool = False
    ) -> str:
        keys = [(column, k) for column in TITLES for k in self.shots]
        rows = [row for row in self.rows if not only_printed or printed_of(row.method)]
        titles = ("Method", "Representation", "Generation", "row", "head")
        places = [
            (place.group, place.representation, place.generation, row.label, row.head)
            for row, place in ((row, ROWS[row.method]) for row in rows)
        ]
        widths = [max(map(len, column)) + 2 for column in zip(titles, *places, strict=True)]

        def line(words: Sequence[str], numbers: Iterable[str]) -> str:
            left = "".join(f"{word:<{room}}" for word, room in zip(words, widths, strict=True))
            return left + "".join(f"{number:>{width}}" for number in numbers)

        lines = [line(titles, (f"{TITLES[column]} {k}" for column, k in keys))]
        lines += [
            line(words, (show(row.cells[key]) for key in keys))
            for words, row in zip(places, rows, strict=True)
        ]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the table with bold best and underlined second best, printed columns beside."""

        def ours(cell: Cell) -> str:
            text = f"{cell.mean:.1f}{_interval(cell.interval)}"
            return {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(cell.rank, text)

        ours_and_printed = self._markdown(
            {"": ours, " printed": lambda cell: _or_dash(cell.printed)}
        )
        return "\n\n".join(
            [
                f"Top-5, %, {self.rule}: **best**, <u>second best</u>, ± half the 95 % interval "
                "over draws. Columns that say so are printed in the papers: ImageNet, other "
                "classes, not to be compared in level.",
                ours_and_printed,
                *printed_elsewhere(row.method for row in self.rows),
                f"Minus {self.best}, paired by draw:",
                self._markdown({"": _difference}),
            ]
        )

    def _markdown(self, shows: Mapping[str, Callable[[Cell], str]]) -> str:
        keys = [(name, column, k) for name in shows for column in TITLES for k in self.shots]
        titles = [f"{TITLES[column]} K={k}{name}" for name, column, k in keys]
        lines = [
            f"| Method | Representation | Generation | row | head | {' | '.join(titles)} |",
            f"|---|---|---|---|---|{'---|' * len(titles)}",
        ]
        for row in self.rows:
            place = ROWS[row.method]
            cells = [shows[name](row.cells[column, k]) for name, column, k in keys]
            lines.append(
                f"| {place.group} | {place.representation} | {place.generation} | {row.label} | "
                f"{row.head} | {' | '.join(cells)} |"
            )
        return "\n".join(lines)

    def latex(self) -> str:
        """Return our numbers in the paper's layout, for a paper that uses booktabs."""
        keys = [(column, k) for column in TITLES for k in self.shots]
        spans = " & ".join(
            f"\\multicolumn{{{len(self.shots)}}}{{c}}{{{title}}}" for title in TITLES.values()
        )
        numbers = " & ".join(f"$K{{=}}{k}$" for _, k in keys)
        lines = [
            f"% Top-5, {self.rule}; needs \\usepackage{{booktabs}}",
            f"\\begin{{tabular}}{{lllll{'r' * len(keys)}}}",
            "\\toprule",
            f"& & & & & {spans} \\\\",
            f"Method & Representation & Generation & Row & Head & {numbers} \\\\",
        ]
        group = None
        for row in self.rows:
            place = ROWS[row.method]
            if place.group != group:
                lines.append("\\midrule")
                group = place.group
            cells = []
            for key in keys:
                cell = row.cells[key]
                text = f"{cell.mean:.1f}"
                text = {1: f"\\textbf{{{text}}}", 2: f"\\underline{{{text}}}"}.get(cell.rank, text)
                cells.append(text)
            names = [place.group, place.representation, place.generation, row.label, row.head]
            lines.append(f"{' & '.join(map(escape_latex, names))} & {' & '.join(cells)} \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _interval(value: float | None) -> str:
    return "" if value is None or pd.isna(value) else f"±{value:.1f}"


def _difference(cell: Cell) -> str:
    if cell.difference is None:
        return "0"
    return f"{cell.difference:+.1f}{_interval(cell.difference_interval)}"


def escape_latex(text: str) -> str:
    """Return a name as LaTeX prints it."""
    return text.replace("_", "\\_").replace("%", "\\%").replace("&", "\\&")


def heads_by_paper(methods: Mapping[str, str]) -> dict[str, str]:
    """Return the head of every row, by the paper's rule; ``methods`` are by label of row."""
    return {label: ROWS[method].head for label, method in methods.items()}


def heads_by_validation(heads: pd.DataFrame) -> dict[str, str]:
    """Return the head of every row that did best there; see `cpaan.protocol.priors.best_heads`."""
    best = heads.drop_duplicates("method")
    return dict(zip(best["method"], best["head"], strict=True))


def make_table_one(
    scores: pd.DataFrame, head_of: Mapping[str, str], methods: Mapping[str, str], rule: str
) -> TableOne:
    """Lay scores out as the paper does.

    Args:
        scores: A row for each method (a label of the table), head, column, shots, draw and seed.
        head_of: The head of each label.
        methods: Whose row each label is, by `registry.ROWS`; in the order of the table.
        rule: How heads were chosen, in words.

    Raises:
        ValueError: If a row has no scores with its head.
    """
    relevant = scores[scores["column"].isin(TITLES)]
    wanted = relevant[relevant["head"] == relevant["method"].map(head_of)]
    for label in methods:
        if label not in set(wanted["method"]):
            raise ValueError(f"{label} has no scores with the head {head_of[label]}")
    one_head = wanted.assign(head="chosen")
    means = one_head.groupby(["method", "column"])["top5"].mean().groupby("method").mean()
    best = str(means.round(9).idxmax())
    index = ["method", "column", "shots"]
    summary = summarise(one_head).set_index(index)
    # Rounded, or the last bit of a mean would decide between equal ones.
    by_cell = summary["top5_mean"].round(9).groupby(["column", "shots"])
    summary["rank"] = by_cell.rank(ascending=False, method="min")
    found: dict[Any, dict[Any, Any]] = summary.to_dict("index")
    gaps: dict[Any, dict[Any, Any]] = {}
    if len(methods) > 1:
        gaps = paired_differences(one_head, best).set_index(index).to_dict("index")
    shots = tuple(sorted(int(k) for k in one_head["shots"].unique()))

    def cell(label: str, column: str, k: int) -> Cell:
        own, gap = found[label, column, k], gaps.get((label, column, k))
        printed = printed_of(methods[label])
        return Cell(
            mean=own["top5_mean"],
            interval=own["top5_interval"],
            rank=int(own["rank"]),
            printed=None if printed is None else printed.at(column, k),
            difference=None if gap is None else gap["top5_difference"],
            difference_interval=None if gap is None else gap["top5_interval"],
        )

    rows = tuple(
        TableRow(
            label,
            method,
            head_of[label],
            {(column, k): cell(label, column, k) for column in TITLES for k in shots},
        )
        for label, method in methods.items()
    )
    return TableOne(rule, rows, shots, best)


def tables_of(
    scores: pd.DataFrame, methods: Mapping[str, str], heads: pd.DataFrame | None
) -> list[TableOne]:
    """Return the table by the paper's rule; and by the validation phase, if that was scored.

    Args:
        scores: As `make_table_one` wants them.
        methods: Likewise.
        heads: See `cpaan.protocol.priors.best_heads`.
    """
    tables = [make_table_one(scores, heads_by_paper(methods), methods, BY_PAPER)]
    if heads is not None:
        tables.append(make_table_one(scores, heads_by_validation(heads), methods, BY_VALIDATION))
    return tables

"""Tables of results: their cells, and writers for terminals, Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from typing import Any, NamedTuple

import pandas as pd

from cpaan.protocol.statistics import ROW, paired_differences, summarise

TITLES = {"novel": "LSL", "all": "GLSL"}
OTHER_COLUMNS = ("novel_joint", "base", "all_prior")
NAN = float("nan")


class Cell(NamedTuple):
    """A number of a table, in percent or in points; NaN where there is none."""

    value: float
    interval: float = NAN
    """Half the width of its 95 % interval over draws; NaN for a single draw."""
    rank: int = 0
    """Among the rows, from 1 for the best; 0 where rows are not ranked."""


def side_of(value: float, interval: float) -> int:
    """Return 1 or -1 if the whole interval is on that side of zero, else 0."""
    if not abs(value) > interval:
        return 0
    return 1 if value > 0 else -1


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first line has its headings."""
    titles, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([titles, f"|{'---|' * len(lines[0])}", *rows])


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers."""

    words: Sequence[str]
    """Headings of the words that each row starts with."""
    columns: Sequence[tuple[str, int]]
    """Title and number of shots of each column of numbers."""
    rows: Sequence[tuple[Sequence[str], Sequence[Cell]]]
    sign: str = ""
    """ "+" for differences."""

    def text(self) -> str:
        """Align the table for a terminal: best in [ ], second best in ( )."""
        is_ranked = any(cell.rank for _, cells in self.rows for cell in cells)
        marks = ("[{}]", "({})", " {} " if is_ranked else "{}")
        lines = [[*self.words, *(f"{title} {k}" for title, k in self.columns)]]
        lines += [[*words, *self._texts(cells, "±{:.1f}", marks)] for words, cells in self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def aligned(line: Sequence[str]) -> str:
            texts = [
                f"{text:<{width}} " if at < len(self.words) else f"{text:>{width}}"
                for at, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            return " ".join(texts).rstrip()

        return "\n".join(map(aligned, lines))

    def markdown(self) -> str:
        """Write the table in Markdown: best in bold, second best underlined."""
        marks = ("**{}**", "<u>{}</u>", "{}")
        titles = [*self.words, *(f"{title} K={k}" for title, k in self.columns)]
        rows = [[*words, *self._texts(cells, "±{:.1f}", marks)] for words, cells in self.rows]
        return markdown_table([titles, *rows])

    def latex(self, caption: str, *, is_grouped: bool = False) -> str:
        """Write the table for booktabs: best in bold, second best underlined.

        Args:
            caption: A comment above the table.
            is_grouped: Draw a rule where the first word of the rows changes.
        """
        spans = [
            rf"\multicolumn{{{len(list(columns))}}}{{c}}{{{title}}}"
            for title, columns in groupby(self.columns, key=lambda column: column[0])
        ]
        words = [word.capitalize() for word in self.words]
        lines = [
            rf"% {caption}; needs \usepackage{{booktabs}}",
            rf"\begin{{tabular}}{{{'l' * len(words)}{'r' * len(self.columns)}}}",
            r"\toprule",
            rf"{'& ' * len(words)}{' & '.join(spans)} \\",
            rf"{' & '.join([*words, *(f'$K{{=}}{k}$' for _, k in self.columns)])} \\",
        ]
        marks = (r"\textbf{{{}}}", r"\underline{{{}}}", "{}")
        group = None
        for names, cells in self.rows:
            if group is None or (is_grouped and names[0] != group):
                lines.append(r"\midrule")
            group = names[0]
            texts = self._texts(cells, r"\,{{\scriptsize$\pm${:.1f}}}", marks)
            lines.append(rf"{' & '.join([*map(escape_latex, names), *texts])} \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _texts(
        self, cells: Sequence[Cell], interval: str, marks: tuple[str, str, str]
    ) -> list[str]:
        """Format numbers; marks are of the best, the second best and all others."""
        texts = []
        for cell in cells:
            text = "–" if isnan(cell.value) else f"{cell.value:{self.sign}.1f}"
            text += "" if isnan(cell.interval) else interval.format(cell.interval)
            texts.append({1: marks[0], 2: marks[1]}.get(cell.rank, marks[2]).format(text))
        return texts


def escape_latex(text: str) -> str:
    """Return a name as LaTeX prints it."""
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def grid_of(
    cells: pd.DataFrame,
    value: str,
    interval: str | None = None,
    columns: Sequence[str] = tuple(TITLES),
    sign: str = "",
) -> Table:
    """Lay one value of a tidy frame out by method and head; rows that lack it are left out."""
    keys = [(column, k) for column in columns for k in sorted(map(int, cells["shots"].unique()))]
    rows = []
    for (method, head), group in cells.groupby(ROW, sort=False):
        found: dict[Any, Any] = group.set_index(["column", "shots"]).to_dict("index")
        numbers = [
            Cell(found[key][value], NAN if interval is None else found[key][interval])
            for key in keys
        ]
        if not all(isnan(number.value) for number in numbers):
            rows.append(([str(method), str(head)], numbers))
    titles = [(TITLES.get(column, column), k) for column, k in keys]
    return Table(["method", "head"], titles, rows, sign)


def accuracy_table(scores: pd.DataFrame) -> str:
    """Return means and intervals of top-5, LSL and GLSL side by side, and the other columns."""
    summary = summarise(scores)
    main = grid_of(summary, "top5_mean", "top5_interval").text()
    rest = grid_of(summary, "top5_mean", columns=OTHER_COLUMNS).text()
    return f"Top-5 accuracy, %, ± 95 % interval over draws\n{main}\n\n{rest}"


def difference_table(scores: pd.DataFrame, against: str) -> str:
    """Return how much every row gains over a named one; see `paired_differences`."""
    differences = paired_differences(scores, against)
    grid = grid_of(differences, "top5_difference", "top5_interval", sign="+").text()
    row = against if "/" in against else f"{against}, same head"
    return f"Top-5 minus {row}, paired by draw, ± 95 % interval\n{grid}"


def diversity_table(diversity: pd.DataFrame) -> str:
    """Return how far apart synthetic examples of a class are, beside real ones."""
    rows = diversity.groupby("method", sort=False)
    ratios = diversity.groupby(["method", "shots"], sort=False)["ratio"].mean().unstack("shots")
    table = ratios.rename(columns=lambda k: f"K={k}").loc[list(rows.groups)].reset_index()
    table.insert(1, "distance", rows["distance"].mean().to_numpy())
    formats = {"distance": "{:.3g}".format}
    text = table.to_string(index=False, formatters=formats, float_format="{:.2f}".format)
    title = "Diversity: mean distance of two synthetic examples of a class, and ratio to real ones"
    return f"{title}\n{text}"

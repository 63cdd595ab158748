"""Tables of results: their cells, and writers for terminals, Markdown and LaTeX."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, NamedTuple

import pandas as pd

from cpaan.protocol.calibration import CALIBRATED
from cpaan.protocol.statistics import ROW, Crossed, crossed_cells, paired_differences, summarise

TITLES = {"novel": "LSL", "all": "GLSL"}
ALL_TITLES = {**TITLES, CALIBRATED: "GLSL cal."}
OTHER_COLUMNS = ("novel_joint", "base", CALIBRATED)
NAN = float("nan")
_MOST_LETTERS = 100  # in a line of a terminal


class Cell(NamedTuple):
    """A number of a table, in percent or in points; NaN where there is none."""

    value: float
    interval: float = NAN
    """Half the width of its 95 % interval; NaN for a single draw."""
    rank: int = 0
    """Among the rows, from 1 for the best; 0 where rows are not ranked."""
    p_value: float = NAN
    """Of a difference of zero, two-sided."""
    by_seed: tuple[float, ...] = ()
    """A difference by training seed that both rows have. An untrained row may have a single seed,
    which is compared with all seeds of the other row."""

    @classmethod
    def of(cls, gaps: Crossed, num_comparisons: int = 1) -> "Cell":
        """Return the mean of differences by draw and seed, one out of several comparisons."""
        mean, by_seed = gaps.estimate(), tuple(gaps.values.mean(axis=0).tolist())
        numbers = mean.interval(num_comparisons), 0, mean.p_value(num_comparisons)
        return cls(mean.mean, *numbers, by_seed)

    @property
    def side(self) -> int:
        """1 or -1 if the whole interval is on that side of zero, else 0."""
        return int(math.copysign(1, self.value)) if abs(self.value) > self.interval else 0

    def text(self, digits: int = 2) -> str:
        """Return a difference with half its interval, with a minus sign instead of a hyphen."""
        text = signed(self.value, digits)
        return text if math.isnan(self.interval) else f"{text} ± {self.interval:.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign; zero is positive."""
    return f"{value:+z.{digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers."""

    words: Sequence[str]
    """Headings of the words that rows start with."""
    rows: Mapping[Any, Sequence[str]]
    """The words of every row, by the beginning of the keys of its cells."""
    cells: Sequence[tuple[str, int]]
    """Column and number of shots: the end of the keys."""
    sides: Mapping[str, Mapping[Any, Cell]]
    """Numbers side by side, by the suffix of their columns' titles; those with one are printed
    numbers, of LSL and GLSL only."""
    sign: str = ""
    """ "+" for differences."""
    digits: int = 1

    def text(self) -> str:
        """Align the table for a terminal: best in [ ], second best in ( ).

        A table that is wider than 100 letters is split, by the titles of its columns if possible.
        """
        is_ranked = any(cell.rank for side in self.sides.values() for cell in side.values())
        marks = ("[{}]", "({})", " {} " if is_ranked else "{}")
        titles = [*self.words, *(f"{title} {k}" for title, k in self._columns())]
        lines = [titles, *self._lines("±{}", marks)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        num_words, num_columns = len(self.words), len(titles) - len(self.words)
        room = _MOST_LETTERS - sum(width + 2 for width in widths[:num_words])
        if num_columns > (at_once := max(1, room // (max(widths[num_words:]) + 1))):
            num_columns = min(at_once, len({k for _, k in self.cells}))

        def aligned(line: Sequence[str], start: int) -> str:
            places = [*range(num_words), *range(start, min(start + num_columns, len(line)))]
            texts = [
                f"{line[at]:<{widths[at]}} " if at < num_words else f"{line[at]:>{widths[at]}}"
                for at in places
            ]
            return " ".join(texts).rstrip()

        starts = range(num_words, len(titles), num_columns)
        return "\n\n".join("\n".join(aligned(line, at) for line in lines) for at in starts)

    def markdown(self) -> str:
        """Write the table in Markdown: best in bold, second best underlined."""
        titles = [*self.words, *(f"{title} K={k}" for title, k in self._columns())]
        marks = ("**{}**", "<u>{}</u>", "{}")
        head, *rows = (f"| {' | '.join(line)} |" for line in [titles, *self._lines("±{}", marks)])
        return "\n".join([head, f"|{'---|' * len(titles)}", *rows])

    def latex(self, caption: str) -> str:
        """Write the table for booktabs: best in bold, second best underlined.

        The caption is a comment above it. There is a rule where the first word of rows changes.
        """
        columns, words = self._columns(), [word.capitalize() for word in self.words]
        spans = [
            rf"\multicolumn{{{len(list(group))}}}{{c}}{{{title}}}"
            for title, group in groupby(columns, key=lambda column: column[0])
        ]
        lines = [
            rf"% {caption}; needs \usepackage{{booktabs}}",
            rf"\begin{{tabular}}{{{'l' * len(words)}{'r' * len(columns)}}}",
            r"\toprule",
            rf"{'& ' * len(words)}{' & '.join(spans)} \\",
            rf"{' & '.join([*words, *(f'$K{{=}}{k}$' for _, k in columns)])} \\",
        ]
        marks = (r"\textbf{{{}}}", r"\underline{{{}}}", "{}")
        group = None
        for first, *texts in self._lines(r"\,{{\scriptsize$\pm${}}}", marks, escape_latex):
            lines += [] if first == group else [r"\midrule"]
            lines.append(rf"{' & '.join([first, *texts])} \\")
            group = first
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _places(self) -> list[tuple[str, tuple[str, int]]]:
        """Return the side and the cell of all columns of numbers."""
        places = product(self.sides, self.cells)
        return [(end, cell) for end, cell in places if not end or cell[0] in TITLES]

    def _columns(self) -> list[tuple[str, int]]:
        """Return title and number of shots of all columns of numbers."""
        return [(f"{ALL_TITLES.get(name, name)}{end}", k) for end, (name, k) in self._places()]

    def _lines(
        self, interval: str, marks: Sequence[str], escape: Callable[[str], str] = str
    ) -> Iterator[list[str]]:
        """Yield the texts of a row; marks are of the best, the second best and all others."""
        for row, words in self.rows.items():
            texts = list(map(escape, words))
            for end, key in self._places():
                cell = self.sides[end].get((*row, *key), Cell(NAN))
                text = (
                    "–" if math.isnan(cell.value) else f"{cell.value:{self.sign}z.{self.digits}f}"
                )
                reach = f"{cell.interval:.{self.digits}f}"
                text += "" if math.isnan(cell.interval) else interval.format(reach)
                texts.append(marks[cell.rank - 1 if cell.rank in (1, 2) else 2].format(text))
            yield texts


def escape_latex(text: str) -> str:
    """Return a name as LaTeX prints it."""
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def cells_of(frame: pd.DataFrame, row: list[str], *numbers: str) -> dict[Any, Cell]:
    """Return cells by the row's columns, column and shots; numbers are value, interval, rank."""
    parts = [frame[[*row, "column", "shots"]], frame[[*numbers]]]
    lines = zip(*(part.itertuples(index=False, name=None) for part in parts), strict=True)
    return {key: Cell(*values) for key, values in lines}


def diversity_cells(diversity: pd.DataFrame) -> dict[tuple[str, str, int], Cell]:
    """Return ratios to the real mean distance by row, "ratio" and shots; rows may have none."""
    ratios = diversity.dropna(subset="ratio")
    cells = {}
    for (row, shots), values in crossed_cells(ratios, "ratio", ["method", "shots"]).items():
        mean = values.estimate()
        cells[row, "ratio", shots] = Cell(mean.mean, mean.interval())
    return cells


def grid_of(
    frame: pd.DataFrame, *numbers: str, columns: Sequence[str] = tuple(TITLES), sign: str = ""
) -> Table:
    """Lay a value, and its interval, out by method and head; rows that lack it are left out."""
    known = frame[frame["column"].isin(columns) & frame[numbers[0]].notna()]
    cells = [(column, k) for column in columns for k in sorted(map(int, frame["shots"].unique()))]
    rows = {row: row for row in known[ROW].itertuples(index=False, name=None)}
    return Table(ROW, rows, cells, {"": cells_of(known, ROW, *numbers)}, sign)


def accuracy_table(scores: pd.DataFrame) -> str:
    """Return means and intervals of top-5, LSL and GLSL side by side, and the other columns."""
    summary = summarise(scores)
    main = grid_of(summary, "top5_mean", "top5_interval").text()
    rest = grid_of(summary, "top5_mean", columns=OTHER_COLUMNS).text()
    return f"Top-5 accuracy, %, ± 95 % interval {over_what(scores)}\n{main}\n\n{rest}"


def over_what(scores: pd.DataFrame) -> str:
    """Return what intervals of these scores are over: with one seed, nothing but draws."""
    return "over draws and seeds" if scores["seed"].nunique() > 1 else "over draws"


def difference_table(scores: pd.DataFrame, against: str) -> str:
    """Return how much every row gains over a named one; see `paired_differences`."""
    differences = paired_differences(scores, against)
    grid = grid_of(differences, "top5_difference", "top5_interval", sign="+").text()
    row = against if "/" in against else f"{against}, same head"
    return f"Top-5 minus {row}, paired by draw and seed, ± 95 % interval\n{grid}"


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

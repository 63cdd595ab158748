"""The paper's Table 1 with our numbers: one head for each row, printed numbers beside them.

A rule gives every row its head: the paper's (nearest centroid in a prototypical embedding, linear
on ResNet-10 features, a method's own classifier where it has one), or the best on validation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.protocol.statistics import paired_differences, summarise
from cpaan.report.published import printed_elsewhere, printed_of
from cpaan.report.tables import NAN, TITLES, Cell, Table

BY_PAPER, BY_VALIDATION = "the paper's rule for the final classifier", "head chosen on validation"

CellKey = tuple[str, str, int]
"""Label of a row, column and number of shots."""
Cells = Mapping[CellKey, Cell]


def heads_by_paper(methods: Mapping[str, str]) -> dict[str, str]:
    """Return the head of every row, by the paper's rule; ``methods`` are by label of row."""
    return {label: ROWS[method].head for label, method in methods.items()}


def heads_by_validation(heads: pd.DataFrame) -> dict[str, str]:
    """Return the best head of every row there; see `cpaan.protocol.priors.best_heads`."""
    best = heads.drop_duplicates("method")
    return dict(zip(best["method"], best["head"], strict=True))


def with_heads(scores: pd.DataFrame, head_of: Mapping[str, str]) -> pd.DataFrame:
    """Return LSL and GLSL of every row with its head, under one name so that rows compare."""
    relevant = scores[scores["column"].isin(TITLES)]
    chosen = relevant[relevant["head"] == relevant["method"].map(dict(head_of))]
    return chosen.assign(head="chosen")


def ranked_cells(
    summary: pd.DataFrame, head_of: Mapping[str, str], metric: str = "top5"
) -> dict[CellKey, Cell]:
    """Rank the rows of a summary within each column, every row with its head.

    Equal rows share a rank, and the next rank is skipped.
    """
    chosen = summary[summary["head"] == summary["method"].map(dict(head_of))]
    # Rounded, or the last bit of a mean would decide between equal rows.
    means = chosen[f"{metric}_mean"].round(9).groupby([chosen["column"], chosen["shots"]])
    ranked = chosen.assign(rank=means.rank(ascending=False, method="min").astype(int))
    return _cells(ranked, [f"{metric}_mean", f"{metric}_interval", "rank"])


def differences_to(chosen: pd.DataFrame, reference: str) -> dict[CellKey, Cell]:
    """Return every row minus the reference in top-5, paired by draw; see `with_heads`."""
    return _cells(paired_differences(chosen, reference), ["top5_difference", "top5_interval"])


def _cells(frame: pd.DataFrame, numbers: list[str]) -> dict[CellKey, Cell]:
    lines = frame[["method", "column", "shots", *numbers]].itertuples(index=False, name=None)
    return {(label, column, shots): Cell(*found) for label, column, shots, *found in lines}


def printed_cells(methods: Mapping[str, str], shots: tuple[int, ...]) -> Cells:
    """Return what the papers print of the rows: top-5, %, on ImageNet."""
    return {
        (label, column, k): Cell(value)
        for label, method in methods.items()
        if (printed := printed_of(method)) is not None
        for column in TITLES
        for k in shots
        if (value := printed.at(column, k)) is not None
    }


@dataclass(frozen=True)
class TableOne:
    """Top-5 of all rows, in the paper's order and layout."""

    rule: str
    """How heads were chosen, in words."""
    methods: Mapping[str, str]
    """The key of each row in `registry.ROWS`, by its label."""
    head_of: Mapping[str, str]
    shots: tuple[int, ...]
    cells: Cells
    best: str
    """Label of the row with the highest mean of LSL and GLSL over all shots."""
    differences: Cells
    """Each row minus the best, paired by draw; without the best itself."""

    def text(self) -> str:
        """Return the table for a terminal."""
        printed = printed_cells(self.methods, self.shots)
        with_printed = {label for label, _, _ in printed}
        methods = {label: of for label, of in self.methods.items() if label in with_printed}
        return "\n\n".join(
            [
                f"Top-5, %, {self.rule}; [best], (second best)\n{self._means().text()}",
                "Printed in the papers, ImageNet, top-5, %\n"
                + self._lay_out({"": printed}, methods).text(),
                f"Minus {self.best}, paired by draw, ± 95 % interval\n{self._minus_best().text()}",
            ]
        )

    def markdown(self) -> str:
        """Return the table with printed columns beside ours, and the differences to the best."""
        printed = printed_cells(self.methods, self.shots)
        return "\n\n".join(
            [
                f"Top-5, %, {self.rule}: **best**, <u>second best</u>, ± half the 95 % interval "
                "over draws. The columns called printed are the papers' own: ImageNet, other "
                "classes, so compare no levels.",
                self._lay_out({"": self.cells, " printed": printed}).markdown(),
                *printed_elsewhere(self.methods.values()),
                f"Minus {self.best}, paired by draw:",
                self._minus_best().markdown(),
            ]
        )

    def latex(self) -> str:
        """Return our means in the paper's layout, for a paper that uses booktabs."""
        return self._means().latex(f"Top-5, {self.rule}", is_grouped=True)

    def _means(self) -> Table:
        return self._lay_out(
            {"": {key: cell._replace(interval=NAN) for key, cell in self.cells.items()}}
        )

    def _minus_best(self) -> Table:
        return self._lay_out({"": self.differences}, sign="+")

    def _lay_out(
        self, sides: Mapping[str, Cells], methods: Mapping[str, str] | None = None, sign: str = ""
    ) -> Table:
        """Lay sets of cells out side by side, by the suffix of their columns' titles."""
        words = ("Method", "Representation", "Generation", "row", "head")
        keys = [(column, k) for column in TITLES for k in self.shots]
        rows = []
        for label, method in (self.methods if methods is None else methods).items():
            row = ROWS[method]
            names = (row.group, row.representation, row.generation, label, self.head_of[label])
            numbers = [
                cells.get((label, *key), Cell(NAN)) for cells in sides.values() for key in keys
            ]
            rows.append((names, numbers))
        columns = [(f"{TITLES[column]}{suffix}", k) for suffix in sides for column, k in keys]
        return Table(words, columns, rows, sign)


def make_table_one(
    scores: pd.DataFrame, head_of: Mapping[str, str], methods: Mapping[str, str], rule: str
) -> TableOne:
    """Summarise, rank and compare rows; ``methods`` are by label, in the order of the table.

    Raises:
        ValueError: If a row has no scores with its head.
    """
    chosen = with_heads(scores, {label: head_of[label] for label in methods})
    for label in methods:
        if label not in set(chosen["method"]):
            raise ValueError(f"{label} has no scores with the head {head_of[label]}")
    means = chosen.groupby(["method", "column"])["top5"].mean().groupby("method").mean()
    best = str(means.round(9).idxmax())
    return TableOne(
        rule=rule,
        methods=methods,
        head_of=head_of,
        shots=tuple(sorted(int(k) for k in chosen["shots"].unique())),
        cells=ranked_cells(summarise(chosen), dict.fromkeys(methods, "chosen")),
        best=best,
        differences=differences_to(chosen, best) if len(methods) > 1 else {},
    )


def tables_of(
    scores: pd.DataFrame, methods: Mapping[str, str], heads: pd.DataFrame | None
) -> list[TableOne]:
    """Return the table by the paper's rule, and by the validation phase if that was scored.

    With scores of the validation phase, the paper's rule may lack heads; it is then left out.
    """
    by_paper, tables = heads_by_paper(methods), []
    scored = set(scores[["method", "head"]].itertuples(index=False, name=None))
    if heads is None or scored.issuperset(by_paper.items()):
        tables.append(make_table_one(scores, by_paper, methods, BY_PAPER))
    if heads is not None:
        tables.append(make_table_one(scores, heads_by_validation(heads), methods, BY_VALIDATION))
    return tables

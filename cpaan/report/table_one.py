"""The paper's Table 1 with our numbers: one head for a row, printed numbers beside them.

A rule gives every row its head: the paper's (nearest centroid in a prototypical embedding, linear
on ResNet-10 features, a method's own classifier where it has one), or the best on validation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.protocol.calibration import SCORED
from cpaan.protocol.config import HEADS, OWN
from cpaan.protocol.statistics import ROW, summarise
from cpaan.report.gains import PairedScores
from cpaan.report.published import printed_elsewhere, printed_of
from cpaan.report.tables import ALL_TITLES, NAN, TITLES, Cell, Table, cells_of, over_what

PAPER, VALIDATION = "paper", "validation"
BY_PAPER, BY_VALIDATION = "the paper's rule for the final classifier", "head chosen on validation"

_WORDS = ("Method", "Representation", "Generation", "row", "head")
CellKey = tuple[str, str, int]
"""Label of a row, column and number of shots."""
Cells = Mapping[CellKey, Cell]


def rules_of(
    scores: pd.DataFrame, methods: Mapping[str, str], heads: pd.DataFrame | None
) -> dict[str, dict[str, str]]:
    """Return the head of every row by each rule; rows without scores of that head are left out.

    The rules are the paper's, the best head on validation, and each head alone. ``methods`` are by
    label of row, ``heads`` as of `cpaan.protocol.calibration.best_heads`.
    """
    best = {} if heads is None else dict(heads.drop_duplicates("method")[ROW].to_numpy().tolist())
    rules = {
        PAPER: {label: ROWS[method].head for label, method in methods.items()},
        VALIDATION: {label: best[label] for label in methods if label in best},
        **{head: dict.fromkeys(methods, head) for head in (*HEADS, OWN)},
    }
    scored = set(scores[ROW].itertuples(index=False, name=None))
    for rule, head_of in rules.items():
        rules[rule] = {row: head for row, head in head_of.items() if (row, head) in scored}
    return {rule: head_of for rule, head_of in rules.items() if head_of}


def ranked_cells(
    summary: pd.DataFrame, head_of: Mapping[str, str], metric: str = "top5"
) -> dict[CellKey, Cell]:
    """Rank the rows of a summary within its columns, every row with its head.

    Equal rows share a rank, and the next rank is skipped.
    """
    chosen = summary[summary["head"] == summary["method"].map(dict(head_of))]
    # Rounded, or the last bit of a mean would decide between equal rows.
    means = chosen[f"{metric}_mean"].round(9).groupby([chosen["column"], chosen["shots"]])
    ranked = chosen.assign(rank=means.rank(ascending=False, method="min").astype(int))
    return cells_of(ranked, ["method"], f"{metric}_mean", f"{metric}_interval", "rank")


def printed_cells(methods: Mapping[str, str], shots: Sequence[int]) -> Cells:
    """Return what the papers print of the rows: top-5, %, on ImageNet."""
    return {
        (label, column, k): Cell(value)
        for label, method in methods.items()
        for (column, k), value in printed_of(method).items()
        if k in shots
    }


class TableOne(NamedTuple):
    """Top-5 of all rows in the paper's order and layout, for three kinds of readers."""

    text: str
    """For a terminal: our means, the papers' numbers, and differences to the best row."""
    markdown: str
    """Printed columns beside ours, and differences to the best row."""
    latex: str
    """Our means, for a paper that uses booktabs."""


def make_table_one(
    scores: pd.DataFrame, head_of: Mapping[str, str], methods: Mapping[str, str], rule: str
) -> TableOne:
    """Summarise, rank and compare rows.

    The best row has the highest mean of LSL and calibrated GLSL over all shots. ``methods`` are by
    label, in the order of the table; the rule says how heads were chosen.
    """
    chosen = scores[scores["head"] == scores["method"].map(dict(head_of))]
    paired = PairedScores(chosen)
    keys = [(column, k) for column in ALL_TITLES for k in paired.shots]
    means = {
        label: paired.values((label, head_of[label]), SCORED, paired.shots).values.mean().round(9)
        for label in sorted(methods)
    }
    best = max(means, key=lambda label: means[label])
    cells = ranked_cells(summarise(chosen), head_of)
    plain = {key: cell._replace(interval=NAN) for key, cell in cells.items()}
    printed = printed_cells(methods, paired.shots)
    differences = {
        (label, *key): paired.compare((label, head_of[label]), (best, head_of[best]), *key)
        for label in methods
        for key in keys
        if label != best
    }
    words = {
        (label,): (row.group, row.representation, row.generation, label, head_of[label])
        for label, row in ((label, ROWS[method]) for label, method in methods.items())
    }
    ours = Table(_WORDS, words, keys, {"": plain})
    known = {(label,): words[label,] for label, _, _ in printed}
    theirs = Table(_WORDS, known, [key for key in keys if key[0] in TITLES], {"": printed})
    both = Table(_WORDS, words, keys, {"": cells, " printed": printed})
    minus = Table(_WORDS, words, keys, {"": differences}, "+")

    def brief(table: Table) -> str:
        """Return a table for a terminal, which has no room for the first three words."""
        rows = {row: words[3:] for row, words in table.rows.items()}
        return replace(table, words=_WORDS[3:], rows=rows).text()

    return TableOne(
        text=f"Top-5, %, {rule}; [best], (second best)\n{brief(ours)}\n\n"
        f"Printed in the papers, ImageNet, top-5, %\n{brief(theirs)}\n\n"
        f"Minus {best}, paired by draw and seed, ± 95 % interval\n{brief(minus)}",
        markdown="\n\n".join(
            [
                f"Top-5, %, {rule}: **best**, <u>second best</u>, ± half the 95 % interval "
                f"{over_what(scores)}. The columns called printed are the papers' own: ImageNet, "
                "other classes, so compare no levels.",
                both.markdown(),
                *printed_elsewhere(methods.values()),
                f"Minus {best}, paired by draw and seed:",
                minus.markdown(),
            ]
        ),
        latex=ours.latex(f"Top-5, {rule}"),
    )


def tables_of(
    scores: pd.DataFrame, methods: Mapping[str, str], heads: pd.DataFrame | None
) -> list[TableOne]:
    """Return the table by the paper's rule and by the validation phase, if these have all rows."""
    rules = rules_of(scores, methods, heads)
    return [
        make_table_one(scores, rules[rule], methods, title)
        for rule, title in ((PAPER, BY_PAPER), (VALIDATION, BY_VALIDATION))
        if len(rules.get(rule, ())) == len(methods)
    ]

"""Test a table in all its output formats."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.tables import (
    NAN,
    Cell,
    Table,
    accuracy_table,
    difference_table,
    diversity_table,
    grid_of,
)
from helpers.frames import frame_of

TABLE = Table(
    ["group", "row"],
    {("x",): ["A", "x_1"], ("y",): ["A", "y"], ("z",): ["B & C", "z"]},
    [("novel", 1), ("novel", 20), ("all", 1)],
    {
        "": {
            ("x", "novel", 1): Cell(100.0, 0.25, 1),
            ("x", "all", 1): Cell(1.0, NAN, 3),
            ("y", "novel", 1): Cell(9.0, 1.0, 2),
            ("y", "novel", 20): Cell(50.0, 2.0),
            ("y", "all", 1): Cell(2.0, 1.5, 1),
            ("z", "novel", 1): Cell(8.0, rank=3),
            ("z", "novel", 20): Cell(-0.04),
            ("z", "all", 1): Cell(3.0),
        }
    },
)


def test_a_wide_table_is_split_to_fit_a_terminal_and_zero_has_no_minus_sign():
    shots = (1, 2, 5, 10, 20)
    cells = {("x", column, k): Cell(-0.04, 0.5) for column in ("novel", "all") for k in shots}
    keys = [key[1:] for key in cells]
    table = Table(["row"], {("x",): ["a row with a long name"]}, keys, {"": cells}, "+")

    blocks = [block.splitlines() for block in table.text().split("\n\n")]

    assert [block[0].split()[1::2] for block in blocks] == [["LSL"] * 5, ["GLSL"] * 5]
    assert [block[1].count("+0.0±0.5") for block in blocks] == [5, 5]
    assert max(len(line) for block in blocks for line in block) <= 100
    longer = replace(table, rows={("x",): ["a row with a long name" * 3]}).text()
    assert max(map(len, longer.splitlines())) <= 100


def test_text_is_aligned_and_it_and_markdown_mark_the_best_numbers():
    assert TABLE.text().splitlines() == [
        "group  row        LSL 1     LSL 20    GLSL 1",
        "A      x_1  [100.0±0.2]         –       1.0",
        "A      y      (9.0±1.0)  50.0±2.0  [2.0±1.5]",
        "B & C  z           8.0        0.0       3.0",
    ]
    assert TABLE.markdown().splitlines() == [
        "| group | row | LSL K=1 | LSL K=20 | GLSL K=1 |",
        "|---|---|---|---|---|",
        "| A | x_1 | **100.0±0.2** | – | 1.0 |",
        "| A | y | <u>9.0±1.0</u> | 50.0±2.0 | **2.0±1.5** |",
        "| B & C | z | 8.0 | 0.0 | 3.0 |",
    ]


def test_latex_has_spans_escaped_names_and_a_rule_between_groups():
    lines = TABLE.latex("Top-5").splitlines()

    assert lines == [
        r"% Top-5; needs \usepackage{booktabs}",
        r"\begin{tabular}{llrrr}",
        r"\toprule",
        r"& & \multicolumn{2}{c}{LSL} & \multicolumn{1}{c}{GLSL} \\",
        r"Group & Row & $K{=}1$ & $K{=}20$ & $K{=}1$ \\",
        r"\midrule",
        r"A & x\_1 & \textbf{100.0\,{\scriptsize$\pm$0.2}} & – & 1.0 \\",
        r"A & y & \underline{9.0\,{\scriptsize$\pm$1.0}} & 50.0\,{\scriptsize$\pm$2.0} & "
        r"\textbf{2.0\,{\scriptsize$\pm$1.5}} \\",
        r"\midrule",
        r"B \& C & z & 8.0 & 0.0 & 3.0 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_a_grid_has_a_row_for_each_method_and_head_that_has_the_value():
    rows = [("a", 5, 1.0, NAN), ("a", 1, 2.0, 0.5), ("b", 1, NAN, NAN), ("b", 5, NAN, NAN)]
    cells = pd.DataFrame(rows, columns=["method", "shots", "value", "half"])
    cells = cells.assign(head="h", column="novel")

    grid = grid_of(cells, "value", "half", columns=["novel"], sign="+")

    assert grid.markdown().splitlines()[2:] == ["| a | h | +2.0±0.5 | +1.0 |"]


def test_scores_are_printed_by_row_and_compared_with_a_named_one():
    columns = ("novel", "all", "novel_joint", "base", "all_calibrated")
    scores = frame_of(
        {
            (method, "h"): {(column, 1): [value, value + 1] for column in columns}
            for method, value in (("a", 10.0), ("b", 12.0))
        }
    )

    # For draws 10 and 11, the interval is t of one degree of freedom, 12.7, times 1 / 2.
    main, rest = (part.splitlines() for part in accuracy_table(scores).split("\n\n"))
    assert main[1:3] == ["method  head     LSL 1   GLSL 1", "a       h     10.5±6.4 10.5±6.4"]
    assert rest[2].split() == ["b", "h", "12.5", "12.5", "12.5"]
    assert main[0] == "Top-5 accuracy, %, ± 95 % interval over draws"
    several = pd.concat([scores, scores.assign(seed=1)])
    assert accuracy_table(several).startswith(f"{main[0]} and seeds\n")
    text = difference_table(scores, "a")
    assert text.startswith("Top-5 minus a, same head, paired by draw")
    assert text.endswith("b       h     +2.0±0.0 +2.0±0.0")


def test_diversity_is_a_distance_and_a_ratio_for_each_number_of_shots():
    rows = [("b", 1, 10.0, 0.5), ("b", 5, 12.0, 0.75), ("a", 1, 1.0, 1.0), ("a", 5, 1.0, 1.25)]
    frame = pd.DataFrame(rows, columns=["method", "shots", "distance", "ratio"])

    _, header, *lines = diversity_table(frame).splitlines()

    assert header.split() == ["method", "distance", "K=1", "K=5"]
    assert [line.split()[1:] for line in lines] == [["11", "0.50", "0.75"], ["1", "1.00", "1.25"]]


@pytest.mark.parametrize(
    ("value", "interval", "side"),
    [(1.0, 0.9, 1), (-1.0, 0.9, -1), (1.0, 1.0, 0), (0.2, 0.9, 0), (5.0, NAN, 0)],
)
def test_a_side_is_where_the_whole_interval_is(value, interval, side):
    assert Cell(value, interval).side == side

"""The paper's table from scores that one can check by hand, and numbers that were printed."""

import math
import re

import pandas as pd
import pytest

from cpaan.report.published import ELSEWHERE, SHOTS, TABLE_1, printed_of
from cpaan.report.table_one import (
    BY_PAPER,
    BY_VALIDATION,
    TableOne,
    escape_latex,
    heads_by_paper,
    heads_by_validation,
    make_table_one,
    tables_of,
)

Cells = dict[tuple[str, int], list[float]]


def rows(method: str, head: str, cells: Cells) -> list[dict]:
    """Return scores of one head: top-5 by draw, for each column and number of shots."""
    return [
        {
            "method": method,
            "head": head,
            "phase": "test",
            "column": column,
            "shots": shots,
            "draw": draw,
            "seed": 0,
            "top1": top5 / 2,
            "top5": top5,
        }
        for (column, shots), values in cells.items()
        for draw, top5 in enumerate(values)
    ]


def even(value: float, **changes: list[float]) -> Cells:
    """Two draws around a value in every cell; ``novel_1=[...]`` has others."""
    cells = {
        (column, shots): [value - 1, value + 1]
        for column in ("novel", "all", "base")
        for shots in (1, 2)
    }
    for name, values in changes.items():
        column, shots = name.split("_")
        cells[column, int(shots)] = values
    return cells


SCORES = pd.DataFrame(
    [
        # By the paper LR is linear, PN by centroids and SN its own; other heads do better here.
        *rows("LR", "linear", even(40)),
        *rows("LR", "cosine", even(90)),
        *rows("SN", "own", even(30, novel_1=[39, 41])),
        *rows("PN", "centroid", even(50, novel_1=[38, 42], all_2=[48, 58])),
        *rows("PN", "linear", even(20)),
    ]
)
METHODS = {"LR": "LR", "SN": "SN", "PN": "PN"}
HEADS = pd.DataFrame(
    [
        {"method": "SN", "head": "own", "score": 30.0},
        {"method": "LR", "head": "cosine", "score": 90.0},
        {"method": "LR", "head": "linear", "score": 40.0},
        {"method": "PN", "head": "centroid", "score": 50.0},
        {"method": "PN", "head": "linear", "score": 20.0},
    ]
)


@pytest.fixture
def table() -> TableOne:
    return make_table_one(SCORES, heads_by_paper(METHODS), METHODS, BY_PAPER)


def cells_of(table: TableOne, label: str):
    (row,) = [row for row in table.rows if row.label == label]
    return row.cells


def test_by_the_paper_s_rule_the_representation_decides_the_head(table):
    assert [(row.label, row.head) for row in table.rows] == [
        ("LR", "linear"),
        ("SN", "own"),
        ("PN", "centroid"),
    ]
    assert cells_of(table, "LR")["novel", 2].mean == 40
    assert heads_by_paper({"a": "cCov-GAN", "b": "cCov-GAN-PN", "c": "FI-PMN"}) == {
        "a": "linear",
        "b": "centroid",
        "c": "own",
    }


def test_by_validation_the_head_is_the_best_there_whatever_it_does_here():
    assert heads_by_validation(HEADS) == {"LR": "cosine", "SN": "own", "PN": "centroid"}
    by_paper, by_validation = tables_of(SCORES, METHODS, HEADS)

    assert (by_paper.rule, by_validation.rule) == (BY_PAPER, BY_VALIDATION)
    assert cells_of(by_paper, "LR")["all", 1].mean == 40
    assert cells_of(by_validation, "LR")["all", 1].mean == 90
    assert by_validation.best == "LR"
    assert len(tables_of(SCORES, METHODS, None)) == 1


def test_the_best_row_has_the_highest_mean_over_both_columns_and_all_shots(table):
    # PN: (40 + 50) / 2 and (50 + 53) / 2; LR: 40 everywhere.
    assert table.best == "PN"


def test_means_and_intervals_are_over_draws(table):
    cell = cells_of(table, "PN")["all", 2]

    assert cell.mean == 53
    # Two draws at a distance of 10: t-quantile of one degree of freedom times 10 / 2.
    assert cell.interval == pytest.approx(12.7062 * 5, rel=1e-4)


def test_equal_rows_share_a_rank_and_leave_the_next_one_out(table):
    """At one shot, all three have 40 in LSL; in other cells nobody is like another."""
    ranks = {label: cells_of(table, label)["novel", 1].rank for label in METHODS}
    others = {label: cells_of(table, label)["all", 1].rank for label in METHODS}

    assert ranks == {"LR": 1, "SN": 1, "PN": 1}
    assert others == {"PN": 1, "LR": 2, "SN": 3}


def test_the_last_bit_of_a_mean_makes_no_rank():
    one_draw = {"LR": [40.1], "SN": [40.1 + 1e-12], "PN": [30.0]}
    scores = pd.DataFrame(
        [
            row
            for label, head in heads_by_paper(METHODS).items()
            for row in rows(label, head, {("novel", 1): one_draw[label], ("all", 1): [50.0]})
        ]
    )

    found = make_table_one(scores, heads_by_paper(METHODS), METHODS, BY_PAPER)

    assert [cells_of(found, label)["novel", 1].rank for label in METHODS] == [1, 1, 3]
    assert math.isnan(cells_of(found, "LR")["novel", 1].interval)
    assert "40.1" in found.markdown()
    assert "nan" not in found.markdown() + found.text() + found.latex()


def test_differences_to_the_best_row_are_paired_by_draw(table):
    cell = cells_of(table, "LR")["all", 2]

    # LR has 39 and 41, PN 48 and 58: differences of -9 and -17.
    assert cell.difference == -13
    assert cell.difference_interval == pytest.approx(12.7062 * 4, rel=1e-4)
    # In LSL at two shots both have ± 1: the difference is the same in every draw.
    assert cells_of(table, "LR")["novel", 2].difference_interval == pytest.approx(0, abs=1e-9)
    assert cells_of(table, "PN")["all", 2].difference is None


def test_a_single_row_is_compared_with_nothing():
    found = make_table_one(SCORES, {"PN": "centroid"}, {"PN": "PN"}, BY_PAPER)

    assert found.best == "PN"
    assert cells_of(found, "PN")["novel", 1].difference is None


def test_a_row_without_scores_of_its_head_is_refused():
    with pytest.raises(ValueError, match=r"^SN has no scores with the head linear$"):
        make_table_one(SCORES, {**heads_by_paper(METHODS), "SN": "linear"}, METHODS, BY_PAPER)


def test_rows_may_have_labels_of_their_own():
    scores = SCORES.replace({"method": {"PN": "PN, tuned"}})
    methods = {"LR": "LR", "PN, tuned": "PN"}

    found = make_table_one(scores, heads_by_paper(methods), methods, BY_PAPER)

    assert found.best == "PN, tuned"
    assert cells_of(found, "PN, tuned")["novel", 1].printed == 39.4
    assert {row.label for row in found.rows} == set(methods)


def lines_of(text: str, label: str) -> list[str]:
    return [line for line in text.splitlines() if re.search(rf"\s{label}\s", line)]


def test_a_terminal_marks_the_best_and_the_second(table):
    ours, printed, differences = table.text().split("\n\n")

    (line,) = lines_of(ours, "LR")
    assert line.split()[:5] == ["Baseline", "ResNet-10", "-", "LR", "linear"]
    assert line.split()[5:] == ["[40.0]", "(40.0)", "(40.0)", "(40.0)"]
    (line,) = lines_of(ours, "SN")
    assert line.split()[5:] == ["[40.0]", "30.0", "30.0", "30.0"]
    (line,) = lines_of(printed, "SN")
    assert line.split()[5:] == ["38.9", "–", "48.7", "–"]
    (line,) = lines_of(differences, "LR")
    assert line.split()[5:] == ["+0.0±12.7", "-10.0±0.0", "-10.0±0.0", "-13.0±50.8"]
    (line,) = lines_of(differences, "PN")
    assert line.split()[5:] == ["0", "0", "0", "0"]


def test_columns_of_a_terminal_stand_apart_also_where_they_are_full():
    """With twenty shots, all classes right, and the longest names that there are."""
    names = ["AWG-cosine", "half-mean-shift", "cDeLi-GAN-PN", "FI-PMN"]
    methods = {name: name for name in names}
    scores = pd.DataFrame(
        [
            row
            for name, head in heads_by_paper(methods).items()
            for row in rows(
                name,
                head,
                {(c, k): [100.0, 100.0] for c in ("novel", "all") for k in (10, 20)},
            )
        ]
    )

    text = make_table_one(scores, heads_by_paper(methods), methods, BY_PAPER).text()

    ours, printed, differences = text.split("\n\n")
    for part in (ours, printed, differences):
        _, header, *lines = part.splitlines()
        titles = ["Method", "Representation", "Generation", "row", "head"]
        titles += ["LSL", "10", "LSL", "20", "GLSL", "10", "GLSL", "20"]
        assert header.split() == titles
        for line in lines:
            assert len(line.split()) in (9, 10), line  # a representation of two words
            assert len(line) == len(header)
    (line,) = lines_of(ours, "AWG-cosine")
    assert line.split()[:6] == ["Baseline", "AWG,", "cosine", "-", "AWG-cosine", "own"]
    # The controls are printed nowhere.
    assert not lines_of(printed, "half-mean-shift")


def test_markdown_has_printed_numbers_in_columns_of_their_own(table):
    _, ours, elsewhere, said, differences = table.markdown().split("\n\n")

    header, _, *lines = ours.splitlines()
    titles = [title.strip() for title in header.strip("|").split("|")]
    assert titles[5:] == [
        *("LSL K=1", "LSL K=2", "GLSL K=1", "GLSL K=2"),
        *("LSL K=1 printed", "LSL K=2 printed", "GLSL K=1 printed", "GLSL K=2 printed"),
    ]
    cells = [cell.strip() for cell in lines[1].strip("|").split("|")]
    assert cells[3:] == [
        *("SN", "own", "**40.0±12.7**", "30.0±12.7", "30.0±12.7", "30.0±12.7"),
        *("38.9", "–", "48.7", "–"),
    ]
    assert "<u>40.0±12.7</u>" in lines[0]
    assert "PN: LSL 39.3 54.4 66.3 71.2 73.9, GLSL 49.5 61.0 69.7 72.9 74.6" in elsewhere
    assert said == "Minus PN, paired by draw:"
    assert "-13.0±50.8" in differences
    for line in [*lines, *differences.splitlines()]:
        assert line.count("|") in (10, 14)


def test_latex_has_bold_and_underlined_numbers_and_a_rule_between_groups():
    scores = pd.concat([SCORES, pd.DataFrame(rows("DC", "linear", even(10)))])
    methods = {**METHODS, "DC": "DC"}

    text = make_table_one(scores, heads_by_paper(methods), methods, BY_PAPER).latex()

    lines = text.splitlines()
    assert r"\begin{tabular}{lllllrrrr}" in lines
    (line,) = [line for line in lines if "& LR &" in line]
    assert line == (
        r"Baseline & ResNet-10 & - & LR & linear & \textbf{40.0} & \underline{40.0} & "
        r"\underline{40.0} & \underline{40.0} \\"
    )
    assert lines.count(r"\midrule") == 2  # before the baselines, and before what came later
    assert lines[-2:] == [r"\bottomrule", r"\end{tabular}"]
    assert all(line.count("&") == 8 for line in lines if line.startswith(("Base", "Later")))


def test_names_are_escaped_for_latex():
    assert escape_latex("a_b & 50%") == r"a\_b \& 50\%"


def test_every_row_has_a_number_or_a_dash_for_all_shots():
    for name, printed in {**TABLE_1, **ELSEWHERE}.items():
        assert len(printed.novel) == len(printed.everything) == len(SHOTS) == 5, name
    with_dashes = [name for name, printed in TABLE_1.items() if None in printed.novel]
    assert with_dashes == ["SN", "MAML"]


def test_what_nobody_printed_is_not_there():
    assert printed_of("copy") is None
    assert printed_of("wDAE").at("novel", 1) == 47.99
    assert printed_of("LR") is TABLE_1["LR"]  # and not what is printed elsewhere
    assert TABLE_1["LR"].at("novel", 3) is None
    assert TABLE_1["LR"].at("base", 1) is None

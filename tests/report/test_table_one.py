"""Test Table 1 with scores that can be checked by hand, and the paper's numbers."""

import pandas as pd

from cpaan.protocol.statistics import summarise
from cpaan.report.published import CELLS, ELSEWHERE, TABLE_1, printed_of
from cpaan.report.table_one import (
    BY_PAPER,
    BY_VALIDATION,
    PAPER,
    VALIDATION,
    ranked_cells,
    rules_of,
    tables_of,
)
from helpers.frames import frame_of

METHODS = {"LR": "LR", "SN": "SN", "PN": "PN"}
COLUMNS = ("novel", "all", "all_calibrated")
HEADS_OF_PAPER = {"LR": "linear", "SN": "own", "PN": "centroid"}
LEVELS = {
    # The paper's heads are linear for LR, centroids for PN and own for SN; others are better here.
    ("LR", "linear"): {"": 40},
    ("LR", "cosine"): {"": 90},
    ("SN", "own"): {"": 30, ("novel", 1): 40},
    ("PN", "centroid"): {"": 50, ("novel", 1): 40, ("all", 2): 53},
    ("PN", "linear"): {"": 20},
}
HEADS = pd.DataFrame(
    [("SN", "own"), ("LR", "cosine"), ("LR", "linear"), ("PN", "centroid"), ("PN", "linear")],
    columns=["method", "head"],
)


TEN = ["-10.0±0.0"] * 2


def scores_of(levels=LEVELS, wobbles=(-1, 1)) -> pd.DataFrame:
    """Return two draws around each level; GLSL of PN at two shots has a wider spread."""

    def draws(method: str, cell: tuple[str, int], level: float) -> list[float]:
        wide = 5 if (method, *cell) == ("PN", "all", 2) else 1
        return [level + wide * wobble for wobble in wobbles]

    cells = [(column, shots) for column in (*COLUMNS, "base") for shots in (1, 2)]
    return frame_of(
        {
            (method, head): {cell: draws(method, cell, of.get(cell, of[""])) for cell in cells}
            for (method, head), of in levels.items()
        }
    )


def test_heads_are_by_the_paper_s_rule_or_the_best_on_validation_whatever_they_do_here():
    rules = rules_of(scores_of(), METHODS, HEADS)
    assert rules[PAPER] == HEADS_OF_PAPER
    assert rules[VALIDATION] == {"LR": "cosine", "SN": "own", "PN": "centroid"}
    assert rules["linear"] == {"LR": "linear", "PN": "linear"}, "the others lack it"

    by_paper, by_validation = tables_of(scores_of(), METHODS, HEADS)

    for table, rule in ((by_paper, BY_PAPER), (by_validation, BY_VALIDATION)):
        assert rule in table.markdown
    assert "LR & linear & \\textbf{40.0} & " in by_paper.latex
    assert "LR & cosine & \\textbf{90.0} & " in by_validation.latex
    assert "Minus LR" in by_validation.text
    assert tables_of(scores_of(), METHODS, None) == [by_paper]
    without = scores_of({key: of for key, of in LEVELS.items() if key != ("LR", "linear")})
    (only,) = tables_of(without, METHODS, HEADS)
    assert BY_VALIDATION in only.markdown, "the paper's rule lacks a row"


def test_equal_rows_share_a_rank_and_the_last_bit_of_a_mean_makes_none():
    def ranks(scores: pd.DataFrame, column: str) -> list[int]:
        cells = ranked_cells(summarise(scores), HEADS_OF_PAPER)
        return [cells[label, column, 1].rank for label in METHODS]

    assert ranks(scores_of(), "novel") == [1, 1, 1]  # all are 40
    assert ranks(scores_of(), "all") == [2, 3, 1]
    levels = {("LR", "linear"): 40.1, ("SN", "own"): 40.1 + 1e-12, ("PN", "centroid"): 30.0}
    single = scores_of({key: {"": level} for key, level in levels.items()}, wobbles=[0])
    assert ranks(single, "novel") == [1, 1, 3]
    (table,) = tables_of(single, METHODS, None)
    assert not any("nan" in form for form in table)  # from one draw


def test_a_terminal_has_ours_printed_numbers_and_differences():
    levels = {("copy, tuned", "linear"): {"": 45}, **LEVELS}
    (table,) = tables_of(scores_of(levels), {"copy, tuned": "copy", **METHODS}, None)

    ours, printed, differences = (part.splitlines() for part in table.text.split("\n\n"))

    assert ours[2].split()[-5:] == ["(45.0)"] * 5
    assert ours[3].split() == ["LR", "linear", "(40.0)", *["40.0"] * 5]
    assert len(printed) == len(ours) - 1, "nobody prints the controls"
    assert printed[3].split()[2:] == ["38.9", "–", "48.7", "–"]
    # PN is the best: (40 + 50) / 2 and 50. At two shots, GLSL of LR is 39 and 41, and
    # GLSL of PN is 48 and 58, so they differ by -9 and -17. In LSL, both draws differ equally.
    assert "Minus PN" in differences[0]
    assert differences[3].split()[2:] == ["+0.0±0.0", *TEN, "-13.0±50.8", *TEN[:1] * 2]
    assert differences[5].split()[2:] == ["–"] * 6
    (single,) = tables_of(scores_of(), {"PN": "PN"}, None)
    assert single.text.splitlines()[-1].split()[2:] == ["–"] * 6, "compared with no other row"


def test_markdown_has_printed_numbers_in_columns_of_their_own_and_latex_only_ours():
    (table,) = tables_of(scores_of(), METHODS, None)
    _, ours, elsewhere, _, differences = table.markdown.split("\n\n")

    header, _, *lines = ([x.strip() for x in line.split("|")[4:-1]] for line in ours.splitlines())
    titles = ("LSL", "GLSL", "GLSL cal.", "LSL printed", "GLSL printed")
    assert header[2:] == [f"{title} K={k}" for title in titles for k in (1, 2)]
    assert lines[1] == ["SN", "own", "**40.0±12.7**", *["30.0±12.7"] * 5, "38.9", "–", "48.7", "–"]
    # For two draws that differ by 10, the interval is t of one degree of freedom times 10 / 2.
    assert lines[2][5] == "**53.0±63.5**"
    assert lines[0][3] == "<u>40.0±12.7</u>"
    assert "PN: LSL 39.3 54.4 66.3 71.2 73.9, GLSL 49.5 61.0 69.7 72.9 74.6" in elsewhere
    assert "| LR | linear | +0.0±0.0 | -10.0±0.0 | -10.0±0.0 | -13.0±50.8 | -10" in differences
    means = r"\textbf{40.0}" + r" & \underline{40.0}" * 5 + r" \\"
    assert f"Baseline & ResNet-10 & - & LR & linear & {means}" in table.latex.splitlines()


def test_printed_rows_have_a_number_or_a_dash_for_all_shots():
    dashes = [name for name, row in {**TABLE_1, **ELSEWHERE}.items() if len(row) < len(CELLS)]
    assert dashes == ["SN", "MAML"]
    assert printed_of("copy") == {}
    assert printed_of("wDAE")["novel", 1] == 47.99
    assert printed_of("LR") is TABLE_1["LR"]  # not the numbers of other papers

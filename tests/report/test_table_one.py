"""The paper's table from scores that one can check by hand, and numbers that were printed."""

import pandas as pd
import pytest

from cpaan.report.published import ELSEWHERE, SHOTS, TABLE_1, printed_of
from cpaan.report.table_one import (
    BY_PAPER,
    BY_VALIDATION,
    TableOne,
    heads_by_paper,
    heads_by_validation,
    make_table_one,
    tables_of,
)

METHODS = {"LR": "LR", "SN": "SN", "PN": "PN"}
LEVELS = {
    # By the paper LR is linear, PN by centroids and SN its own; other heads do better here.
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


def scores_of(levels=LEVELS, wobbles=(-1, 1)) -> pd.DataFrame:
    """Return scores: two draws around a level, those of PN with GLSL at two shots wider apart."""
    rows = []
    for (method, head), of in levels.items():
        for column, shots in ((c, k) for c in ("novel", "all", "base") for k in (1, 2)):
            for draw, wobble in enumerate(wobbles):
                wide = 5 if (method, column, shots) == ("PN", "all", 2) else 1
                top5 = of.get((column, shots), of[""]) + wide * wobble
                rows.append((method, head, column, shots, draw, 0, top5 / 2, top5))
    names = ["method", "head", "column", "shots", "draw", "seed", "top1", "top5"]
    return pd.DataFrame(rows, columns=names)


@pytest.fixture
def table() -> TableOne:
    return make_table_one(scores_of(), heads_by_paper(METHODS), METHODS, BY_PAPER)


def test_by_the_paper_s_rule_the_representation_decides_the_head(table):
    assert table.head_of == {"LR": "linear", "SN": "own", "PN": "centroid"}
    assert table.cells["LR", "novel", 2].value == 40
    gans = {"a": "cCov-GAN", "b": "cCov-GAN-PN", "c": "FI-PMN"}
    assert heads_by_paper(gans) == {"a": "linear", "b": "centroid", "c": "own"}


def test_by_validation_the_head_is_the_best_there_whatever_it_does_here():
    assert heads_by_validation(HEADS) == {"LR": "cosine", "SN": "own", "PN": "centroid"}
    by_paper, by_validation = tables_of(scores_of(), METHODS, HEADS)

    assert (by_paper.rule, by_validation.rule) == (BY_PAPER, BY_VALIDATION)
    assert by_paper.cells["LR", "all", 1].value == 40
    assert by_validation.cells["LR", "all", 1].value == 90
    assert by_validation.best == "LR"
    assert len(tables_of(scores_of(), METHODS, None)) == 1


def test_means_and_intervals_are_over_draws(table):
    cell = table.cells["PN", "all", 2]

    assert cell.value == 53
    # Two draws at a distance of 10: t-quantile of one degree of freedom times 10 / 2.
    assert cell.interval == pytest.approx(12.7062 * 5, rel=1e-4)


def test_equal_rows_share_a_rank_and_the_last_bit_of_a_mean_makes_none(table):
    def ranks(of: TableOne, column: str) -> list[int]:
        return [of.cells[label, column, 1].rank for label in METHODS]

    assert ranks(table, "novel") == [1, 1, 1]  # all have 40
    assert ranks(table, "all") == [2, 3, 1]
    levels = {("LR", "linear"): 40.1, ("SN", "own"): 40.1 + 1e-12, ("PN", "centroid"): 30.0}
    scores = scores_of({key: {"": level} for key, level in levels.items()}, wobbles=[0])
    single = make_table_one(scores, heads_by_paper(METHODS), METHODS, BY_PAPER)
    assert ranks(single, "novel") == [1, 1, 3]
    assert "nan" not in single.markdown() + single.text() + single.latex()  # one draw


def test_differences_to_the_best_row_are_paired_by_draw(table):
    # PN: (40 + 50) / 2 and (50 + 53) / 2; LR: 40 everywhere.
    assert table.best == "PN"
    # LR has 39 and 41, PN 48 and 58: differences of -9 and -17.
    assert table.differences["LR", "all", 2].value == -13
    assert table.differences["LR", "all", 2].interval == pytest.approx(12.7062 * 4, rel=1e-4)
    # In LSL at two shots both have ± 1: the difference is the same in every draw.
    assert table.differences["LR", "novel", 2].interval == pytest.approx(0, abs=1e-9)
    single = make_table_one(scores_of(), {"PN": "centroid"}, {"PN": "PN"}, BY_PAPER)
    assert (single.best, single.differences) == ("PN", {})


def test_a_row_without_scores_of_its_head_is_refused():
    heads = {**heads_by_paper(METHODS), "SN": "linear"}
    with pytest.raises(ValueError, match=r"^SN has no scores with the head linear$"):
        make_table_one(scores_of(), heads, METHODS, BY_PAPER)


def test_a_terminal_has_ours_printed_numbers_and_differences():
    levels = {("copy, tuned", "linear"): {"": 45}, **LEVELS}
    methods = {"copy, tuned": "copy", **METHODS}
    table = make_table_one(scores_of(levels), heads_by_paper(methods), methods, BY_PAPER)

    ours, printed, differences = (part.splitlines() for part in table.text().split("\n\n"))

    assert ours[0] == f"Top-5, %, {BY_PAPER}; [best], (second best)"
    assert ours[2].split()[-5:] == ["linear", "[45.0]", "(45.0)", "(45.0)", "(45.0)"]
    assert ours[3].split() == [
        *("Baseline", "ResNet-10", "-", "LR", "linear"), *("(40.0)", "40.0", "40.0", "40.0")
    ]  # fmt: skip
    assert len(printed) == len(ours) - 1, "nobody prints the controls"
    assert printed[3].split()[5:] == ["38.9", "–", "48.7", "–"]
    assert differences[0] == "Minus PN, paired by draw, ± 95 % interval"
    assert differences[3].split()[5:] == ["+0.0±0.0", "-10.0±0.0", "-10.0±0.0", "-13.0±50.8"]
    assert differences[5].split()[5:] == ["–"] * 4


def test_markdown_has_printed_numbers_in_columns_of_their_own_and_latex_only_ours(table):
    _, ours, elsewhere, said, differences = table.markdown().split("\n\n")

    header, _, *lines = ([x.strip() for x in line.split("|")[4:-1]] for line in ours.splitlines())
    titles = ("LSL", "GLSL", "LSL printed", "GLSL printed")
    assert header[2:] == [f"{title} K={k}" for title in titles for k in (1, 2)]
    assert lines[1] == [
        *("SN", "own", "**40.0±12.7**", "30.0±12.7", "30.0±12.7", "30.0±12.7"),
        *("38.9", "–", "48.7", "–"),
    ]
    assert lines[0][3] == "<u>40.0±12.7</u>"
    assert "PN: LSL 39.3 54.4 66.3 71.2 73.9, GLSL 49.5 61.0 69.7 72.9 74.6" in elsewhere
    assert said == "Minus PN, paired by draw:"
    assert "| LR | linear | +0.0±0.0 | -10.0±0.0 | -10.0±0.0 | -13.0±50.8 |" in differences
    means = r"\textbf{40.0} & \underline{40.0} & \underline{40.0} & \underline{40.0} \\"
    assert f"Baseline & ResNet-10 & - & LR & linear & {means}" in table.latex().splitlines()


def test_printed_rows_have_a_number_or_a_dash_for_all_shots():
    for name, printed in {**TABLE_1, **ELSEWHERE}.items():
        assert len(printed.novel) == len(printed.everything) == len(SHOTS) == 5, name
    assert [name for name, printed in TABLE_1.items() if None in printed.novel] == ["SN", "MAML"]
    assert printed_of("copy") is None
    assert printed_of("wDAE").at("novel", 1) == 47.99
    assert printed_of("LR") is TABLE_1["LR"]  # and not the numbers printed elsewhere
    assert TABLE_1["LR"].at("novel", 3) is TABLE_1["LR"].at("base", 1) is None

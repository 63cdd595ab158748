"""Table 1 as data for the page's switches."""

from dataclasses import replace

import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.table_data import FIXED, PAPER, SEEDED, VALIDATION, Cell, make_table_data
from cpaan.report.published import TABLE_1
from helpers.report_folders import write_report


@pytest.fixture
def table(tmp_path):
    return make_table_data(read_contents(write_report(tmp_path)))


def test_rows_stand_where_the_paper_has_them_and_variants_nowhere(table):
    assert [(place.name, place.group, place.representation) for place in table.places] == [
        ("none", "Control", "ResNet-10"),
        ("copy", "Control", "ResNet-10"),
        ("MAML", "Baseline", "MAML"),
        ("PN", "Baseline", "PN"),
        ("cCov-GAN-PN", "CP-AAN", "PN"),
    ]
    assert [place.name for place in table.places if place.is_ours] == ["cCov-GAN-PN"]


def test_means_are_those_of_the_scores(table):
    view = table.view(PAPER)

    # Level 40 of PN by centroids, 5 for GLSL, 10 for five shots; draws and seeds have mean zero.
    assert view.cells["PN", "all", 5].mean == pytest.approx(55)
    assert view.cells["none", "novel", 1].mean == pytest.approx(32)  # linear on raw features
    assert table.view(PAPER, "top1").cells["PN", "all", 5].mean == pytest.approx(45)


def test_means_and_intervals_are_over_the_same_draws(tmp_path):
    contents = read_contents(write_report(tmp_path))
    contents.scores.loc[contents.scores["draw"] < contents.num_fixed, "top5"] += 3.0

    table = make_table_data(contents)

    assert table.draws == {SEEDED: 3, FIXED: 2}
    seeded, fixed = (
        table.views[PAPER, "top5", kind].cells["PN", "novel", 1] for kind in table.draws
    )
    # Draws -2, 0 and 2 have the deviation 2; t of two degrees of freedom is 4.303.
    assert seeded.mean == pytest.approx(40)
    assert seeded.interval == pytest.approx(4.303 * 2 / 3**0.5, rel=1e-3)
    # Draws -1 and 1 have the deviation root 2; t of one degree of freedom is 12.706.
    assert fixed.mean == pytest.approx(43)
    assert fixed.interval == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-3)
    assert table.default.cells["PN", "novel", 1] == seeded


def test_draws_of_one_kind_leave_nothing_to_choose(tmp_path):
    contents = read_contents(write_report(tmp_path))

    assert make_table_data(replace(contents, num_fixed=5)).draws == {FIXED: 5}
    assert make_table_data(replace(contents, num_fixed=0)).draws == {SEEDED: 5}


def test_the_best_has_rank_one_among_the_rows_of_a_view(table):
    def ranks(rule: str) -> dict[str, int]:
        view = table.view(rule)
        return {name: view.cells[name, "novel", 1].rank for name in view.head_of}

    # By the paper: linear, linear, own, centroid, centroid.
    assert ranks(PAPER) == {"none": 4, "copy": 5, "MAML": 3, "PN": 2, "cCov-GAN-PN": 1}
    assert ranks("linear") == {"none": 3, "copy": 4, "PN": 2, "cCov-GAN-PN": 1}
    assert ranks("own") == {"MAML": 1}


def test_equal_rows_share_a_rank(tmp_path):
    folder = write_report(tmp_path)
    contents = read_contents(folder)
    equal = contents.scores["method"].isin(["PN", "MAML"])
    contents.scores.loc[equal, "top5"] = 50.0 + 1e-12 * contents.scores["seed"]

    cells = make_table_data(contents).view(PAPER).cells

    ranks = {name: cells[name, "novel", 1].rank for name in ("PN", "MAML", "cCov-GAN-PN")}
    assert ranks == {"PN": 1, "MAML": 1, "cCov-GAN-PN": 3}


def test_heads_chosen_on_validation_may_be_others_than_the_paper_s(table):
    assert table.view(PAPER).head_of["cCov-GAN-PN"] == "centroid"
    assert table.view(VALIDATION).head_of == {
        "none": "linear",
        "copy": "centroid",
        "MAML": "own",
        "PN": "centroid",
        "cCov-GAN-PN": "linear",
    }


def test_only_rules_that_give_anyone_a_head_are_offered(table):
    assert list(table.rules) == [PAPER, VALIDATION, "centroid", "linear", "own"]
    assert table.default_rule == PAPER


def test_a_report_with_another_head_than_the_paper_s_shows_that_first(tmp_path):
    contents = read_contents(write_report(tmp_path, heads=None))
    scores = contents.scores[contents.scores["head"] == "centroid"]

    table = make_table_data(replace(contents, scores=scores))

    # The paper's rule has scores of PN and cCov-GAN-PN alone.
    assert set(table.view(PAPER).head_of) == {"PN", "cCov-GAN-PN"}
    assert table.default_rule == "centroid"


def test_printed_numbers_are_those_of_the_paper(table):
    printed = {place.name: place.printed for place in table.places}

    assert printed["none"] == {}
    assert printed["PN"]["novel", 1] == TABLE_1["PN"].novel[0]
    assert printed["cCov-GAN-PN"]["all", 5] == TABLE_1["cCov-GAN-PN"].everything[2]
    assert ("novel", 2) not in printed["MAML"]  # a dash in the paper
    assert table.has_printed


def test_the_page_gets_rounded_lists_in_the_order_of_rows_and_shots(table):
    data = table.for_page()

    assert data["rows"] == [place.name for place in table.places]
    assert data["shots"] == [1, 5]
    pn = data["views"]["paper top5 seeded"][3]
    assert pn["head"] == "centroid"
    assert pn["cells"]["all"] == [[45.0, 5.0, 2], [55.0, 5.0, 2]]
    assert data["views"]["linear top5 seeded"][2] is None  # MAML has its own classifier only


def test_a_single_seeded_draw_has_no_interval(tmp_path):
    contents = read_contents(write_report(tmp_path))
    contents = replace(contents, scores=contents.scores[contents.scores["draw"] <= 2])

    cell = make_table_data(contents).default.cells["PN", "novel", 1]

    # The first seeded draw is two below the others.
    assert cell == Cell(mean=pytest.approx(38), interval=None, rank=2)

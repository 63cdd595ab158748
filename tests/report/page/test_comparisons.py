"""Every row against every other."""

from dataclasses import replace

import pytest

from cpaan.protocol.statistics import paired_differences
from cpaan.report.page.comparisons import Difference, compare_rows
from cpaan.report.page.contents import read_contents
from cpaan.report.page.table_data import PAPER, VALIDATION, make_table_data
from helpers.report_folders import write_report


@pytest.fixture
def contents(tmp_path):
    contents = read_contents(write_report(tmp_path))
    # Alike but for draw 3, where PN has 3 more: differences have a spread.
    is_one = (contents.scores["method"] == "PN") & (contents.scores["draw"] == 3)
    contents.scores.loc[is_one, "top5"] += 3
    return contents


def test_differences_are_paired_over_the_seeded_draws(contents):
    found = compare_rows(contents, make_table_data(contents)).of_rule[PAPER]

    # 41 minus 40, and minus 3 in one of three draws.
    pair = found["cCov-GAN-PN", "PN", "novel", 1]
    assert pair.difference == pytest.approx(0)
    seeded = contents.seeded[contents.seeded["head"] == "centroid"]
    rows = paired_differences(seeded, "PN").set_index(["method", "column", "shots"])
    assert pair.interval == pytest.approx(rows.loc[("cCov-GAN-PN", "novel", 1), "top5_interval"])


def test_rows_are_compared_with_the_head_that_the_rule_gives_each(contents):
    found = compare_rows(contents, make_table_data(contents)).of_rule

    assert found[PAPER]["cCov-GAN-PN", "none", "all", 5].difference == pytest.approx(41 - 32)
    assert found[VALIDATION]["cCov-GAN-PN", "none", "all", 5].difference == pytest.approx(45 - 32)
    assert found[VALIDATION]["cCov-GAN-PN", "copy", "all", 5].difference == pytest.approx(45 - 36)


def test_a_difference_the_other_way_has_the_other_sign_and_the_same_interval(contents):
    found = compare_rows(contents, make_table_data(contents)).of_rule[PAPER]

    there, back = found["PN", "MAML", "novel", 5], found["MAML", "PN", "novel", 5]
    assert there.difference == -back.difference == pytest.approx(6)
    assert there.interval == back.interval
    assert ("PN", "PN", "novel", 5) not in found


@pytest.mark.parametrize(
    ("difference", "interval", "side"),
    [(1.0, 0.9, 1), (-1.0, 0.9, -1), (1.0, 1.0, 0), (0.2, 0.9, 0), (5.0, None, 0)],
)
def test_a_side_is_what_the_whole_interval_is_on(difference, interval, side):
    assert Difference(difference, interval).side == side


def test_the_page_gets_a_square_of_rows_with_the_columns_in_a_row(contents):
    table = make_table_data(contents)

    data = compare_rows(contents, table).for_page(table)

    assert set(data) == {PAPER, VALIDATION}
    names = [place.name for place in table.places]
    subject, other = names.index("MAML"), names.index("none")
    # LSL and GLSL, one and five shots each: 35 of its own classifier minus 32.
    assert data[PAPER][subject][other] == [[3.0, 0.0, 1]] * 4
    assert data[PAPER][subject][subject] == [None] * 4


def test_a_report_of_one_row_has_nothing_to_compare(contents):
    contents = replace(contents, scores=contents.scores[contents.scores["method"] == "PN"])

    table = make_table_data(contents)

    assert compare_rows(contents, table).of_rule[table.default_rule] == {}

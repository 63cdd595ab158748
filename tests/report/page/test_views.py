"""Test Table 1 as data for the page's switches, and the comparison of all pairs of rows."""

from dataclasses import replace
from math import isnan

import pytest

from cpaan.protocol.statistics import Estimate
from cpaan.report.page.views import FIXED, PAPER, SEEDED, VALIDATION, make_views


def test_views_have_means_and_ranks_by_rule_and_metric_and_the_fullest_rule_comes_first(contents):
    table = make_views(contents)

    def cell(rule: str, name: str, column: str, shots: int, metric: str = "top5"):
        return table.views[rule, metric, SEEDED][name, column, shots]

    # PN with centroids: level 40, +5 for GLSL, +10 for five shots; draws and seeds have mean zero.
    assert cell(PAPER, "PN", "all", 5).value == pytest.approx(55)
    assert cell(PAPER, "PN", "all", 5, "top1").value == pytest.approx(45)
    assert cell(PAPER, "none", "novel", 1).value == pytest.approx(32)  # linear on raw features
    ranks = {
        rule: {name: cell(rule, name, "novel", 1).rank for name in table.rules[rule]}
        for rule in (PAPER, "linear", "own")
    }
    assert ranks[PAPER] == {"none": 4, "copy": 5, "MAML": 3, "PN": 2, "cCov-GAN-PN": 1}
    assert ranks["linear"] == {"none": 3, "copy": 4, "PN": 2, "cCov-GAN-PN": 1}
    assert ranks["own"] == {"MAML": 1}
    assert {name for name, _, _ in table.printed} == {"MAML", "PN", "cCov-GAN-PN"}
    assert list(table.rules) == [PAPER, VALIDATION, "centroid", "linear", "own"]
    assert (table.default_rule, table.ranked[:2]) == (PAPER, ["cCov-GAN-PN", "PN"])
    # Without linear scores, the paper's rule would leave only two rows.
    only = contents.scores[contents.scores["head"] == "centroid"]
    table = make_views(replace(contents, scores=only, heads=contents.heads.head(0)))
    assert (table.default_rule, len(table.rules[PAPER])) == ("centroid", 2)


def test_means_and_intervals_are_over_the_same_draws(contents):
    contents.scores.loc[contents.scores["draw"] < contents.num_fixed, "top5"] += 3.0

    table = make_views(contents)

    assert table.draws == {SEEDED: 3, FIXED: 2}
    seeded, fixed = (table.views[PAPER, "top5", kind]["PN", "novel", 1] for kind in table.draws)
    # Draws -2, 0 and 2 and seeds -0.5 and 0.5 have the mean squares 2 * 4 and 3 * 0.5.
    of_seeded = Estimate(40, (9.5 / 6) ** 0.5, (2, 1), (8 / 9.5, 1.5 / 9.5))
    assert seeded[:2] == pytest.approx((40, of_seeded.interval()))
    # Draws -1 and 1 and the same seeds have the mean squares 2 * 2 and 2 * 0.5.
    of_fixed = Estimate(43, (5 / 4) ** 0.5, (1, 1), (4 / 5, 1 / 5))
    assert fixed[:2] == pytest.approx((43, of_fixed.interval()))
    assert table.cells["PN", "novel", 1] == seeded
    single = replace(contents, scores=contents.scores[contents.scores["draw"] <= 2])
    assert isnan(make_views(single).cells["PN", "novel", 1].interval)


def test_rows_are_compared_by_each_rule_and_the_page_gets_rounded_lists(contents):
    table = make_views(contents)

    gaps, data = table.differences[PAPER], table.for_page()
    there, back = gaps["MAML"]["PN", "novel", 5], gaps["PN"]["MAML", "novel", 5]
    assert there.value == -back.value == pytest.approx(6 - 1)
    assert ("PN", "novel", 5) not in gaps["PN"]
    gaps = table.differences[VALIDATION]
    assert gaps["copy"]["cCov-GAN-PN", "all", 5].value == pytest.approx(45 - 36)
    assert data["draws"] == [SEEDED, FIXED]
    pn = data["views"]["paper top5 seeded"][3]
    assert pn == {"head": "centroid", "cells": {**pn["cells"], "all": [[45, 7.1, 2], [55, 7.1, 2]]}}
    assert data["views"]["linear top5 seeded"][2] is None  # MAML has only its own classifier
    assert set(data["pairs"]) == {PAPER, VALIDATION}
    # LSL and both GLSL, one and five shots each: MAML has 35 of its own classifier, none 32.
    compared = ["novel", "all", "all_calibrated"]
    assert data["pairs"][PAPER][0][2] == dict.fromkeys(compared, [[3.0, 0.0, 1]] * 2)
    assert data["pairs"][PAPER][2][2] == dict.fromkeys(compared, [None] * 2)
    single = contents.scores[contents.scores["method"] == "PN"]
    assert make_views(replace(contents, scores=single)).differences[PAPER] == {"PN": {}}


def test_a_difference_with_a_single_training_uses_its_seed_alone(contents):
    """A row of one training, such as one as published, says nothing about other seeds."""
    scores = contents.scores
    scores.loc[(scores["seed"] == 4) & (scores["method"] == "PN"), "top5"] += 6.0
    kept = (scores["seed"] == 3) | ~scores["method"].isin(["cCov-GAN-PN", "copy"])
    rows = tuple(
        replace(row, seeds=(3,)) if row.name in ("cCov-GAN-PN", "copy") else row
        for row in contents.rows
    )

    once = replace(contents, scores=scores[kept], rows=rows)

    gaps = make_views(once).differences[PAPER]["PN"]
    assert once.trained_once == {"cCov-GAN-PN"}, "copy trains nothing"
    assert gaps["cCov-GAN-PN", "novel", 1].value == pytest.approx(41 - 40)
    # Without training, the one seed is compared with both of PN.
    assert gaps["copy", "novel", 1].value == pytest.approx(30.5 - (39.5 + 46.5) / 2)

"""Test the headline that a report generates from its claims and its table."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.headline import Headline, make_headline
from cpaan.report.page.page import Page, gains_of, judge
from cpaan.report.page.views import make_views
from helpers.report_folders import write_report


def page_of(contents) -> Page:
    table = make_views(contents)
    headline = make_headline(contents, table, gains_of(contents, table), judge(contents, table))
    return Page(contents, table, headline, None, [], [], [])


def headline_of(contents) -> Headline:
    return page_of(contents).headline


@pytest.mark.parametrize(
    ("points", "draws", "relation", "gap", "verdict"),
    [
        (-2, range(5), "scores higher than", (2, 0), "confirmed"),
        (2, range(5), "scores lower than", (-2, 0), "opposite"),
        # A small negative difference is not called opposite.
        (0.3, range(5), "is within 0.5 points of", (-0.3, 0), "not found"),
        # Of three draws, only the last differs: the interval is t times the standard error.
        (0.24, [4], "is within 0.5 points of", (-0.08, 0.344), "not found"),
        (30, [4], "is not shown to differ from", (-10, 43.03), "undecided"),
    ],
)
def test_the_finding_is_the_verdict_on_a_headline_claim(
    contents, add_row, points, draws, relation, gap, verdict
):
    page = page_of(add_row(contents, "copy-PN", points, draws))

    (claim,) = page.headline.claims
    (part,) = claim.judgement.parts
    assert part.gap[:2] == pytest.approx(gap, abs=0.005)
    assert claim.judgement.verdict == verdict
    assert f"cCov-GAN-PN {relation} copy-PN (" in page.sentences[0]
    assert part.gap.text().replace(" ", "\N{NO-BREAK SPACE}") in page.sentences[0]


def test_a_table_begins_with_its_headline_claims_and_the_gains_of_controls(contents, add_row):
    study = add_row(add_row(contents, "copy-PN", 2), "CP-AAN+")
    # Neither a better generator nor a row as published takes their place.
    study = add_row(add_row(study, "cDeLi-GAN-PN", 9), "cCov-GAN-PN, as published", 9)
    study = add_row(study, "none-PN", -1)

    headline = headline_of(study)

    judgements = [claim.judgement for claim in headline.claims]
    gaps = {judgement.claim.name: judgement.parts[0].gap.value for judgement in judgements}
    assert gaps == pytest.approx({"cCov-GAN-PN over copy-PN": -2, "CP-AAN+ over copy": 14})
    assert headline.best is None
    # By the linear heads: CP-AAN+ has 45, copy 31 and none 32.
    gains = {name: gain.value for name, gain in headline.control_gains.items()}
    assert gains == pytest.approx({"copy-PN": 3, "copy": -1})
    better = headline_of(add_row(study, "mean-shift-PN", 4))
    assert list(better.control_gains) == ["copy-PN", "mean-shift-PN", "copy"], "a better control"


def test_without_headline_claims_the_two_best_rows_are_compared(contents, add_row):
    study = add_row(add_row(contents, "cDeLi-GAN-PN", 3), "cDeLi-GAN-PN, as published", 9)

    page = page_of(study)

    names, gap = page.headline.best
    assert (names[:2], len(names)) == (["cDeLi-GAN-PN", "cCov-GAN-PN"], 6)
    assert gap.value == pytest.approx(3)
    assert len(page.sentences) == 1
    alone = page_of(replace(contents, rows=contents.rows[3:4]))
    assert alone.headline.best == (["PN"], None)
    assert "PN is the only row" in alone.sentences[0]


def test_a_difference_with_a_single_training_is_over_draws_alone(contents, add_row):
    study = add_row(contents, "copy-PN", 2)
    is_once = study.scores["method"].isin(["copy-PN", "cCov-GAN-PN"]) & (study.scores["seed"] == 4)

    page = page_of(replace(study, scores=study.scores[~is_once]))

    (claim,) = page.headline.claims
    assert claim.judgement.deciding == ()
    assert "over draws alone" in page.sentences[0]


@pytest.mark.parametrize(
    ("points", "draws", "relation", "gap"),
    [
        (0, range(5), "beats", (2, 0)),
        (4, range(5), "scores lower than", (-2, 0)),
        (6, [4], "is not shown to differ from", (0, 8.61)),
    ],
)
def test_a_study_of_one_row_says_whether_its_winner_beats_the_default_settings(
    tmp_path, add_row, points, draws, relation, gap
):
    study = read_contents(write_report(tmp_path, is_table=False))
    study = add_row(study, "cCov-GAN-PN, default settings", points, draws)
    study = add_row(study, "cCov-GAN-PN, best", 2)

    page = page_of(study)

    assert page.headline.search.gap[:2] == pytest.approx(gap, abs=0.005)
    assert f"{relation} the default settings of cCov-GAN-PN" in page.sentences[0]
    assert "LSL and calibrated GLSL over all shots" in page.sentences[0]
    assert page.headline.best.names[0] == "cCov-GAN-PN, best"
    older = replace(study, scores=study.scores[study.scores["column"] != "all_calibrated"])
    assert "LSL and GLSL over all shots" in page_of(older).sentences[0]
    won = replace(study, best={"cCov-GAN-PN": {**study.best["cCov-GAN-PN"], "trial": 0}})
    assert headline_of(won) == page.headline, "with other settings of the sweep"
    alone = tuple(row for row in study.rows if row.settings != "default settings")
    assert headline_of(replace(won, rows=alone)).search == ("cCov-GAN-PN", None)
    assert "found no settings that" in page_of(replace(won, rows=alone)).sentences[0]


def test_the_length_of_training_is_that_of_gans_here_in_the_paper_and_in_a_trial(contents):
    assert headline_of(contents).training is None
    best = {**contents.best["cCov-GAN-PN"], "training": {"num_episodes": 3000}}
    trained = replace(contents, best={**contents.best, "cCov-GAN-PN": best})
    trained.studies["cCov-GAN-PN"]["config"]["report_length"] = 10
    sweep = [{"mixing_shots": shots, "score": 40.0} for shots in (2.0, 0.25, 0.5)]
    best |= {"sweep": sweep, "swept": {"mixing_shots": 0.25}}
    lengths = headline_of(trained).training

    assert lengths == ([3000], 100_000, [300], {0.25: ["cCov-GAN-PN"]})
    best["swept"] = {"mixing_shots": 0.5}
    assert headline_of(trained).training.lowest_weights == {}


@pytest.mark.parametrize(
    ("copies", "ends"),
    [([48.0, 68.0, 58.0], (2, 2)), ([48.0, 72.0, 60.0], (-2, 2))],  # differences by class
)
def test_with_scores_by_class_the_finding_has_a_bootstrap_over_classes(
    contents, add_row, copies, ends
):
    study, rows = add_row(contents, "copy-PN", 2), ("cCov-GAN-PN", "copy-PN")
    assert headline_of(study).claims[0].over_classes is None, "the report did not keep them"
    frames = [
        pd.DataFrame({"method": name, "head": "centroid", "class": [*"cde"], "top5": top5})
        for name, top5 in zip(rows, ([50.0, 70.0, 60.0], copies), strict=True)
    ]

    page = page_of(replace(study, classes=pd.concat(frames)))

    assert page.headline.claims[0].over_classes == pytest.approx(ends)
    assert ("which includes zero" in page.sentences[1]) == (ends[0] < 0)

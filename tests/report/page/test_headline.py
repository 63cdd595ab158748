"""Test the headline that a report generates from its claims and its table."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.headline import make_headline
from cpaan.report.page.page import gains_of, judge
from cpaan.report.page.views import make_views
from helpers.report_folders import write_report


def headline_of(contents):
    """Return the headline, and its sentences after the first."""
    table = make_views(contents)
    headline = make_headline(contents, table, gains_of(contents, table), judge(contents, table))
    finding, *beside = [
        text.replace("\N{NO-BREAK SPACE}", " ") for text in (headline.finding, *headline.beside)
    ]
    return headline._replace(finding=finding), beside


def raised(contents, name: str, points: float, draws=None):
    """Return the report with another level of a row, in some draws or all."""
    scores = contents.scores.copy()
    is_raised = scores["method"] == name
    if draws is not None:
        is_raised &= scores["draw"].isin(draws)
    scores.loc[is_raised, "top5"] += points
    return replace(contents, scores=scores)


def with_row(contents, name: str, points: float, draws=None):
    """Add a row with the scores of cCov-GAN-PN and some points."""
    scores = contents.scores[contents.scores["method"] == "cCov-GAN-PN"].assign(method=name)
    ours = next(row for row in contents.rows if row.name == "cCov-GAN-PN")
    rows = (*contents.rows, replace(ours, name=name, method=name.partition(",")[0]))
    scores = pd.concat([contents.scores, scores], ignore_index=True)
    return raised(replace(contents, rows=rows, scores=scores), name, points, draws)


@pytest.mark.parametrize(
    ("points", "draws", "relation", "number", "verdict"),
    [
        (-2, None, "scores higher than", "+2.00 ± 0.00", "confirmed"),
        (2, None, "scores lower than", "−2.00 ± 0.00", "opposite"),
        # A small negative difference is not called opposite.
        (0.3, None, "is within 0.5 points of", "−0.30 ± 0.00", "not found"),
        # Of three draws, only the last differs: the interval is t times the standard error.
        (0.24, [4], "is within 0.5 points of", "−0.08 ± 0.34", "not found"),
        (30, [4], "is not shown to differ from", "−10.00 ± 43.03", "undecided"),
    ],
)
def test_the_finding_has_the_words_of_its_verdict(
    contents, points, draws, relation, number, verdict
):
    headline, beside = headline_of(with_row(contents, "copy-PN", points, draws))

    assert f"cCov-GAN-PN {relation} copy-PN (" in headline.finding
    assert f"): {number} points (LSL K = 1, centroid head; verdict: {verdict})" in headline.finding
    assert "copy-PN" in beside[0], "the gain of copies over no augmentation"


def test_a_table_begins_with_its_headline_claims_and_the_gains_of_controls(contents):
    study = with_row(with_row(contents, "copy-PN", 2), "CP-AAN+", 0)
    # Neither a better generator nor a row as published takes their place.
    study = with_row(with_row(study, "cDeLi-GAN-PN", 9), "cCov-GAN-PN, as published", 9)

    headline, beside = headline_of(with_row(study, "none-PN", -1))

    assert "cCov-GAN-PN scores lower than copy-PN" in headline.finding
    # By the linear heads: CP-AAN+ has 45, copy 31 and none 32.
    assert "CP-AAN+ scores higher than copy (" in beside[0]
    assert beside[1].endswith("copy-PN +3.00 ± 0.00; copy −1.00 ± 0.00.")
    _, beside = headline_of(with_row(study, "mean-shift-PN", 4))
    assert "copy-PN +3.00 ± 0.00; mean-shift-PN +5.00 ± 0.00; copy" in beside[1], "a better control"


def test_a_row_as_published_does_not_stand_in_for_the_searched_one(contents):
    def is_judged(name: str) -> bool:
        study = with_row(contents, name, 3)
        judgements = judge(study, make_views(study))
        return "CP-AAN+-PN over cCov-GAN-PN" in {each.claim.name for each in judgements}

    assert is_judged("CP-AAN+-PN")
    assert not is_judged("CP-AAN+-PN, as published")


def test_without_headline_claims_the_two_best_rows_are_compared(contents):
    study = with_row(with_row(contents, "cDeLi-GAN-PN", 3), "cDeLi-GAN-PN, as published", 9)

    headline, beside = headline_of(study)

    assert "cDeLi-GAN-PN − cCov-GAN-PN is +3.00 ± 0.00" in headline.finding
    assert "6 rows" in headline.finding
    assert beside == []
    alone = replace(contents, rows=contents.rows[3:4])
    assert headline_of(alone)[0].finding.startswith("PN is the only row")


def test_a_difference_with_a_single_training_is_over_draws_alone(contents):
    study = with_row(contents, "copy-PN", 2)
    is_second, is_copy = study.scores["seed"] == 4, study.scores["method"] == "copy-PN"
    is_ours = study.scores["method"] == "cCov-GAN-PN"
    once = replace(study, scores=study.scores[~(is_second & (is_copy | is_ours))])

    assert (
        "−2.00 ± 0.00 points (LSL K = 1, centroid head; over draws" in headline_of(once)[0].finding
    )


@pytest.mark.parametrize(
    ("points", "draws", "words", "number"),
    [
        (0, None, "winner beats the default settings of cCov-GAN-PN", "+2.00 ± 0.00"),
        (4, None, "scores lower than the default", "−2.00 ± 0.00"),
        (6, [4], "is not shown to differ", "+0.00 ± 8.61"),
    ],
)
def test_a_study_of_one_row_says_whether_its_winner_beats_the_default_settings(
    tmp_path, points, draws, words, number
):
    study = read_contents(write_report(tmp_path, is_table=False))
    study = with_row(study, "cCov-GAN-PN, default settings", points, draws)
    study = with_row(study, "cCov-GAN-PN, best", 2)

    headline, beside = headline_of(study)

    assert words in headline.finding
    assert f"{number} points (mean of LSL and calibrated GLSL over all shots)" in headline.finding
    assert beside[0].startswith("cCov-GAN-PN, best has the highest mean")
    older = replace(study, scores=study.scores[study.scores["column"] != "all_calibrated"])
    assert "LSL and GLSL over all shots" in headline_of(older)[0].finding
    won = replace(study, best={"cCov-GAN-PN": {**study.best["cCov-GAN-PN"], "trial": 0}})
    assert headline_of(won)[0].finding == headline.finding, "with other settings of the sweep"
    alone = tuple(row for row in study.rows if not row.name.endswith("default settings"))
    assert "found no settings that" in headline_of(replace(won, rows=alone))[0].finding


def test_the_length_of_training_is_that_of_gans_here_in_the_paper_and_in_a_trial(contents):
    assert headline_of(contents)[0].training is None
    best = {**contents.best["cCov-GAN-PN"], "training": {"num_episodes": 3000}}
    trained = replace(contents, best={**contents.best, "cCov-GAN-PN": best})
    trained.studies["cCov-GAN-PN"]["config"]["report_length"] = 10
    sweep = [{"mixing_shots": shots, "score": 40.0} for shots in (2.0, 0.25, 0.5)]
    best |= {"sweep": sweep, "swept": {"mixing_shots": 0.25}}

    lengths = headline_of(trained)[0].training

    assert lengths == ("3,000", "100,000", "300", {0.25: ["cCov-GAN-PN"]})
    best["swept"] = {"mixing_shots": 0.5}
    assert headline_of(trained)[0].training.lowest_weights == {}


def test_with_scores_by_class_the_finding_has_a_bootstrap_over_classes(contents):
    study = with_row(contents, "copy-PN", 2)

    def beside(copies: list[float]) -> str:
        scores = {"cCov-GAN-PN": [50.0, 70.0, 60.0], "copy-PN": copies}
        frames = [
            pd.DataFrame({"method": name, "head": "centroid", "class": [*"cde"], "top5": top5})
            for name, top5 in scores.items()
        ]
        return headline_of(replace(study, classes=pd.concat(frames)))[1][0]

    assert "gives +2.00 to +2.00." in beside([48.0, 68.0, 58.0]), "all classes differ by two points"
    assert "gives −2.00 to +2.00, which includes zero" in beside([48.0, 72.0, 60.0])
    assert "bootstrap" not in headline_of(study)[1][0], "the report did not keep them"

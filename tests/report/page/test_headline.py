"""Test the headline that a report generates from its numbers."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.headline import make_headline
from cpaan.report.page.page import claims_of
from cpaan.report.page.views import make_views
from helpers.report_folders import write_report


def headline_of(contents):
    table = make_views(contents)
    headline = make_headline(contents, table, claims_of(contents, table))
    beside = " ".join(headline.beside).replace("\N{NO-BREAK SPACE}", " ")
    return headline.finding.replace("\N{NO-BREAK SPACE}", " "), beside, headline


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


WHERE = "points (LSL, one shot, centroid head; verdict:"


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
    found, beside, _ = headline_of(with_row(contents, "copy-PN", points, draws))

    copies = "copy-PN (copies of related base examples)"
    numbers = f"{number} {WHERE} {verdict})."
    assert found == f"On these features, cCov-GAN-PN {relation} {copies}: {numbers}"
    assert beside == ""


def test_a_table_has_the_primary_comparisons_alone(contents):
    study = with_row(with_row(contents, "copy-PN", 2), "CP-AAN+", 0)
    # Neither a better generator nor a row as published is picked.
    study = with_row(with_row(study, "cDeLi-GAN-PN", 9), "cCov-GAN-PN, as published", 9)

    found, beside, _ = headline_of(with_row(study, "none-PN", -1))

    assert "cCov-GAN-PN scores lower than copy-PN" in found
    # By the linear heads: CP-AAN+ has 45, copy 31 and none 32.
    assert beside == (
        "CP-AAN+ scores higher than copy (copies of related base examples): +14.00 ± 0.00 points "
        "(LSL, one shot, linear head; verdict: confirmed). Augmentation itself, uncorrected: "
        "copy-PN − none-PN is +3.00 ± 0.00; copy − none is −1.00 ± 0.00."
    )


def test_a_control_that_is_better_than_copies_is_named_too(contents):
    study = with_row(with_row(contents, "copy-PN", -2), "mean-shift-PN", 1)

    found, beside, _ = headline_of(study)

    assert "cCov-GAN-PN scores higher than copy-PN" in found
    assert beside.startswith("cCov-GAN-PN scores lower than mean-shift-PN")
    assert "centroid head; uncorrected)" in beside


def test_a_row_as_published_does_not_stand_in_for_the_searched_one(contents):
    def is_judged(name: str) -> bool:
        study = with_row(contents, name, 3)
        return "CP-AAN+-PN over cCov-GAN-PN" in {
            claim.name for claim in claims_of(study, make_views(study))
        }

    assert is_judged("CP-AAN+-PN")
    assert not is_judged("CP-AAN+-PN, as published")


def test_generators_of_other_studies_are_compared_with_controls_of_their_representation(contents):
    found, beside, _ = headline_of(with_row(contents, "c-GAN-PN", -3))
    assert "cCov-GAN-PN scores higher than PN (prototypical network" in found, "not with copy"
    assert "c-GAN-PN scores lower than PN" in beside
    found, _, _ = headline_of(with_row(contents, "mean-shift-PN", -3))
    assert "cCov-GAN-PN scores higher than mean-shift-PN" in found, "not with PN, which is better"

    def without(*names: str):
        rows = tuple(row for row in contents.rows if row.name not in names)
        return headline_of(replace(contents, rows=rows))[0]

    assert without("cCov-GAN-PN").startswith("PN has the highest mean: PN − MAML is +5.00 ± 0.00")
    assert "allows for the choice among 4 rows" in without("cCov-GAN-PN")
    assert "nothing to compare" in without("none", "copy", "MAML", "cCov-GAN-PN")


def test_a_difference_with_a_single_training_is_over_draws_alone(contents):
    study = with_row(contents, "copy-PN", 2)
    # The second of two seeds of cCov-GAN-PN is better, and copy-PN has only the first.
    is_second, is_copy = study.scores["seed"] == 4, study.scores["method"] == "copy-PN"
    study.scores.loc[is_second & ~is_copy, "top5"] += 6
    rows = tuple(replace(x, seeds=(3,)) if x.name == "copy-PN" else x for x in study.rows)
    once = replace(study, scores=study.scores[~(is_second & is_copy)], rows=rows)

    assert "−2.00 ± 0.00 points (LSL, one shot, centroid head; over draws" in headline_of(once)[0]


@pytest.mark.parametrize(
    ("points", "draws", "verdict"),
    [
        (0, None, "winner beats {}: +2.00 ± 0.00"),
        (4, None, "winner does not beat {}; it scores lower: −2.00 ± 0.00"),
        (6, [4], "winner does not beat {}; the difference may be zero: +0.00 ± 8.61"),
    ],
)
def test_a_study_of_one_row_says_whether_its_winner_beats_the_default_settings(
    tmp_path, points, draws, verdict
):
    study = read_contents(write_report(tmp_path, is_table=False))
    study = with_row(study, "cCov-GAN-PN, default settings", points, draws)
    study = with_row(study, "cCov-GAN-PN, best", 2)

    found, beside, _ = headline_of(study)

    defaults = "the default settings of cCov-GAN-PN on the test phase"
    number = "points (mean of LSL and {}GLSL over all shots)."
    expected = f"The search’s {verdict.format(defaults)} {number}"
    assert found == expected.format("calibrated ")
    older = replace(study, scores=study.scores[study.scores["column"] != "all_calibrated"])
    assert headline_of(older)[0] == expected.format("")
    assert "CP-AAN+" not in beside
    assert "cCov-GAN-PN, best scores higher than PN" in beside
    won = replace(study, best={"cCov-GAN-PN": {**study.best["cCov-GAN-PN"], "trial": 0}})
    assert headline_of(won)[0] == found, "the first trial won with other settings of the sweep"
    alone = tuple(row for row in study.rows if not row.name.endswith("default settings"))
    none_better = "The search found no settings that"
    assert headline_of(replace(won, rows=alone))[0].startswith(none_better)


def test_the_headline_names_the_data_and_the_length_of_training(contents):
    headline = headline_of(contents)[2]

    assert headline.data.startswith("features of a user (16 dimensions), 2 base and 3 novel")
    assert "2 training seeds, 3 draws of the shots" in headline.data
    assert headline.training == ""
    best = {**contents.best["cCov-GAN-PN"], "training": {"num_episodes": 3000}}
    trained = replace(contents, best={**contents.best, "cCov-GAN-PN": best})
    expected = "GANs were trained for 3,000 episodes, not 100,000 as in the paper."
    assert headline_of(trained)[2].training == expected
    trained.studies["cCov-GAN-PN"]["config"]["report_length"] = 10
    sweep = [{"mixing_shots": shots, "score": 40.0} for shots in (2.0, 0.25, 0.5)]
    best |= {"sweep": sweep, "swept": {"mixing_shots": 0.25}}
    assert headline_of(trained)[2].training == (
        f"{expected} Their settings and the weight of synthetic examples were chosen after 300 "
        "episodes, the length of a trial. For cCov-GAN-PN, the sweep chose the lowest weight that "
        "it tried: all synthetic examples of a class together count as 0.25 shots."
    )
    best["training"]["num_episodes"] = 100_000
    expected = "GANs were trained for 100,000 episodes, as in the paper."
    assert headline_of(trained)[2].training.startswith(expected)
    best["swept"] = {"mixing_shots": 0.5}
    assert "sweep" not in headline_of(trained)[2].training


def test_with_scores_by_class_the_finding_has_a_bootstrap_over_classes(contents):
    study = with_row(contents, "copy-PN", 2)

    def beside(copies: list[float]) -> str:
        scores = {"cCov-GAN-PN": [50.0, 70.0, 60.0], "copy-PN": copies}
        frames = [
            pd.DataFrame({"method": name, "head": "centroid", "class": [*"cde"], "top5": top5})
            for name, top5 in scores.items()
        ]
        return headline_of(replace(study, classes=pd.concat(frames)))[1]

    text = "A bootstrap over the 3 novel classes gives +2.00 to +2.00."
    assert beside([48.0, 68.0, 58.0]) == text, "all classes differ by two points"
    text = "A bootstrap over the 3 novel classes gives −2.00 to +2.00, which includes zero."
    assert beside([48.0, 72.0, 60.0]) == text
    assert "bootstrap" not in headline_of(study)[1], "the report did not keep them"

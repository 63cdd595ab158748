"""Test the headline that a report generates from its numbers."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.headline import make_headline
from cpaan.report.page.views import make_views
from helpers.report_folders import write_report


def headline_of(contents):
    headline = make_headline(contents, make_views(contents))
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


COPIES = "copies of related base examples"
WHERE = "points (LSL, one shot)."


@pytest.mark.parametrize(
    ("points", "draws", "finding"),
    [
        # cCov-GAN-PN has 41 and copy 31; intervals are over the three seeded draws.
        (0, None, f"the trained generator scores higher than {COPIES}: {{}} is +10.00 ± 0.00"),
        (12, None, f"{COPIES} score higher than the trained generator: {{}} is −2.00 ± 0.00"),
        (30, [4], f"{COPIES} score as well as the trained generator: {{}} is +0.00 ± 43.03"),
    ],
)
def test_the_finding_compares_generators_with_the_best_that_trains_nothing(
    contents, points, draws, finding
):
    found, beside, _ = headline_of(raised(contents, "copy", points, draws))

    text = finding.format("cCov-GAN-PN − copy")
    assert found == f"On these features, {text} {WHERE}"
    assert beside.startswith("Augmentation itself: copy − none is ")


def test_of_several_generators_the_paper_s_is_named_unless_others_are_ahead(contents):
    low = raised(contents, "copy", 20)  # 51

    found, beside, _ = headline_of(with_row(low, "CP-AAN+-PN", 4))
    assert "score higher than every trained generator: cCov-GAN-PN − copy is −10.00" in found
    assert beside.startswith("The best of 2 generators: CP-AAN+-PN − copy is −6.00 ± 0.00.")
    found, beside, _ = headline_of(with_row(low, "CP-AAN+-PN", 11))
    assert "1 of 2 trained generators score higher" in found
    assert "CP-AAN+-PN − copy is +1.00 ± 0.00" in found
    assert (
        "every trained generator scores higher"
        in headline_of(with_row(contents, "CP-AAN+-PN", 1))[0]
    )


def test_without_controls_or_generators_other_rows_are_compared(contents):
    def without(*names: str):
        rows = tuple(row for row in contents.rows if row.name not in names)
        return headline_of(replace(contents, rows=rows))[0]

    assert "higher than examples without augmentation: cCov-GAN-PN − PN is +1.00" in without("copy")
    assert without("cCov-GAN-PN").startswith("PN has the highest mean: PN − MAML is +5.00 ± 0.00")
    assert "nothing to compare" in without("none", "copy", "MAML", "cCov-GAN-PN")


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
    assert "trained generator" in beside
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
    expected = "GANs were trained for 3,000 episodes here, 100,000 in the paper."
    assert headline_of(trained)[2].training == expected


def test_with_scores_by_class_the_finding_has_a_bootstrap_over_classes(contents):
    scores = {"cCov-GAN-PN": [50.0, 70.0, 60.0], "copy": [48.0, 68.0, 58.0]}
    heads = {"cCov-GAN-PN": "centroid", "copy": "linear"}
    frames = [
        pd.DataFrame({"method": name, "head": heads[name], "class": [*"cde"], "top5": top5})
        for name, top5 in scores.items()
    ]

    _, beside, _ = headline_of(replace(contents, classes=pd.concat(frames)))

    text = "A bootstrap over the 3 novel classes gives +2.00 to +2.00 for this difference."
    assert beside.startswith(text), "all classes differ by two points"
    assert "bootstrap" not in headline_of(contents)[1], "the report did not keep them"

"""Which gains are shown, which pictures are drawn, and of which numbers."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.ablations import Ablation
from cpaan.report.figures.picture import Picture
from cpaan.report.page.page import draw_figures, draw_lead, draw_searches, gains_of
from cpaan.report.page.views import make_views


def drawn_of(contents) -> dict[str, Picture]:
    table = make_views(contents)
    pictures = draw_figures(contents, table, gains_of(contents, table))
    return {picture.name: picture for picture in pictures}


def with_none_in_pn(contents):
    """Add a row none-PN with the scores of PN minus one."""
    others = contents.scores[contents.scores["method"] == "PN"].assign(method="none-PN")
    others["top5"] -= 1
    pn = next(row for row in contents.rows if row.name == "PN")
    rows = (*contents.rows, replace(pn, name="none-PN", method="none-PN"))
    return replace(contents, rows=rows, scores=pd.concat([contents.scores, others]))


def test_a_gain_is_over_no_augmentation_of_the_same_features_with_the_same_head(contents):
    found = gains_of(contents, make_views(contents))

    assert {name for name, _, _ in found} == {"copy", "cCov-GAN-PN"}
    assert found["copy", "novel", 1].value == pytest.approx(31 - 32)  # linear
    assert found["cCov-GAN-PN", "all_calibrated", 5].value == pytest.approx(41 - 40)  # centroid
    plain = replace(contents, scores=contents.scores[contents.scores["column"] != "all_calibrated"])
    assert ("copy", "all", 1) in gains_of(plain, make_views(plain)), "without calibrated GLSL"
    # In the embedding, the row with the same network comes first.
    better = with_none_in_pn(contents)
    assert gains_of(better, make_views(better))["cCov-GAN-PN", "novel", 1].value == (
        pytest.approx(41 - 39)
    )
    # A classifier of its own is compared with the table's head of the row without augmentation.
    rows = (*contents.rows[:-2], replace(contents.rows[-2], name="MAML", method="FI-PN"))
    rows = tuple(row for row in rows if row.method != "MAML")
    own = replace(contents, rows=rows)
    assert gains_of(own, make_views(own))["MAML", "novel", 1].value == pytest.approx(35 - 40)
    lost = replace(contents, scores=contents.scores[contents.scores["method"] != "PN"])
    assert {name for name, _, _ in gains_of(lost, make_views(lost))} == {"copy"}


def test_rows_as_published_have_no_gains_in_the_pictures(contents):
    name = "copy, as published"
    rows = tuple(replace(row, name=name) if row.name == "copy" else row for row in contents.rows)
    scores = contents.scores.replace({"method": {"copy": name}})
    study = replace(contents, rows=rows, scores=scores)

    assert {name for name, _, _ in gains_of(study, make_views(study))} == {"cCov-GAN-PN"}


def test_the_lead_has_every_gain_by_features_and_whether_a_generator_is_trained(contents):
    table = make_views(contents)

    lead = draw_lead(contents, table, gains_of(contents, table))

    novel, *_ = lead.figure.axes
    labels = [label.get_text() for label in novel.get_yticklabels()]
    assert labels == ["ResNet-10", "copy", "PN embedding", "cCov-GAN-PN"]
    marks = {each.get_label(): each.get_offsets()[:, 1].tolist() for each in novel.collections}
    assert (marks["trained generator"], marks["nothing trained"]) == ([3], [1])
    assert "K = 1" in lead.title
    assert draw_lead(contents, table, {}) is None


def test_only_pictures_of_existing_files_are_drawn(contents):
    assert list(drawn_of(contents)) == ["shots", "gain-by-neighbours"]
    names = ["P-FH", "FI-PN", "FI-PN, real", "P-FH, real"]
    shares = pd.DataFrame({"method": names, "class": "n1", "index": 1, "share": 0.5})
    points = [
        (name, "n01629819", kind, float(x), 0.0)
        for name in ("P-FH", "FI-PN")
        for kind in ("real", "shot", "synthetic")
        for x in range(2)
    ]
    columns = ["method", "class", "kind", "x", "y"]
    projections = pd.DataFrame(points, columns=columns)
    first = contents.rows[0]
    rows = (*contents.rows, *(replace(first, name=name, method=name) for name in ("P-FH", "FI-PN")))
    scores = [
        contents.scores[contents.scores["method"] == "none"].assign(method=row.name)
        for row in rows[-2:]
    ]
    study = replace(contents, rows=rows, scores=pd.concat([contents.scores, *scores]))
    drawn = drawn_of(replace(study, spectra=shares, projections=projections))

    assert list(drawn)[1:] == ["gain-by-neighbours", "projections", "spectra"]
    assert drawn["spectra"].alt.endswith("in the same unit: P-FH 0.50."), "FI has its own space"
    (key,) = drawn["projections"].figure.legends
    assert key.get_texts()[-1].get_text() == "1  European fire salamander", "words"


def test_variants_are_compared_with_the_row_that_they_vary_or_no_augmentation(contents):
    # The table has it by centroids, but the variant was scored with the head of its search.
    picture = drawn_of(contents)["gain-by-neighbours"]
    assert picture.alt.endswith("the largest first. all base classes: +6.0 ± 0.0.")
    assert "minus that of PN with the same linear head" in picture.caption
    picture = drawn_of(with_none_in_pn(contents))["gain-by-neighbours"]
    assert "minus that of none-PN with" in picture.caption, "in the same embedding"
    ablation = Ablation("cCov-GAN-PN", "ideas", "no-residual")
    row = next(row for row in contents.rows if row.ablation)
    rows = (*contents.rows[:-1], replace(row, ablation=ablation))
    picture = drawn_of(replace(contents, rows=rows))["gain-by-idea"]
    assert picture.alt.endswith("the largest first. no residual start: −6.0 ± 0.0.")
    assert "minus that of cCov-GAN-PN with the same linear head" in picture.caption


def test_searches_have_a_summary_and_a_picture(contents):
    summary = "2 complete, 2 stopped early, 6 min; winner 42.0 on validation"

    found = draw_searches(contents)

    assert [search[:2] for search in found] == [("PN", summary), ("cCov-GAN-PN", summary)]
    assert found[1][2].title == "cCov-GAN-PN: score against each parameter"
    assert "the winner, trial 3, with 42.00 %" in found[1][2].alt

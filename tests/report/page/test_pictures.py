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


def gain(contents, *cell) -> float:
    return gains_of(contents, make_views(contents))[cell].value


def rows_with_gains(contents) -> set[str]:
    return {name for name, _, _ in gains_of(contents, make_views(contents))}


def test_a_gain_is_over_no_augmentation_of_the_same_features_with_the_same_head(contents, add_row):
    assert rows_with_gains(contents) == {"copy", "cCov-GAN-PN"}
    assert gain(contents, "copy", "novel", 1) == pytest.approx(31 - 32)  # linear
    assert gain(contents, "cCov-GAN-PN", "all_calibrated", 5) == pytest.approx(41 - 40)  # centroid
    plain = replace(contents, scores=contents.scores[contents.scores["column"] != "all_calibrated"])
    assert gain(plain, "copy", "all", 1) == pytest.approx(-1), "without calibrated GLSL"
    # In the embedding, the row with the same network comes first.
    better = add_row(contents, "none-PN", -1, like="PN")
    assert gain(better, "cCov-GAN-PN", "novel", 1) == pytest.approx(41 - 39)
    # A classifier of its own is compared with the table's head of the row without augmentation.
    assert gain(add_row(contents, "FI-PN", like="MAML"), "FI-PN", "novel", 1) == pytest.approx(-5)
    lost = replace(contents, scores=contents.scores[contents.scores["method"] != "PN"])
    assert rows_with_gains(lost) == {"copy"}
    published = add_row(contents, "copy, as published", 1, like="copy")
    assert rows_with_gains(published) == {"copy", "cCov-GAN-PN"}, "not as published"


def test_the_lead_has_every_gain_by_features_and_whether_a_generator_is_trained(contents):
    table = make_views(contents)

    lead = draw_lead(contents, table, gains_of(contents, table))

    novel, *_ = lead.figure.axes
    labels = [label.get_text() for label in novel.get_yticklabels()]
    assert labels == ["ResNet-10", "copy", "PN embedding", "cCov-GAN-PN"]
    marks = {
        points.get_label(): points.get_offsets()[:, 1].tolist() for points in novel.collections
    }
    assert (marks["trained generator"], marks["nothing trained"]) == ([3], [1])
    assert "K = 1" in lead.title
    assert draw_lead(contents, table, {}) is None


def test_only_pictures_of_existing_files_are_drawn(contents, add_row):
    assert list(drawn_of(contents)) == ["shots", "gain-by-neighbours"]
    names = ["P-FH", "FI-PN", "FI-PN, real", "P-FH, real"]
    shares = pd.DataFrame({"method": names, "class": "n1", "index": 1, "share": 0.5})
    points = [
        (name, "n01629819", kind, float(x), 0.0)
        for name in names[:2]
        for kind in ("real", "shot", "synthetic")
        for x in range(2)
    ]
    projections = pd.DataFrame(points, columns=["method", "class", "kind", "x", "y"])
    study = add_row(add_row(contents, "P-FH", like="none"), "FI-PN", like="none")
    drawn = drawn_of(replace(study, spectra=shares, projections=projections))

    assert list(drawn)[1:] == ["gain-by-neighbours", "projections", "spectra"]
    assert drawn["spectra"].alt.endswith("in the same unit: P-FH 0.50."), "FI has its own space"
    (key,) = drawn["projections"].figure.legends
    assert key.get_texts()[-1].get_text() == "1  European fire salamander", "words"


def test_variants_are_compared_with_the_row_that_they_vary_or_no_augmentation(contents, add_row):
    # The table has it by centroids, but the variant was scored with the head of its search.
    picture = drawn_of(contents)["gain-by-neighbours"]
    assert picture.alt.endswith("all base classes: +6.0 ± 0.0.")
    assert "minus that of PN with the same linear head" in picture.caption
    study = add_row(contents, "none-PN", -1, like="PN")
    picture = drawn_of(study)["gain-by-neighbours"]
    assert "minus that of none-PN with" in picture.caption, "in the same embedding"
    ablation = Ablation("cCov-GAN-PN", "ideas", "no-residual")
    rows = (*contents.rows[:-1], replace(contents.rows[-1], ablation=ablation))
    picture = drawn_of(replace(contents, rows=rows))["gain-by-idea"]
    assert picture.alt.endswith("no residual start: −6.0 ± 0.0.")
    assert "minus that of cCov-GAN-PN with the same linear head" in picture.caption


def test_every_search_has_a_picture(contents):
    searches = draw_searches(contents)

    names = {name: picture.name for name, picture in searches.items()}
    assert names == {name: f"{name}-slices" for name in ("PN", "cCov-GAN-PN")}
    assert "the winner, trial 3, with 42.00 %" in searches["PN"].alt

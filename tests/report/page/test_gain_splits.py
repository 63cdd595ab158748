"""Which gains the page takes apart."""

from dataclasses import replace

import pandas as pd
import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.gain_splits import make_splits
from cpaan.report.page.table_data import make_table_data
from helpers.report_folders import write_report


@pytest.fixture
def contents(tmp_path):
    return read_contents(write_report(tmp_path))


def test_the_way_leads_from_raw_features_by_the_paper_s_head_to_the_chosen_one(contents):
    (split,) = make_splits(contents, make_table_data(contents), "cCov-GAN-PN")

    # Centroids of raw features, then of the embedding, then linear there, then augmented.
    assert split.start == pytest.approx(30)
    steps = {step.label: (step.start, step.end, step.difference) for step in split.steps}
    assert steps == {
        "representation": (("none", "centroid"), ("PN", "centroid"), pytest.approx(10)),
        "head": (("PN", "centroid"), ("PN", "linear"), pytest.approx(-7)),
        "augmentation": (("PN", "linear"), ("cCov-GAN-PN", "linear"), pytest.approx(12)),
    }
    assert split.total.difference == pytest.approx(15)


def test_controls_of_raw_features_do_not_stand_beside_embedded_rows(contents):
    (split,) = make_splits(contents, make_table_data(contents), "cCov-GAN-PN")
    assert split.beside == ()

    rows = tuple(
        replace(row, method="cCov-GAN") if row.name == "cCov-GAN-PN" else row
        for row in contents.table_rows
    )
    contents = replace(contents, rows=rows)
    (split,) = make_splits(contents, make_table_data(contents), "cCov-GAN-PN")
    assert [step.end for step in split.beside] == [("copy", "linear")]
    assert split.beside[0].difference == pytest.approx(31 - 32)


def test_the_embedding_without_augmentation_is_that_of_the_augmented_row(contents):
    others = contents.scores[contents.scores["method"] == "PN"].assign(method="none-PN")
    others["top5"] -= 1
    pn = next(row for row in contents.rows if row.name == "PN")
    contents = replace(
        contents,
        rows=(*contents.rows, replace(pn, name="none-PN", method="none-PN")),
        scores=pd.concat([contents.scores, others]),
    )

    (split,) = make_splits(contents, make_table_data(contents), "cCov-GAN-PN")

    assert split.steps[-1].start == ("none-PN", "linear")
    assert split.steps[-1].difference == pytest.approx(13)


def test_without_raw_features_the_way_begins_in_the_embedding(contents):
    rows = tuple(row for row in contents.rows if row.name != "none")
    scores = contents.scores[contents.scores["method"] != "none"]
    contents = replace(contents, rows=rows, scores=scores)

    (split,) = make_splits(contents, make_table_data(contents), "cCov-GAN-PN")

    assert [step.label for step in split.steps] == ["head", "augmentation"]
    assert split.start == pytest.approx(40)


def test_a_head_that_was_scored_alone_is_the_paper_s_too(contents):
    only = contents.scores[contents.scores["head"] == "linear"]
    contents = replace(contents, scores=only, heads=None)

    (split,) = make_splits(contents, make_table_data(contents), "cCov-GAN-PN")

    assert [step.label for step in split.steps] == ["representation", "augmentation"]
    assert split.start == pytest.approx(32)


def test_what_lacks_a_score_on_the_way_is_left_out(contents):
    rows = tuple(row for row in contents.rows if row.name != "PN")
    scores = contents.scores[contents.scores["method"] != "PN"]
    contents = replace(contents, rows=rows, scores=scores)

    assert make_splits(contents, make_table_data(contents), "cCov-GAN-PN") == []
    assert make_splits(contents, make_table_data(contents), "MAML") == []

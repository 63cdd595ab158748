"""Which pictures a report gives, and what they are drawn of."""

from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cpaan.report.figures.picture import Picture
from cpaan.report.page import pictures
from cpaan.report.page.contents import Ablation, read_contents
from cpaan.report.page.pictures import draw_searches, draw_sections
from cpaan.report.page.table_data import make_table_data
from helpers.report_folders import write_report

DRAWN = (
    "accuracy_against_diversity",
    "accuracy_against_shots",
    "cost_of_trials",
    "differences",
    "gain_by_idea",
    "gain_by_neighbours",
    "gain_steps",
    "projections",
    "search_pictures",
    "spectra",
)


@pytest.fixture
def contents(tmp_path):
    return read_contents(write_report(tmp_path))


@pytest.fixture
def calls(monkeypatch):
    """Return what every function that draws was given; nothing is drawn."""
    found: dict[str, tuple] = {}

    def instead(name: str):
        def draw(*arguments):
            found[name] = arguments
            picture = Picture(name.replace("_", "-"), "title", "caption", "alt", Figure())
            return [picture] if name == "search_pictures" else picture

        return draw

    for name in DRAWN:
        monkeypatch.setattr(pictures, name, instead(name))
    return found


def sections_of(contents):
    drawn = draw_sections(contents, make_table_data(contents), "cCov-GAN-PN", [])
    return {name: [picture.name for picture in each] for name, each in drawn.items()}


def test_what_the_files_have_is_drawn_and_no_more(contents, calls):
    assert sections_of(contents) == {
        "accuracy": ["accuracy-against-shots"],
        "differences": ["differences"],
        "gains": [],
        "ablations": ["gain-by-neighbours", "accuracy-against-diversity"],
        "synthetic": [],
        "searches": ["cost-of-trials"],
    }


def test_optional_files_add_their_pictures(contents, calls):
    frame = pd.DataFrame([{"method": "P-FH"}, {"method": "FI-PN"}, {"method": "FI-PN, real"}])
    real = pd.DataFrame([{"method": "P-FH, real"}])
    with_real = pd.concat([frame, real])

    sections = sections_of(replace(contents, spectra=with_real, projections=frame))

    assert sections["synthetic"] == ["projections", "spectra"]
    (drawn,) = calls["spectra"]
    assert drawn["method"].tolist() == ["real", "P-FH"], "FI has a space of its own"
    sections = sections_of(replace(contents, diversity=None, trials={}))
    assert sections["ablations"] == ["gain-by-neighbours"]
    assert sections["searches"] == []


def test_pictures_are_of_the_seeded_draws_and_of_the_table_s_rows(contents, calls):
    sections_of(contents)

    scores, head_of, rows = calls["accuracy_against_shots"]
    assert set(scores["draw"]) == {2, 3, 4}
    assert set(scores["method"]) == set(contents.methods)
    assert head_of["cCov-GAN-PN"] == "centroid"
    assert rows[0] == "cCov-GAN-PN"
    _, subject, _, others, shots = calls["differences"]
    assert subject == "cCov-GAN-PN"
    assert others == ["none", "copy", "MAML", "PN"]
    assert shots == [1, 5]


def test_neighbours_are_held_against_the_same_features_without_augmentation(contents, calls):
    sections_of(contents)

    _, labels, head, reference = calls["gain_by_neighbours"]
    assert labels == {"all base classes": "cCov-GAN-PN: all base classes"}
    # The table has it by centroids, but the variant was scored with the head of its search.
    assert (head, reference) == ("linear", "PN")


def test_neighbours_are_held_against_the_same_embedding_where_it_is_a_row(contents, calls):
    is_pn = contents.scores["method"] == "PN"
    scores = pd.concat([contents.scores, contents.scores[is_pn].assign(method="none-PN")])

    sections_of(replace(contents, scores=scores))

    assert calls["gain_by_neighbours"][3] == "none-PN"


def test_ideas_are_held_against_the_row_that_they_are_taken_from(contents, calls):
    ablation = Ablation("cCov-GAN-PN", "ideas", "without it")
    rows = (*contents.table_rows, replace(contents.rows[-1], ablation=ablation))

    sections_of(replace(contents, rows=rows))

    _, labels, head, reference = calls["gain_by_idea"]
    assert labels == {"without it": "cCov-GAN-PN: all base classes"}
    assert (head, reference) == ("linear", "cCov-GAN-PN")
    assert "gain_by_neighbours" not in calls


def test_only_generators_have_a_diversity(contents, calls):
    sections_of(contents)

    _, _, head_of, shots = calls["accuracy_against_diversity"]
    assert head_of == {"copy": "linear", "cCov-GAN-PN": "centroid"}
    assert shots == 1


def test_rungs_are_where_trials_were_evaluated_before_their_end(contents, calls):
    draw_searches(contents, "PN")

    _, name, rungs = calls["search_pictures"]
    assert (name, rungs) == ("cCov-GAN-PN", [5, 10])


def test_a_search_that_stopped_none_early_has_no_rungs(contents, calls):
    study = contents.studies["cCov-GAN-PN"]
    config = {**study["config"], "early_stopping": False}
    studies = {**contents.studies, "cCov-GAN-PN": {**study, "config": config}}

    draw_searches(replace(contents, studies=studies), "PN")

    assert calls["search_pictures"][2] == []


def test_searches_say_how_their_trials_ended_and_one_has_files(contents, calls):
    searches = draw_searches(contents, "cCov-GAN-PN")

    assert [(search.name, search.has_files) for search in searches] == [
        ("PN", False),
        ("cCov-GAN-PN", True),
    ]
    assert searches[0].summary == "2 complete, 2 stopped early; best 42.0 on validation"

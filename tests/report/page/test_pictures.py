"""Test the split gains, the choice of pictures, and their numbers."""

from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cpaan.report.figures.picture import Picture
from cpaan.report.page import pictures
from cpaan.report.page.contents import Ablation
from cpaan.report.page.pictures import draw_searches, draw_sections, make_splits
from cpaan.report.page.views import make_views

DRAWN = (
    *("accuracy_against_diversity", "accuracy_against_shots", "gain_of_variants"),
    *("projections", "search_pictures", "spectra"),
)


@pytest.fixture
def calls(monkeypatch):
    """Replace the drawing functions, and return the arguments of their calls."""
    found: dict[str, tuple] = {}

    def instead(name: str):
        def draw(*arguments, **words):
            found[name] = arguments
            return Picture(words.get("name", name.replace("_", "-")), "", "", "", Figure())

        return draw

    for name in DRAWN:
        monkeypatch.setattr(pictures, name, instead(name))
    return found


def sections_of(contents):
    drawn = draw_sections(contents, make_views(contents), "cCov-GAN-PN")
    return {name: [picture.name for picture in each] for name, each in drawn.items()}


def with_none_in_pn(contents):
    """Add a row none-PN with the scores of PN minus one."""
    others = contents.scores[contents.scores["method"] == "PN"].assign(method="none-PN")
    others["top5"] -= 1
    pn = next(row for row in contents.rows if row.name == "PN")
    rows = (*contents.rows, replace(pn, name="none-PN", method="none-PN"))
    return replace(contents, rows=rows, scores=pd.concat([contents.scores, others]))


def test_only_pictures_of_existing_files_are_drawn(contents, calls):
    assert sections_of(contents) == {
        "accuracy": ["accuracy-against-shots"],
        "ablations": ["gain-by-neighbours", "accuracy-against-diversity"],
        "synthetic": [],
    }
    cells, strong = calls["accuracy_against_shots"]
    assert {name for name, _, _ in cells} == set(contents.methods)
    assert strong[0] == "cCov-GAN-PN"
    frame = pd.DataFrame({"method": ["P-FH", "FI-PN", "FI-PN, real"]})
    with_real = pd.concat([frame, pd.DataFrame({"method": ["P-FH, real"]})])
    poor = contents.diversity.head(0)
    sections = sections_of(replace(contents, spectra=with_real, projections=frame, diversity=poor))
    assert sections["ablations"] == ["gain-by-neighbours"]
    assert sections["synthetic"] == ["projections", "spectra"]
    (drawn,) = calls["spectra"]
    assert drawn["method"].tolist() == ["real", "P-FH"], "FI has a space of its own"


def test_variants_are_compared_with_the_row_that_they_vary_or_no_augmentation(contents, calls):
    sections_of(contents)
    # The table uses the centroid head, but the variant was scored with the head of its search.
    scores, labels, *compared = calls["gain_of_variants"]
    assert set(scores["draw"]) == {2, 3, 4}, "the seeded draws"
    assert labels == {"all base classes": "cCov-GAN-PN: all base classes"}
    assert compared == ["linear", "PN"]
    sections_of(with_none_in_pn(contents))
    assert calls["gain_of_variants"][3] == "none-PN", "in the same embedding"
    ablation = Ablation("cCov-GAN-PN", "ideas", "without it")
    row = next(row for row in contents.rows if row.ablation)
    rows = (*contents.rows[:-1], replace(row, ablation=ablation))
    assert sections_of(replace(contents, rows=rows))["ablations"][0] == "gain-by-idea"
    _, labels, *compared = calls["gain_of_variants"]
    assert labels == {"without it": "cCov-GAN-PN: all base classes"}
    assert compared == ["linear", "cCov-GAN-PN"]


def test_searches_have_a_summary(contents, calls):
    summary = "2 complete, 2 stopped early, 6 min; best 42.0 on validation"
    found = [search[:2] for search in draw_searches(contents)]
    assert found == [("PN", summary), ("cCov-GAN-PN", summary)]
    assert calls["search_pictures"][1:] == ("cCov-GAN-PN", contents.studies["PN"]["config"])


def splits_of(contents):
    return make_splits(contents, make_views(contents), "cCov-GAN-PN")


def test_a_gain_starts_at_raw_features_and_the_paper_s_head(contents):
    (split,) = splits_of(contents)

    # Steps: centroids of raw features, centroids in the embedding, linear head, augmentation.
    assert split.start == pytest.approx(30)
    assert split.beside == ()
    steps = {step.label: (step.start, step.end, step.difference) for step in split.steps}
    assert steps == {
        "representation": (("none", "centroid"), ("PN", "centroid"), pytest.approx(10)),
        "head": (("PN", "centroid"), ("PN", "linear"), pytest.approx(-7)),
        "augmentation": (("PN", "linear"), ("cCov-GAN-PN", "linear"), pytest.approx(12)),
    }
    # The augmentation starts from the row without augmentation in our embedding, if there is one.
    last = splits_of(with_none_in_pn(contents))[0].steps[-1]
    assert (last.start, last.difference) == (("none-PN", "linear"), pytest.approx(13))
    # Controls are shown for rows with the same features.
    *others, ours, _ = contents.rows
    (split,) = splits_of(replace(contents, rows=(*others, replace(ours, method="cCov-GAN"))))
    (step,) = split.beside
    assert (step.end, step.difference) == (("copy", "linear"), pytest.approx(31 - 32))


@pytest.mark.parametrize(
    ("lost", "labels", "start"),
    [
        ({"method": "none"}, ["head", "augmentation"], 40),
        ({"head": "centroid"}, ["representation", "augmentation"], 32),
        ({"method": "PN"}, [], None),
    ],
)
def test_steps_that_lack_a_score_are_left_out(contents, lost, labels, start):
    ((column, name),) = lost.items()
    rows = tuple(row for row in contents.rows if row.name != name)
    scores = contents.scores[contents.scores[column] != name]

    found = splits_of(replace(contents, rows=rows, scores=scores))

    assert [step.label for split in found for step in split.steps] == labels
    assert [split.start for split in found] == ([] if start is None else [pytest.approx(start)])

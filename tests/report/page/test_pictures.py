"""Which gains are shown, which pictures are drawn, and of which numbers."""

from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cpaan.report.figures.picture import Picture
from cpaan.report.page import page
from cpaan.report.page.contents import Ablation
from cpaan.report.page.page import draw_figures, draw_lead, draw_searches, gains_of
from cpaan.report.page.views import make_views

DRAWN = (
    *("gains_against_shots", "gains_by_row", "gain_of_variants"),
    *("projections", "draw_search", "spectra"),
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
        monkeypatch.setattr(page, name, instead(name))
    return found


def drawn_of(contents) -> list[str]:
    table = make_views(contents)
    return [picture.name for picture in draw_figures(contents, table, gains_of(contents, table))]


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
    assert found["cCov-GAN-PN", "all", 5].value == pytest.approx(41 - 40)  # centroid
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


def test_the_lead_has_every_gain_by_features_and_whether_a_generator_is_trained(contents, calls):
    table = make_views(contents)

    draw_lead(contents, table, gains_of(contents, table))

    _, _, spaces, trained, shots = calls["gains_by_row"]
    assert spaces == {"copy": "ResNet-10", "cCov-GAN-PN": "PN embedding"}
    assert (trained, shots) == (["cCov-GAN-PN"], 1)
    assert draw_lead(contents, table, {}) is None


def test_only_pictures_of_existing_files_are_drawn(contents, calls):
    assert drawn_of(contents) == ["gains-against-shots", "gain-by-neighbours"]
    gains, strong = calls["gains_against_shots"]
    assert {name for name, _, _ in gains} == set(strong) == {"copy", "cCov-GAN-PN"}
    frame = pd.DataFrame({"method": ["P-FH", "FI-PN", "FI-PN, real"], "class": "n01629819"})
    with_real = pd.concat([frame, frame.head(1).assign(method="P-FH, real")])
    full = replace(contents, spectra=with_real, projections=frame)
    assert drawn_of(full)[1:] == ["gain-by-neighbours", "projections", "spectra"]
    (drawn,) = calls["spectra"]
    assert drawn["method"].tolist() == ["real", "P-FH"], "FI has a space of its own"
    (drawn,) = calls["projections"]
    assert set(drawn["class"]) == {"European fire salamander"}, "words, not identifiers"


def test_variants_are_compared_with_the_row_that_they_vary_or_no_augmentation(contents, calls):
    drawn_of(contents)
    # The table has it by centroids, but the variant was scored with the head of its search.
    scores, labels, *compared = calls["gain_of_variants"]
    assert set(scores["draw"]) == {2, 3, 4}, "the seeded draws"
    assert labels == {"all base classes": "cCov-GAN-PN: all base classes"}
    assert compared == ["linear", "PN"]
    drawn_of(with_none_in_pn(contents))
    assert calls["gain_of_variants"][3] == "none-PN", "in the same embedding"
    ablation = Ablation("cCov-GAN-PN", "ideas", "without it")
    row = next(row for row in contents.rows if row.ablation)
    rows = (*contents.rows[:-1], replace(row, ablation=ablation))
    assert drawn_of(replace(contents, rows=rows))[-1] == "gain-by-idea"
    _, labels, *compared = calls["gain_of_variants"]
    assert labels == {"without it": "cCov-GAN-PN: all base classes"}
    assert compared == ["linear", "cCov-GAN-PN"]


def test_searches_have_a_summary(contents, calls):
    summary = "2 complete, 2 stopped early, 6 min; winner 42.0 on validation"
    found = [search[:2] for search in draw_searches(contents)]
    assert found == [("PN", summary), ("cCov-GAN-PN", summary)]
    assert calls["draw_search"][1:] == ("cCov-GAN-PN", 3)

"""Test the places of our rows and their reasons, on scores that can be ranked by hand."""

import pytest

from cpaan.protocol.statistics import summarise
from cpaan.report.claims import reasons_behind, standing
from cpaan.report.table_one import differences_to, ranked_cells, with_heads
from helpers.frames import frame_of, same


def places_of(scores, head_of, subjects):
    chosen = with_heads(scores, head_of)
    differences = {
        (row, other, *cell): gap
        for other in head_of
        for (row, *cell), gap in differences_to(chosen, other).items()
    }
    cells = ranked_cells(summarise(scores), head_of)
    return standing(cells, differences, head_of, {name: name for name in head_of}, subjects)


def test_the_best_of_ours_counts_in_each_column_and_rows_ahead_are_named_the_first_first():
    scores = frame_of(
        {
            ("copy", "linear"): same(48.0, {("novel", 1): [49.0, 51.0, 56.0]}),
            ("copy", "cosine"): 99.0,  # not the head of its row
            ("LR", "linear"): 40.0,
            ("AWG-cosine", "own"): same(41.0, {("novel", 1): 53.0}),
            ("cCov-GAN", "linear"): same(50.0, {("all", 20): 45.0}),
            ("cCov-GAN-PN", "centroid"): 46.0,
        }
    )
    head_of = dict.fromkeys(["copy", "LR", "cCov-GAN"], "linear")
    head_of |= {"AWG-cosine": "own", "cCov-GAN-PN": "centroid"}

    places = places_of(scores, head_of, ["cCov-GAN", "cCov-GAN-PN"])

    assert [(each.column, each.shots, each.row, each.rank) for each in places] == [
        ("novel", 1, "cCov-GAN", 3),
        ("novel", 20, "cCov-GAN", 1),
        ("all", 1, "cCov-GAN", 1),
        ("all", 20, "cCov-GAN-PN", 2),
    ]
    assert [place.is_first_or_second for place in places] == [False, True, True, True]
    place = places[0]
    assert (place.num_rows, place.accuracy, place.head) == (5, 50.0, "linear")
    assert [(each.row, each.what) for each in place.ahead] == [
        (
            "AWG-cosine",
            "a baseline that synthesises nothing, on features of a backbone that was trained with "
            "a cosine classifier",
        ),
        ("copy", "a control that copies related base examples"),
    ]
    # Differences by draw: 49 - 49, 51 - 50 and 56 - 51. Mean 2, interval 4.303 * sqrt(7 / 3).
    assert place.ahead[1].difference == pytest.approx(2.0)
    assert place.ahead[1].interval == pytest.approx(4.302653 * (7 / 3) ** 0.5)


LEVELS = {
    ("copy", "linear"): 48.0,
    ("copy-PN", "centroid"): 47.0,
    ("AWG", "own"): 49.0,
    ("CP-AAN+", "linear"): 45.0,
    ("CP-AAN+-PN", "centroid"): 46.5,
}
WITHOUT = "CP-AAN+-PN: without the adversary"


def reasons_of(changes: dict[tuple[str, str], float]) -> list[str]:
    levels = {**LEVELS, **changes}
    head_of = {name: head for name, head in levels if name != WITHOUT}
    scores = frame_of(levels)
    places = places_of(scores, head_of, ["CP-AAN+", "CP-AAN+-PN"])
    label = "without the adversary"
    ablation = {"name": WITHOUT, "of": "CP-AAN+-PN", "family": "ideas", "label": label}
    return reasons_behind(scores, places, {name: name for name in head_of}, head_of, [ablation])


def test_reasons_name_who_is_first_and_what_ours_add_to_copies():
    # AWG, copy and copy-PN are ahead of CP-AAN+-PN in all four columns.
    assert reasons_of({}) == [
        "Who is first in the 4 columns where ours are not first or second: a baseline that "
        "synthesises nothing in 4.",
        "Under the same head, in LSL and GLSL at K = 1: CP-AAN+-PN −0.50 ± 0.00 and −0.50 ± 0.00 "
        "over copy-PN (centroid). What ours learn to change about related base examples gains "
        "nothing over leaving them as they are.",
    ]
    assert "others gain more" in reasons_of({("copy-PN", "centroid"): 46.0})[1]
    assert reasons_of({("CP-AAN+", "linear"): 48.5}) == [], "second everywhere"


@pytest.mark.parametrize(("level", "is_nothing"), [(46.6, True), (44.0, False)])
def test_an_adversary_that_changes_nothing_is_named(level, is_nothing):
    *_, adversary = reasons_of({(WITHOUT, "centroid"): level})

    assert adversary.startswith("CP-AAN+-PN without its adversary is")
    assert ("is not what helps a classifier" in adversary) == is_nothing

"""Why others are before ours, on scores that one can check by hand."""

import pytest

from cpaan.report.claims import reasons_behind, standing
from helpers.score_frames import frame_of

LEVELS = {
    ("copy", "linear"): 48.0,
    ("copy-PN", "centroid"): 47.0,
    ("AWG", "own"): 49.0,
    ("CP-AAN+", "linear"): 45.0,
    ("CP-AAN+-PN", "centroid"): 46.5,
}
WITHOUT = "CP-AAN+-PN: without the adversary"
ABLATION = {
    "name": WITHOUT,
    "of": "CP-AAN+-PN",
    "family": "ideas",
    "label": "without the adversary",
}


def reasons_of(changes: dict[tuple[str, str], float], ablations=()) -> list[str]:
    levels = {**LEVELS, **changes}
    head_of = {name: head for name, head in levels if ":" not in name}
    scores = frame_of(levels)
    methods = {name: name for name in head_of}
    places = standing(scores, head_of, methods, ["CP-AAN+", "CP-AAN+-PN"])
    return reasons_behind(scores, places, methods, head_of, ablations)


def test_who_is_first_and_what_ours_add_to_copies():
    who, copies = reasons_of({})

    # LSL and GLSL at two numbers of shots: AWG, copy and copy-PN are before CP-AAN+-PN in each.
    assert who == (
        "Who is first in the 4 columns where ours are not first or second: a baseline that "
        "synthesises nothing in 4."
    )
    assert copies == (
        "Under the same head, in LSL and GLSL at K = 1: CP-AAN+-PN -0.50 ± 0.00 and -0.50 ± 0.00 "
        "over copy-PN (centroid). What ours learn to change about related base examples gains "
        "nothing over leaving them as they are."
    )


def test_a_gain_over_copies_is_said_as_well():
    assert "others gain more" in reasons_of({("copy-PN", "centroid"): 46.0})[1]


@pytest.mark.parametrize(("level", "is_nothing"), [(46.6, True), (44.0, False)])
def test_an_adversary_that_moves_nothing_is_named(level, is_nothing):
    *_, adversary = reasons_of({(WITHOUT, "centroid"): level}, [ABLATION])

    assert adversary.startswith("CP-AAN+-PN without its adversary is")
    assert ("is not what helps a classifier" in adversary) == is_nothing


def test_whoever_is_second_everywhere_needs_no_reasons():
    assert reasons_of({("CP-AAN+", "linear"): 48.5}) == []

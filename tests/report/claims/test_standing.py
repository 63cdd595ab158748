"""Where our rows stand among all, and why, on scores that one can rank by hand."""

import pytest

from cpaan.report.claims import reasons_behind, standing
from helpers.score_frames import frame_of, same

HEADS = {
    "copy": "linear",
    "LR": "linear",
    "AWG-cosine": "own",
    "cCov-GAN": "linear",
    "cCov-GAN-PN": "centroid",
}
METHODS = {name: name for name in HEADS}
SUBJECTS = ["cCov-GAN", "cCov-GAN-PN"]
SCORES = frame_of(
    {
        ("copy", "linear"): same(48.0, {("novel", 1): [49.0, 51.0, 56.0]}),
        ("copy", "cosine"): 99.0,  # not the head of its row
        ("LR", "linear"): 40.0,
        ("AWG-cosine", "own"): same(41.0, {("novel", 1): 53.0}),
        ("cCov-GAN", "linear"): same(50.0, {("all", 20): 45.0}),
        ("cCov-GAN-PN", "centroid"): 46.0,
    }
)


def test_the_best_of_ours_counts_in_each_column():
    places = standing(SCORES, HEADS, METHODS, SUBJECTS)

    assert [(place.column, place.shots, place.row, place.rank) for place in places] == [
        ("novel", 1, "cCov-GAN", 3),
        ("novel", 20, "cCov-GAN", 1),
        ("all", 1, "cCov-GAN", 1),
        ("all", 20, "cCov-GAN-PN", 2),
    ]
    assert [place.is_first_or_second for place in places] == [False, True, True, True]


def test_rows_ahead_are_named_with_paired_differences_the_first_first():
    place = standing(SCORES, HEADS, METHODS, SUBJECTS)[0]

    assert (place.num_rows, place.accuracy) == (5, 50.0)
    assert [(each.row, each.is_sure) for each in place.ahead] == [
        ("AWG-cosine", True),
        ("copy", False),
    ]
    # By draw 49 - 49, 51 - 50 and 56 - 51: mean 2, deviation root 7, times 4.303 over root 3.
    assert place.ahead[1].step.difference == pytest.approx(2.0)
    assert place.ahead[1].step.interval == pytest.approx(4.302653 * (7 / 3) ** 0.5)
    assert [each.what for each in place.ahead] == [
        "a baseline that synthesises nothing, on features of a backbone that was trained with a "
        "cosine classifier",
        "a control that copies related base examples",
    ]


def test_equal_means_share_a_rank():
    scores = frame_of({("LR", "linear"): 50.0, ("cCov-GAN", "linear"): 50.0 + 1e-12})
    methods = {"LR": "LR", "cCov-GAN": "cCov-GAN"}

    for subject in methods:
        assert {place.rank for place in standing(scores, HEADS, methods, [subject])} == {1}


def test_unknown_subjects_and_rows_without_scores_are_refused():
    for subjects in (["CP-AAN+"], []):
        with pytest.raises(ValueError, match="subjects should be among the rows copy, LR"):
            standing(SCORES, HEADS, METHODS, subjects)
    with pytest.raises(ValueError, match="no scores of LR with the head cosine"):
        standing(SCORES, {**HEADS, "LR": "cosine"}, METHODS, SUBJECTS)


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
    methods = {name: name for name in head_of}
    places = standing(scores, head_of, methods, ["CP-AAN+", "CP-AAN+-PN"])
    label = "without the adversary"
    ablation = {"name": WITHOUT, "of": "CP-AAN+-PN", "family": "ideas", "label": label}
    return reasons_behind(scores, places, methods, head_of, [ablation])


def test_reasons_name_who_is_first_and_what_ours_add_to_copies():
    # LSL and GLSL at two numbers of shots: AWG, copy and copy-PN are ahead of CP-AAN+-PN in each.
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

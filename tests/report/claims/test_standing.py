"""Where ours stand among all rows, on scores that one can rank by hand."""

import pytest

from cpaan.report.claims import standing
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
        ("copy", "cosine"): 99.0,
        ("LR", "linear"): 40.0,
        ("AWG-cosine", "own"): same(41.0, {("novel", 1): 53.0}),
        ("cCov-GAN", "linear"): same(50.0, {("all", 20): 45.0}),
        ("cCov-GAN-PN", "centroid"): 46.0,
    }
)


def place_of(column: str, shots: int):
    places = standing(SCORES, HEADS, METHODS, SUBJECTS)
    assert [(place.column, place.shots) for place in places] == [
        ("novel", 1),
        ("novel", 20),
        ("all", 1),
        ("all", 20),
    ]
    (place,) = [p for p in places if (p.column, p.shots) == (column, shots)]
    return place


def test_the_best_of_ours_counts_in_each_column():
    assert (place_of("novel", 20).row, place_of("novel", 20).rank) == ("cCov-GAN", 1)
    assert (place_of("all", 20).row, place_of("all", 20).rank) == ("cCov-GAN-PN", 2)


def test_rows_before_it_are_named_with_paired_differences_the_first_first():
    place = place_of("novel", 1)

    assert (place.rank, place.num_rows, place.accuracy) == (3, 5, 50.0)
    assert not place.is_first_or_second
    assert [(each.row, each.head, each.is_sure) for each in place.ahead] == [
        ("AWG-cosine", "own", True),
        ("copy", "linear", False),
    ]
    # By draw 49 - 49, 51 - 50 and 56 - 51: mean 2, deviation root 7, times 4.303 over root 3.
    assert place.ahead[1].step.difference == pytest.approx(2.0)
    assert place.ahead[1].step.interval == pytest.approx(4.302653 * (7 / 3) ** 0.5)
    assert [each.what for each in place.ahead] == [
        "a baseline that synthesises nothing, on features of a backbone that was trained with a "
        "cosine classifier",
        "a control that copies related base examples",
    ]


def test_a_row_counts_with_its_own_head_only():
    # With the cosine head copies would be before all.
    assert place_of("novel", 20).ahead == ()


def test_equal_means_share_a_rank():
    scores = frame_of({("LR", "linear"): 50.0, ("cCov-GAN", "linear"): 50.0 + 1e-12})
    methods = {"LR": "LR", "cCov-GAN": "cCov-GAN"}

    for subject in methods:
        places = standing(scores, HEADS, methods, [subject])
        assert {place.rank for place in places} == {1}


def test_all_rows_before_it_are_told_the_best_first():
    names = ["LR", "none", "copy", "mean-shift", "half-mean-shift"]
    scores = frame_of({(name, "linear"): 50.0 + n for n, name in enumerate(names)})
    heads = dict.fromkeys(names, "linear")

    place, *_ = standing(scores, heads, dict(zip(names, names, strict=True)), ["LR"])

    assert place.rank == 5
    assert [each.row for each in place.ahead] == names[:0:-1]


@pytest.mark.parametrize("subjects", [["CP-AAN+"], []])
def test_subjects_have_to_be_among_the_rows(subjects):
    with pytest.raises(ValueError, match="subjects should be among the rows copy, LR"):
        standing(SCORES, HEADS, METHODS, subjects)


def test_a_row_without_scores_is_refused_and_not_passed_over():
    with pytest.raises(ValueError, match="no scores of LR with the head cosine"):
        standing(SCORES, {**HEADS, "LR": "cosine"}, METHODS, SUBJECTS)

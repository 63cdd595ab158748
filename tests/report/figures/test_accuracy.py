import pandas as pd
import pytest

from cpaan.protocol.statistics import summarise
from cpaan.report.figures.accuracy import (
    accuracy_against_diversity,
    accuracy_against_shots,
    draw_accuracy,
    gain_of_variants,
)
from cpaan.report.figures.picture import PALE, look_of
from cpaan.report.table_one import ranked_cells
from helpers.frames import scores_of

SCORES = scores_of(
    {
        ("PN", "centroid"): {1: [40, 42], 5: [60, 62]},
        ("PN", "linear"): {1: [90, 90], 5: [90, 90]},
        ("FH", "linear"): {1: [44, 46], 5: [58, 60]},
        ("copy", "linear"): {1: [30, 32], 5: [50, 52]},
    }
)
HEADS = {"PN": "centroid", "FH": "linear", "copy": "linear"}
CELLS = ranked_cells(summarise(SCORES), HEADS)


def test_lines_are_means_over_draws_with_the_head_of_each_row():
    picture = accuracy_against_shots(CELLS, ["PN", "FH"])

    novel, every = picture.figure.axes
    lines = {line.get_color(): list(line.get_ydata()) for line in novel.lines}
    assert lines == {PALE: [31, 51], look_of(0).color: [41, 61], look_of(1).color: [45, 59]}
    assert [list(x.get_ydata()) for x in every.lines if x.get_color() == PALE] == [[41, 61]]
    assert {text.get_text() for text in novel.texts} == {"PN", "FH"}
    assert "At K = 1, of 3 rows, FH has the highest LSL, 45.0 %" in picture.alt
    assert "At K = 5, of 3 rows, PN has the highest LSL, 61.0 %" in picture.alt
    assert "the other 1 rows" in picture.caption
    # A single draw has no interval.
    one_draw = summarise(scores_of({("PN", "centroid"): {1: [40], 5: [60]}}))
    assert "40.0 %" in accuracy_against_shots(ranked_cells(one_draw, HEADS), ["PN"]).alt


def test_an_evaluation_is_drawn_by_head_as_a_file_of_its_own():
    content = draw_accuracy(SCORES)

    assert content.startswith("<?xml")
    assert all(title in content for title in ("LSL, centroid", "GLSL, linear", "FH", "copy"))


def test_generators_are_where_their_diversity_and_their_accuracy_are():
    ratios = {"FH": [0.8, 1.0], "copy": [1.4, 1.4], "another": [1, 1]}
    rows = [(name, 1, draw, 0, x) for name, of in ratios.items() for draw, x in enumerate(of)]
    diversity = pd.DataFrame(rows, columns=["method", "shots", "draw", "seed", "ratio"])

    picture = accuracy_against_diversity(CELLS, diversity)

    assert picture.alt == (
        "At K = 1, of 2 generators, FH has the highest LSL, 45.0 %, with a diversity of 0.90 times "
        "the real one; FH is nearest to the real diversity, with 0.90 and an LSL of 45.0 %."
    )
    novel = picture.figure.axes[0]
    (points,) = [line for line in novel.lines if line.get_marker() == "o"]
    found = sorted(map(tuple, points.get_xydata()))
    assert found == [pytest.approx((0.9, 45)), pytest.approx((1.4, 31))]
    assert {text.get_text() for text in novel.texts} == {"FH", "copy"}
    with pytest.raises(ValueError, match="no row has scores and a diversity at K = 5"):
        accuracy_against_diversity(CELLS, diversity, 5)


# Draws differ by tens of points. NBS-S gains 4 and k = 5 loses 1; the sign of k = 20 is unclear.
VARIANTS = scores_of(
    {
        ("none", "linear"): {1: [20, 40, 60]},
        ("soft", "linear"): {1: [24.1, 44, 63.9]},
        ("hard 5", "linear"): {1: [19, 39, 59]},
        ("hard 5", "cosine"): {1: [99, 99, 99]},
        ("hard 20", "linear"): {1: [17, 43, 60]},
    }
)
LABELS = {"NBS-H, k = 5": "hard 5", "NBS-S": "soft", "NBS-H, k = 20": "hard 20"}
WORDS = {"name": "variants", "title": "Variants", "meaning": "right is better"}


def test_variants_are_compared_draw_by_draw_with_the_reference_under_the_same_head():
    picture = gain_of_variants(VARIANTS, LABELS, "linear", "none", **WORDS)

    assert picture.alt == (
        "Difference in LSL at K = 1, the largest first. NBS-S: +4.0 ± 0.2; NBS-H, k = 20: "
        "+0.0 ± 7.5; NBS-H, k = 5: −1.0 ± 0.0."
    )
    novel, _ = picture.figure.axes
    (marks,) = [each for each in novel.collections if each.get_label() == "K = 1"]
    assert marks.get_offsets()[:, 0].tolist() == pytest.approx([-1, 4, 0])
    assert [colour[3] for colour in marks.get_facecolors()] == [1, 1, 0], "clear of zero"
    assert [label.get_text() for label in novel.get_yticklabels()] == list(LABELS)
    assert "that of none with the same linear head" in picture.caption
    with pytest.raises(ValueError, match="no scores of soft with the head cosine"):
        gain_of_variants(VARIANTS, LABELS, "cosine", "hard 5", **WORDS)


def test_a_variant_with_one_seed_is_compared_with_that_seed():
    one_seed = VARIANTS[(VARIANTS["method"] == "soft") & (VARIANTS["seed"] == 0)]
    scores = pd.concat([VARIANTS, one_seed.assign(method="again")])

    picture = gain_of_variants(scores, {"the same": "again"}, "linear", "soft", **WORDS)

    # The other seed of the reference is one point above this one.
    assert picture.alt.endswith("the same: +0.0 ± 0.0.")
    assert "one training seed" in picture.caption

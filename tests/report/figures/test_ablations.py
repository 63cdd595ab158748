import pandas as pd
import pytest

from cpaan.report.figures.ablations import (
    accuracy_against_diversity,
    gain_by_idea,
    gain_by_neighbours,
)
from helpers.frames import scores_of

SCORES = scores_of(
    {
        ("none", "linear"): {1: [20, 40, 60], 5: [30, 50, 70]},
        ("soft", "linear"): {1: [24, 44, 64], 5: [31, 51, 71]},
        ("hard 5", "linear"): {1: [21, 41, 61], 5: [31, 51, 71]},
        ("hard 5", "cosine"): {1: [99, 99, 99], 5: [99, 99, 99]},
    }
)
LABELS = {"NBS-S": "soft", "NBS-H, k = 5": "hard 5"}


def marks_of(axes):
    return [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() in ("o", "s")]


def test_gains_are_over_the_reference_with_the_same_head():
    picture = gain_by_neighbours(SCORES, LABELS, "linear", "none")

    assert picture.alt == "Gain in LSL at K = 1. NBS-S: +4.0 ± 0.0; NBS-H, k = 5: +1.0 ± 0.0."
    assert marks_of(picture.figure.axes[0]) == pytest.approx([4, 1, 1, 1])
    assert "that of none with the same linear head" in picture.caption


def test_what_an_idea_gives_is_what_is_lost_without_it_worst_first():
    labels = {"without neighbours": "none", "hard ones": "hard 5"}
    picture = gain_by_idea(SCORES, labels, "linear", "soft")

    assert (
        picture.alt
        == "Difference in LSL at K = 1. without neighbours: −4.0 ± 0.0; hard ones: −3.0 ± 0.0."
    )
    assert marks_of(picture.figure.axes[0]) == pytest.approx([-4, -3, -1, 0])


def test_a_variant_with_one_seed_is_compared_with_that_seed():
    one_seed = SCORES[(SCORES["method"] == "soft") & (SCORES["seed"] == 0)]
    scores = pd.concat([SCORES, one_seed.assign(method="soft again")])

    picture = gain_by_idea(scores, {"nothing taken away": "soft again"}, "linear", "soft")

    # The other seed of the whole is a point above this one.
    assert marks_of(picture.figure.axes[0]) == pytest.approx([0, 0])
    assert "one training seed" in picture.caption


@pytest.mark.parametrize("draw", [gain_by_neighbours, gain_by_idea])
def test_a_row_without_scores_is_named(draw):
    with pytest.raises(ValueError, match="soft has no scores with the head cosine"):
        draw(SCORES, LABELS, "cosine", "hard 5")


def diversity_of(ratios: dict[str, list[float]]) -> pd.DataFrame:
    return pd.DataFrame(
        {"method": method, "shots": 1, "draw": draw, "seed": 0, "distance": 9.0, "ratio": ratio}
        for method, found in ratios.items()
        for draw, ratio in enumerate(found)
    )


def test_generators_are_where_their_diversity_and_their_accuracy_are():
    diversity = diversity_of({"soft": [0.8, 0.9, 1.0], "hard 5": [1.4, 1.4, 1.4], "x": [1, 1, 1]})
    heads = dict.fromkeys(["none", "soft", "hard 5"], "linear")

    picture = accuracy_against_diversity(SCORES, diversity, heads)

    assert (
        picture.alt == "At K = 1, of 2 generators, soft has the highest LSL, 44.0 %, with a "
        "diversity of 0.90 times the real one; soft is nearest to the real diversity, with 0.90 "
        "and an LSL of 44.0 %."
    )
    novel = picture.figure.axes[0]
    (points,) = [line for line in novel.lines if line.get_marker() == "o"]
    assert sorted(points.get_xydata().tolist()) == [
        pytest.approx([0.9, 44]),
        pytest.approx([1.4, 41]),
    ]
    assert {text.get_text() for text in novel.texts} == {"soft", "hard 5", "real examples"}


def test_diversity_of_other_rows_only_is_refused():
    with pytest.raises(ValueError, match="no row has scores and a diversity at K = 5"):
        accuracy_against_diversity(SCORES, diversity_of({"soft": [1]}), {"soft": "linear"}, 5)
    with pytest.raises(ValueError, match="no row has a diversity"):
        accuracy_against_diversity(SCORES, pd.DataFrame([]), {"soft": "linear"})

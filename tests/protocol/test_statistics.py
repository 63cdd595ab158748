import pandas as pd
import pytest

from cpaan.protocol.statistics import paired_differences, summarise

T_95_TWO_DEGREES = 4.302653  # Student's t, from a printed table


def scores_of(rows: dict[tuple[str, str], list[list[float]]]) -> pd.DataFrame:
    """Top-5 by row, draw and seed; top-1 is half of it."""
    return pd.DataFrame(
        {
            "method": method,
            "head": head,
            "phase": "validation",
            "column": "novel",
            "shots": 1,
            "draw": draw,
            "seed": seed,
            "top1": value / 2,
            "top5": value,
        }
        for (method, head), draws in rows.items()
        for draw, seeds in enumerate(draws)
        for seed, value in enumerate(seeds)
    )


def test_the_interval_is_over_draws_of_means_over_seeds():
    # Means over seeds: 10, 20, 30; their standard deviation is 10.
    scores = scores_of({("none", "centroid"): [[9.0, 11.0], [18.0, 22.0], [27.0, 33.0]]})

    (cell,) = summarise(scores).to_dict(orient="records")

    assert cell["top5_mean"] == pytest.approx(20.0)
    assert cell["top1_mean"] == pytest.approx(10.0)
    assert cell["top5_std_draws"] == pytest.approx(10.0)
    assert cell["top5_std_seeds"] == pytest.approx(8**0.5)  # of 18 and 22
    assert cell["top5_interval"] == pytest.approx(T_95_TWO_DEGREES * 10.0 / 3**0.5)


def test_a_single_draw_has_no_interval():
    (cell,) = summarise(scores_of({("none", "centroid"): [[9.0]]})).to_dict(orient="records")

    assert cell["top5_mean"] == 9.0
    assert pd.isna(cell["top5_interval"])
    assert pd.isna(cell["top5_std_draws"])


def test_differences_are_taken_draw_by_draw():
    # Draws differ by tens of points, the methods by 1, 2 and 3: that is all that counts.
    scores = scores_of(
        {
            ("none", "centroid"): [[10.0], [30.0], [60.0]],
            ("copy", "centroid"): [[11.0], [32.0], [63.0]],
        }
    )

    (cell,) = paired_differences(scores, "none").to_dict(orient="records")

    assert (cell["method"], cell["head"]) == ("copy", "centroid")
    assert cell["top5_difference"] == pytest.approx(2.0)
    assert cell["top5_interval"] == pytest.approx(T_95_TWO_DEGREES * 1.0 / 3**0.5)


def test_a_row_is_compared_with_the_same_head_or_with_a_named_one():
    scores = scores_of(
        {
            ("none", "centroid"): [[10.0], [10.0]],
            ("none", "linear"): [[20.0], [20.0]],
            ("copy", "linear"): [[23.0], [23.0]],
        }
    )

    same_head = paired_differences(scores, "none")
    named = paired_differences(scores, "none/centroid")

    assert same_head["top5_difference"].tolist() == [3.0]
    assert named["top5_difference"].tolist() == [10.0, 13.0]


def test_an_unknown_row_is_refused_with_those_there_are():
    scores = scores_of({("none", "centroid"): [[10.0], [10.0]]})

    with pytest.raises(ValueError, match=r"no row 'none/knn' .* the rows are none/centroid"):
        paired_differences(scores, "none/knn")

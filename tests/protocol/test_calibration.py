"""Test the choice of biases and heads on the validation phase."""

import pandas as pd
import pytest

from cpaan.protocol.calibration import (
    SCORED,
    best_biases,
    best_heads,
    calibrate,
    means_over_draws,
)

Row = tuple[str, str, str, int, float]
"""Method, head, column, shots and top-5."""


def ranked(*rows: Row) -> list[tuple[str, str, float]]:
    frame = pd.DataFrame(rows, columns=["method", "head", "column", "shots", "top5"])
    frame = frame.assign(draw=range(len(frame)), seed=0, bias=0.0, top1=0.0)
    return list(best_heads(frame).itertuples(index=False, name=None))


def calibrated(*rows: tuple[float, float, float], draw: int = 0) -> pd.DataFrame:
    """Return calibrated scores of one row: bias, top-1 and top-5."""
    key = {"method": "none", "head": "knn", "column": "all_calibrated", "shots": 1}
    frame = pd.DataFrame(rows, columns=["bias", "top1", "top5"])
    return frame.assign(**key, draw=draw, seed=0)


def chosen(scores: pd.DataFrame) -> list[float]:
    ((top1, top5),) = best_biases(scores)[["bias_top1", "bias_top5"]].to_numpy().tolist()
    return [top1, top5]


@pytest.mark.parametrize("noise", [-1e-13, 1e-13])
def test_top1_and_top5_have_a_bias_each_and_rounding_decides_neither(noise):
    scores = calibrated((-0.5, 20, 60 + noise), (0.1, 30, 60), (0.7, 40, 50))

    assert chosen(scores) == [0.7, 0.1]
    (kept,) = calibrate(scores).to_dict("records")
    assert (kept["top1"], kept["top5"]) == (40, 60)


def test_of_equally_good_biases_the_nearest_to_zero_is_chosen():
    level = [(bias, 50.0, 50.0) for bias in (-2.0, 0.1, 0.0, 1.0)]

    assert chosen(calibrated(*level)) == [0.0, 0.0]
    assert chosen(calibrated(*level, (3.0, 50.5, 49.5))) == [3.0, 0.0]
    assert chosen(calibrated(*level, (3.0, 51, 51), (-3.0, 51, 51))) == [-3.0, -3.0]
    # The mean over draws decides: 52 for 0.1, and 51 for zero.
    first, second = ((0.0, 0, 60), (0.1, 0, 50)), ((0.0, 0, 42), (0.1, 0, 54))
    both = pd.concat([calibrated(*first), calibrated(*second, draw=1)])
    assert chosen(both)[1] == 0.1
    means = means_over_draws(both)
    assert means["top5"].tolist() == [51, 52]
    assert chosen(means) == chosen(both)


def test_the_score_of_a_head_is_the_mean_of_lsl_and_glsl_over_all_shots():
    assert ranked(
        *[("PN", "knn", "novel", shots, top5) for shots, top5 in ((1, 20.0), (5, 40.0))],
        *[("PN", "knn", "all_calibrated", shots, top5) for shots, top5 in ((1, 50.0), (5, 70.0))],
        *[("PN", "knn", column, 1, 100.0) for column in ("base", "novel_joint", "all")],
        *[("PN", "linear", "novel", shots, 30.0) for shots in (1, 5)],
        *[("PN", "linear", "all_calibrated", shots, 62.0) for shots in (1, 5)],
    ) == [("PN", "linear", 46.0), ("PN", "knn", 45.0)]


def test_lsl_and_glsl_count_alike_however_many_scores_they_have():
    draws = [("LR", "knn", "novel", 1, 10.0)] * 9

    assert ranked(*draws, ("LR", "knn", "all_calibrated", 1, 90.0)) == [("LR", "knn", 50.0)]


def test_heads_are_compared_within_their_method_and_the_last_bit_decides_nothing():
    scores = [("LR", "knn", 10.0), ("PN", "knn", 80.0), ("LR", "linear", 20.0)]
    scores += [("PN", "linear", 70.0), ("MN", "cosine", 40.0), ("MN", "own", 40.0 + 1e-12)]
    rows = [(*row, column, 1, top5) for *row, top5 in scores for column in SCORED]

    first = [("LR", "linear", 20.0), ("LR", "knn", 10.0), ("PN", "knn", 80.0)]
    then = [("PN", "linear", 70.0), ("MN", "cosine", 40.0), ("MN", "own", 40.0)]
    assert ranked(*rows) == first + then

"""Test the choice of the best head on the validation phase. `tests/evaluation` tests priors."""

import pandas as pd

from cpaan.protocol.priors import best_heads

Row = tuple[str, str, str, int, float]
"""Method, head, column, shots and top-5."""


def found(*rows: Row) -> list[tuple[str, str, float]]:
    frame = pd.DataFrame(rows, columns=["method", "head", "column", "shots", "top5"])
    return list(best_heads(frame).itertuples(index=False, name=None))


def test_the_score_of_a_head_is_the_mean_of_lsl_and_glsl_over_all_shots():
    assert found(
        *[("PN", "knn", "novel", shots, top5) for shots, top5 in ((1, 20.0), (5, 40.0))],
        *[("PN", "knn", "all", shots, top5) for shots, top5 in ((1, 50.0), (5, 70.0))],
        *[("PN", "knn", column, 1, 100.0) for column in ("base", "novel_joint", "all_prior")],
        *[("PN", "linear", "novel", shots, 30.0) for shots in (1, 5)],
        *[("PN", "linear", "all", shots, 62.0) for shots in (1, 5)],
    ) == [("PN", "linear", 46.0), ("PN", "knn", 45.0)]


def test_lsl_and_glsl_count_alike_however_many_scores_they_have():
    draws = [("LR", "knn", "novel", 1, 10.0)] * 9

    assert found(*draws, ("LR", "knn", "all", 1, 90.0)) == [("LR", "knn", 50.0)]


def test_heads_are_compared_within_their_method_and_the_last_bit_decides_nothing():
    scores = [("LR", "knn", 10.0), ("PN", "knn", 80.0), ("LR", "linear", 20.0)]
    scores += [("PN", "linear", 70.0), ("MN", "cosine", 40.0), ("MN", "own", 40.0 + 1e-12)]
    rows = [(*row, column, 1, top5) for *row, top5 in scores for column in ("novel", "all")]

    first = [("LR", "linear", 20.0), ("LR", "knn", 10.0), ("PN", "knn", 80.0)]
    then = [("PN", "linear", 70.0), ("MN", "cosine", 40.0), ("MN", "own", 40.0)]
    assert found(*rows) == first + then

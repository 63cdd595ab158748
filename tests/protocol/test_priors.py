"""Which head did best on the validation phase. (Priors are tested with the benchmark.)"""

import pandas as pd

from cpaan.protocol.priors import best_heads


def row(method: str, head: str, column: str, shots: int, top5: float, draw: int = 0) -> dict:
    key = {"method": method, "head": head, "column": column, "shots": shots, "draw": draw}
    return {**key, "seed": 0, "prior": None, "top1": 0.0, "top5": top5}


def test_the_score_of_a_head_is_the_mean_of_lsl_and_glsl_over_all_shots():
    scores = pd.DataFrame(
        [
            *[row("PN", "knn", "novel", shots, top5) for shots, top5 in ((1, 20), (5, 40))],
            *[row("PN", "knn", "all", shots, top5) for shots, top5 in ((1, 50), (5, 70))],
            row("PN", "knn", "base", 1, 100),
            row("PN", "knn", "novel_joint", 1, 100),
            row("PN", "knn", "all_prior", 1, 100),
            *[row("PN", "linear", "novel", shots, 30) for shots in (1, 5)],
            *[row("PN", "linear", "all", shots, 62) for shots in (1, 5)],
        ]
    )

    found = best_heads(scores)

    assert found.to_dict("records") == [
        {"method": "PN", "head": "linear", "score": 46.0},
        {"method": "PN", "head": "knn", "score": 45.0},
    ]


def test_lsl_and_glsl_count_alike_however_many_scores_they_have():
    scores = pd.DataFrame(
        [
            *[row("LR", "knn", "novel", 1, 10, draw) for draw in range(9)],
            row("LR", "knn", "all", 1, 90),
        ]
    )

    assert best_heads(scores)["score"].tolist() == [50.0]


def test_heads_are_compared_within_their_method():
    scores = pd.DataFrame(
        [
            row(method, head, column, 1, top5)
            for method, head, top5 in (
                ("LR", "knn", 10),
                ("PN", "knn", 80),
                ("LR", "linear", 20),
                ("PN", "linear", 70),
                ("MN", "own", 50),
            )
            for column in ("novel", "all")
        ]
    )

    first = best_heads(scores).drop_duplicates("method").set_index("method")["head"]

    assert first.to_dict() == {"LR": "linear", "PN": "knn", "MN": "own"}


def test_of_equal_heads_the_first_is_taken_whatever_the_last_bit_says():
    scores = pd.DataFrame(
        [
            row("LR", head, column, 1, top5)
            for head, top5 in (("centroid", 40.0), ("knn", 40.0 + 1e-12))
            for column in ("novel", "all")
        ]
    )

    assert best_heads(scores)["head"].tolist() == ["centroid", "knn"]

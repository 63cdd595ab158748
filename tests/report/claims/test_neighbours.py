"""Verdicts on neighbourhood batch sampling, from rows of an ablation."""

import pandas as pd

from cpaan.report.claims import Claim, judge_claims
from helpers.score_frames import frame_of, same

HELP, SOFT, HARD = (
    "neighbours help (cCov-GAN-PN)",
    "soft neighbours are as good (cCov-GAN-PN)",
    "hard neighbours need the right k (cCov-GAN-PN)",
)


def claims_of(values: dict[str, object], head: str = "centroid") -> dict[str, Claim]:
    """Return claims on rows of one ablation, by their labels, which have this head only."""
    rows = {("cCov-GAN-PN", "centroid"): 50.0}
    rows |= {(f"cCov-GAN-PN, {label}", head): value for label, value in values.items()}
    names = [name for name, _ in rows]
    ablations = [
        {
            "name": f"cCov-GAN-PN, {label}",
            "of": "cCov-GAN-PN",
            "family": "neighbours",
            "label": label,
        }
        for label in values
    ]
    claims = judge_claims(
        frame_of(rows),
        pd.DataFrame(),
        dict.fromkeys(names, "cCov-GAN-PN"),
        dict.fromkeys(names, "centroid"),
        ablations,
    )
    return {claim.name: claim for claim in claims}


def test_related_base_classes_have_to_do_better_than_all():
    better = claims_of({"NBS-S": 50.0, "all base classes": 48.0})
    only_novel = claims_of({"NBS-S": 50.0, "all base classes": same(48.0, {("all", 1): 54.0})})

    assert better.keys() == {HELP}
    assert better[HELP].verdict == "confirmed"
    assert better[HELP].found == "LSL +2.00 ± 0.00, GLSL +2.00 ± 0.00"
    # GLSL is 4 below at one shot and 2 above at twenty.
    assert only_novel[HELP].found == "LSL +2.00 ± 0.00, GLSL -1.00 ± 0.00"
    assert only_novel[HELP].verdict == "not confirmed"


def test_variants_that_have_another_head_than_their_row_are_compared_with_that():
    claims = claims_of({"NBS-S": 50.0, "all base classes": 48.0}, head="linear")

    (claim,) = claims.values()
    assert claim.name == "neighbours help (cCov-GAN-PN, linear head)"
    assert claim.verdict == "confirmed"


def test_soft_neighbours_meet_the_best_k_of_each_column():
    claims = claims_of(
        {
            "NBS-S": 50.0,
            "NBS-H, k = 1": same(50.0, {("all", 1): 48.0, ("all", 20): 48.0}),
            "NBS-H, k = 5": 49.0,
        }
    )

    assert claims[SOFT].found == (
        "LSL +0.00 ± 0.00 to NBS-H, k = 1, GLSL +1.00 ± 0.00 to NBS-H, k = 5"
    )
    assert claims[SOFT].verdict == "confirmed"
    assert claims_of({"NBS-S": 50.0, "NBS-H, k = 1": 50.2})[SOFT].verdict == "not confirmed"


def test_a_difference_between_ks_has_to_be_more_than_chance():
    sensitive = claims_of({"NBS-H, k = 1": 50.0, "NBS-H, k = 5": 53.0})
    flat = claims_of({"NBS-H, k = 1": 50.0, "NBS-H, k = 5": 50.1})
    # By draw 0, 3 and 6, so ±7.5 for one pair alone.
    noisy = claims_of({"NBS-H, k = 1": [50.0] * 3, "NBS-H, k = 5": [50.0, 53.0, 56.0]})

    assert sensitive.keys() == {HARD}
    assert sensitive[HARD].found == (
        "LSL +3.00 ± 0.00 from NBS-H, k = 1 to NBS-H, k = 5, "
        "GLSL +3.00 ± 0.00 from NBS-H, k = 1 to NBS-H, k = 5"
    )
    assert sensitive[HARD].verdict == "confirmed"
    assert flat[HARD].verdict == "not confirmed"
    assert noisy[HARD].verdict == "unclear"


def test_with_more_ks_the_same_difference_says_less():
    # By draw 2, 3 and 4. Student's t for two degrees leaves 5 % in two parts outside 6.205, and in
    # six parts (three pairs, two columns) outside 10.886; each over the root of three draws.
    best, worst = [52.0, 53.0, 54.0], [50.0] * 3
    rows = {"NBS-H, k = 1": same(worst), "NBS-H, k = 5": same(best)}

    two = claims_of(rows)[HARD]
    three = claims_of({**rows, "NBS-H, k = 10": same(51.0)})[HARD]

    assert "LSL +3.00 ± 3.58" in two.found
    assert "LSL +3.00 ± 6.28" in three.found
    assert two.verdict == three.verdict == "unclear"


def test_rows_of_an_ablation_stand_for_no_method():
    name = "cCov-GAN-PN, all base classes"
    ablation = {
        "name": name,
        "of": "cCov-GAN-PN",
        "family": "neighbours",
        "label": "all base classes",
    }
    methods = {"PN": "PN", name: "cCov-GAN-PN"}
    scores = frame_of({("PN", "centroid"): 40.0, (name, "centroid"): 42.0})
    heads = dict.fromkeys(methods, "centroid")

    # The row that it varies could not be trained, so there is nothing to hold against PN.
    assert judge_claims(scores, pd.DataFrame(), methods, heads, [ablation]) == []

"""Test verdicts on claims, with scores whose differences can be computed by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from cpaan.protocol.calibration import CALIBRATED
from cpaan.report.claims.judge import judge_claims
from cpaan.report.claims.verdict import CONFIRMED, NOT_FOUND, OPPOSITE, SMALLER, UNDECIDED
from helpers.frames import Draws, claims_of, frame_of, same

OURS, PN = ("cCov-GAN-PN", "centroid"), ("PN", "centroid")
FH, P_FH, FI, FI_PMN = ("FH", "linear"), ("P-FH", "linear"), ("FI-PN", "own"), ("FI-PMN", "own")
PLAIN, CYCLE, MIXTURE = ((f"{name}-PN", "centroid") for name in ("c-GAN", "cCyc-GAN", "cDeLi-GAN"))
WHOLE = ("cCyc-GAN-PN/recommended-weight", "centroid")
WITHOUT = ("cCyc-GAN-PN/without-cycle", "centroid")


@pytest.mark.parametrize("other", [PN, ("none-PN", "centroid")])
@pytest.mark.parametrize(
    ("level", "verdict"),
    [
        (60.0, CONFIRMED),
        (50.5, SMALLER),
        (49.0, OPPOSITE),
        ([49.0, 50.1, 50.9], NOT_FOUND),
        ([45.0, 50.0, 55.0], UNDECIDED),
    ],
)
def test_a_gain_has_the_verdict_of_its_difference_with_or_without_a_printed_one(
    level, verdict, other
):
    judgement = claims_of({OURS: level, other: 50.0})[f"cCov-GAN-PN over {other[0]}"]

    assert judgement.verdict == verdict


def test_printed_numbers_are_differences_in_the_papers_tables():
    names = ["PN", "AWG", "wDAE", "FH", "P-FH", "FI-PN", "FI-PMN", "none-PN", "cCyc-GAN-PN"]
    heads = ["centroid", "own", "own", "linear", "linear", "own", "own", "centroid", "centroid"]
    rows = dict.fromkeys([*zip(names, heads, strict=True), OURS, WHOLE, WITHOUT], 50.0)

    printed = {name: judgement.printed for name, judgement in claims_of(rows).items()}

    expected = {
        "AWG over PN": "+6.6",  # 46.0 and 39.4
        "wDAE over PN": "+8.6",  # 47.99 in the table of another paper
        "cCov-GAN-PN over PN": "+9.0",
        "cCov-GAN-PN over none-PN": "",
        "gain by the cycle term": "+3.9",  # of cCyc-GAN over c-GAN: 42.5 and 38.6
        # GLSL at K = 20 over FI-PMN, and LSL at K = 1 over FH.
        "gain over earlier augmentation": "+0.6 to +7.7",
        "gain is largest at the fewest shots": "+6.2",  # 9.0 and 2.8
    }
    assert {name: printed[name] for name in expected} == expected


def with_calibrated(plain: float, calibrated: Draws) -> dict[tuple[str, int], Draws]:
    """Return equal LSL and GLSL, and calibrated GLSL, at one and twenty shots."""
    return same(plain, {(CALIBRATED, 1): calibrated, (CALIBRATED, 20): calibrated})


def test_calibrated_glsl_and_other_heads_are_reported_and_decide_nothing():
    rows = {OURS: with_calibrated(43.0, 61.0), FI: with_calibrated(42.0, 63.0)}
    rows |= {("cCov-GAN-PN", "knn"): with_calibrated(45.0, 65.0)}
    rows |= {("FI-PN", "knn"): with_calibrated(40.0, 64.5)}

    judgement = claims_of(rows)["cCov-GAN-PN over FI-PN"]

    assert judgement.verdict == SMALLER
    asides = {words: gap.value for words, (gap,) in judgement.undecisive.items()}
    assert asides == {
        "calibrated GLSL": -2.0,
        "LSL, knn head": 5.0,
        "calibrated GLSL, knn head": 0.5,
    }


def test_calibrated_glsl_takes_the_place_of_glsl_in_claims_about_all_columns():
    # In plain GLSL, cCov-GAN-PN is 6 points above all rows.
    rows = {OURS: with_calibrated(50.0, 60.0), FH: with_calibrated(44.0, 61.0)}
    rows |= dict.fromkeys((P_FH, FI, FI_PMN), with_calibrated(44.0, 54.0))
    judgement = claims_of(rows)["gain over earlier augmentation"]

    assert [part.gap.value for part in judgement.extremes] == [-1.0, 6.0]
    assert judgement.extremes[0].label == "over FH (calibrated GLSL K = 1)"


def gans(*levels: Draws | dict[tuple[str, int], Draws]) -> dict[tuple[str, str], Draws]:
    """Return the scores of c-GAN, cCyc-GAN, cDeLi-GAN and cCov-GAN."""
    return dict(zip((PLAIN, CYCLE, MIXTURE, OURS), levels, strict=True))


ORDER, PLACE = "order of the GANs", "first or second"
FEWEST, OVER = "gain is largest at the fewest shots", "cCov-GAN over the controls"
EARLIER = {P_FH: 44.0, FI: 44.0, FI_PMN: 44.0}
RIVALS = {("LR", "linear"): 20.0, PN: 41.0, ("AWG", "own"): 45.0}
# Rows that the paper does not have.
LATER = {("wDAE", "own"): 90.0, ("copy", "linear"): 91.0, ("DC", "linear"): 92.0}
CONTROLS = {("none", "linear"): 40.0, ("copy", "linear"): 44.0, ("cCov-GAN", "linear"): 45.0}
SHIFTED = {("mean-shift", "linear"): 45.2}


def at_20(few: float, many: Draws) -> dict[tuple[str, int], Draws]:
    """Return equal scores, but other LSL at twenty shots."""
    return same(few, {("novel", 20): many})


SOFT, ALL, K1, K5 = (
    (f"cCov-GAN-PN/{key}", "centroid") for key in ("soft", "all", "hard-1", "hard-5")
)
HELP, BEST_K, RIGHT_K = (
    f"{name} (cCov-GAN-PN)"
    for name in (
        "neighbours help",
        "soft neighbours are better",
        "hard neighbours need the right k",
    )
)
LOWER_IN_GLSL = same(50.0, {("all", 1): 48.0, ("all", 20): 48.0})
HIGHER_IN_GLSL = same(48.0, {("all", 1): 54.0})


@pytest.mark.parametrize(
    ("name", "rows", "verdict", "differences"),
    [
        (
            "gain over earlier augmentation",
            {**EARLIER, FH: same(40.0, {("all", 20): 49.0}), OURS: 46.0},
            NOT_FOUND,
            [6, 6, 6, -3, *[2] * 12],
        ),
        # Two differences of any pair of GANs: at the fewest shots, and in the mean over shots.
        (ORDER, gans(1.0, 5.0, 9.0, 12.0), CONFIRMED, [4, 4, 4, 4, 3, 3]),
        (ORDER, gans(1.0, 2.0, 3.0, [-6.0, 4.0, 14.0]), UNDECIDED, [1] * 6),
        # The mean gain of cCyc-GAN is 1.0, which is less than half of (3.9 + 0.6) / 2.
        (
            ORDER,
            gans(1.0, at_20(5.0, -1.0), at_20(9.0, 3.0), at_20(12.0, 6.0)),
            SMALLER,
            [4, 1, 4, 4, 3, 3],
        ),
        (ORDER, gans(1.0, 2.0, 3.0, at_20(5.0, 0.0)), NOT_FOUND, [1, 1, 1, 1, 2, -0.5]),
        ("c-GAN below earlier augmentation", {FH: 41.0, FI: 45.0, PLAIN: 42.0}, NOT_FOUND, [-1, 3]),
        # AWG is better, and PN is the second best of the others.
        (PLACE, {**RIVALS, **LATER, OURS: 44.0}, CONFIRMED, [3] * 4),
        (PLACE, {**RIVALS, OURS: same(50.0, {("all", 1): 40.5})}, NOT_FOUND, [9, 9, -0.5, 9]),
        # PN is 3 ± 4.3 behind in one column.
        (
            PLACE,
            {**RIVALS, OURS: same(50.0, {("all", 1): [42.0, 43.0, 47.0]})},
            UNDECIDED,
            [9, 9, 3, 9],
        ),
        # Differences by draw: 2 - 1, 2 - 0.5 and 2 - 0.
        (FEWEST, {PN: at_20(40.0, 70.0), OURS: at_20(42.0, [70.0, 70.5, 71.0])}, SMALLER, [1.5]),
        (FEWEST, {PN: 40.0, OURS: at_20(42.0, 45.0)}, OPPOSITE, [-3]),
        # A report may lack some controls.
        (OVER, CONTROLS, CONFIRMED, [5, 1]),
        (OVER, {**CONTROLS, **SHIFTED}, NOT_FOUND, [5, -0.2, 1]),
        # PN has another embedding, so it is not a control.
        (
            "cCov-GAN-PN over the controls",
            {OURS: 45.0, PN: 44.0, ("none-PN", "centroid"): 43.0},
            CONFIRMED,
            [2],
        ),
        # The tuned row does not count.
        ("gain by the cycle term", {CYCLE: 70.0, WHOLE: 50.0, WITHOUT: 49.0}, SMALLER, [1]),
        # Kinds of neighbours, in LSL and GLSL, in the mean over shots.
        (HELP, {OURS: 50.0, SOFT: 50.0, ALL: 48.0}, CONFIRMED, [2, 2]),
        (HELP, {OURS: 50.0, SOFT: 50.0, ALL: HIGHER_IN_GLSL}, NOT_FOUND, [2, -1]),
        # The best k is 1 in LSL and 5 in GLSL.
        (BEST_K, {OURS: 50.0, SOFT: 50.0, K1: LOWER_IN_GLSL, K5: 49.0}, NOT_FOUND, [0, 1]),
        (BEST_K, {OURS: 50.0, SOFT: 50.0, K1: 51.0}, OPPOSITE, [-1, -1]),
        (RIGHT_K, {OURS: 50.0, K1: 50.0, K5: 53.0}, CONFIRMED, [3, 3]),
        # Differences by draw are 0, 3 and 6, so the interval of one pair is ±7.5.
        (RIGHT_K, {OURS: 50.0, K1: [50.0] * 3, K5: [50.0, 53.0, 56.0]}, UNDECIDED, [3, 3]),
    ],
)
def test_a_claim_of_several_comparisons_has_their_differences_and_a_verdict(
    name, rows, verdict, differences
):
    judgement = claims_of(rows)[name]

    assert [part.gap.value for part in judgement.parts] == pytest.approx(differences)
    assert judgement.verdict == verdict


def test_variants_with_another_head_than_their_row_are_compared_under_that_head():
    # The first variant equals the row, so it has all heads of the row.
    rows = {(name, "linear"): level for (name, _), level in {SOFT: 50.0, ALL: 48.0}.items()}

    (part, _) = claims_of({OURS: 50.0, SOFT: 60.0, **rows})[HELP].parts

    assert part.gap.value == pytest.approx(2)


def test_with_more_ks_the_same_difference_says_less():
    # Differences by draw are 2, 3 and 4. Student's t of two degrees of freedom is 6.205 for two
    # contrasts and 10.886 for six (three pairs in two orders); each is divided by sqrt(3).
    rows = {OURS: 50.0, K1: [50.0] * 3, K5: [52.0, 53.0, 54.0]}
    another = {("cCov-GAN-PN/hard-20", "centroid"): 51.0}

    intervals = [claims_of(x)[RIGHT_K].parts[0].gap.interval for x in (rows, rows | another)]

    assert intervals == pytest.approx([3.58, 6.28], abs=0.01)


LACKS, MORE, NEAREST = (
    "earlier augmentation lacks diversity",
    "cCov-GAN is more diverse",
    "cCov-GAN is nearest to the real diversity",
)


@pytest.mark.parametrize(
    ("name", "ratios", "verdict", "differences"),
    [
        (LACKS, {"FH": 0.8, "FI-PN": 0.5}, CONFIRMED, [0.2, 0.5]),
        (LACKS, {"FH": 0.8, "FI-PN": 1.1}, NOT_FOUND, [0.2, -0.1]),
        (LACKS, {"FH": 0.8, "FI-PN": math.nan}, CONFIRMED, [0.2]),  # FI synthesises nothing
        (MORE, {"FH": 0.8, "c-GAN-PN": 0.3, OURS[0]: 0.9}, CONFIRMED, [0.1, 0.6]),
        (MORE, {"FH": 0.88, OURS[0]: 0.9}, SMALLER, [0.02]),
        # The interval of two draws is ±0.38: below half a point, but large for a ratio.
        (MORE, {"FH": 0.9, OURS[0]: [0.92, 0.98]}, UNDECIDED, [0.05]),
        # Ratios 2 and 1/2 are equally near; log(2 / 1.1) is 0.598.
        (NEAREST, {"cDeLi-GAN-PN": 2.0, "cCyc-GAN-PN": 0.5, OURS[0]: 1.1}, CONFIRMED, [0.598] * 2),
        (NEAREST, {"FH": 0.98, OURS[0]: 1.1}, OPPOSITE, [-math.log(0.98) - math.log(1.1)]),
        # All examples are equal: 0.001 stands for zero.
        (NEAREST, {"c-GAN-PN": 0.0, OURS[0]: 0.5}, CONFIRMED, [math.log(1000) - math.log(2)]),
    ],
)
def test_diversity_is_judged_by_ratios_to_the_real_data(name, ratios, verdict, differences):
    rows = {(row, "any"): same(50.0, {("novel", 5): 50.0}) for row in ratios}
    draws = {row: {5: np.broadcast_to(ratio, 2)} for row, ratio in ratios.items()}

    judgement = claims_of(rows, draws)[name]

    assert [part.gap.value for part in judgement.parts] == pytest.approx(differences, abs=1e-3)
    assert judgement.verdict == verdict


PICKED = "over cCov-GAN-PN: NBS-H, k = 1"


@pytest.mark.parametrize(
    ("name", "rows", "labels"),
    [
        ("cCov-GAN-PN over PN", {OURS: 45.0, PN: 44.0}, [""]),
        (OVER, CONTROLS, ["over none", "over copy"]),
        ("c-GAN below earlier augmentation", {FH: 41.0, FI: 45.0, PLAIN: 42.0}, ["FH", "FI-PN"]),
        (
            BEST_K,
            {OURS: 50.0, SOFT: 50.0, K1: 49.0},
            [f"{PICKED} ({column} mean over all K)" for column in ("LSL", "GLSL")],
        ),
    ],
)
def test_labels_name_rows_that_differ_or_were_picked_and_cells_that_differ(name, rows, labels):
    assert [part.label for part in claims_of(rows)[name].parts] == labels


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(0.5, CONFIRMED), (0.93, SMALLER), (0.96, NOT_FOUND), (1.1, OPPOSITE)]
)
def test_the_cycle_prevents_collapse_if_examples_without_it_are_less_diverse_at_one_shot(
    ratio, verdict
):
    # Twenty shots say the opposite.
    ratios = {WHOLE[0]: {1: [0.95] * 2, 20: [0.1] * 2}, WITHOUT[0]: {1: [ratio] * 2, 20: [0.9] * 2}}

    assert claims_of({CYCLE: 50.0}, ratios)["the cycle prevents collapse"].verdict == verdict


def test_claims_without_their_rows_are_left_out():
    assert claims_of({PN: 40.0, ("LR", "linear"): 41.0}) == {}
    # The paper's rule uses the centroid head for PN, so a linear head alone does not count.
    assert "cCov-GAN-PN over PN" not in claims_of({("PN", "linear"): 1.0, OURS: 2.0})


def test_in_a_study_of_one_method_its_last_row_stands_for_it_and_one_seed_decides_nothing():
    levels = {"copy": 45.0, "cCov-GAN, default": 44.0, "cCov-GAN, best": 46.0}
    scores = frame_of({(name, "cosine"): value for name, value in levels.items()})
    methods = {name: name.partition(",")[0] for name in levels}
    heads = dict.fromkeys(methods, "cosine")

    (judgement,) = judge_claims(scores, pd.DataFrame(), methods, heads, {})

    assert judgement.claim.name == "cCov-GAN over the controls"
    assert [part.gap.value for part in judgement.parts] == pytest.approx([1])
    assert (judgement.verdict, judgement.deciding) == (UNDECIDED, ())

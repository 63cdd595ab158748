"""Test verdicts on neighbourhood batch sampling and on the spread of synthetic examples."""

import math
import re

import pandas as pd
import pytest

from cpaan.report.claims.judge import WITH_TERM
from cpaan.report.claims.mechanisms import judge_diversity
from cpaan.report.claims.verdict import Claim, with_verdicts
from helpers.frames import claims_of, same

OF = "cCov-GAN-PN"
HELP, SOFT, HARD = (
    f"neighbours help ({OF})",
    f"soft neighbours are better ({OF})",
    f"hard neighbours need the right k ({OF})",
)


def neighbour_claims(values: dict[str, object], head: str = "centroid") -> dict[str, Claim]:
    """Return claims on ablations by label, which have only the given head."""
    variants = {(f"{OF}: {label}", head): value for label, value in values.items()}
    return claims_of({(OF, "centroid"): 50.0, **variants}, family="neighbours")


K1, K5, ALL = "NBS-H, k = 1", "NBS-H, k = 5", "all base classes"
LOWER_IN_GLSL = same(50.0, {("all", 1): 48.0, ("all", 20): 48.0})
FIVE_OVER_ONE = f"LSL {K5} over {K1}: +"


@pytest.mark.parametrize(
    ("values", "name", "verdict", "found"),
    [
        ({"NBS-S": 50.0, ALL: 48.0}, HELP, "confirmed", "LSL +2.00 ± 0.00; GLSL +2.00 ± 0.00"),
        (  # GLSL is 4 below at one shot and 2 above at twenty.
            *({"NBS-S": 50.0, ALL: same(48.0, {("all", 1): 54.0})}, HELP, "not found"),
            "LSL +2.00 ± 0.00; GLSL −1.00 ± 0.00",
        ),
        (
            *({"NBS-S": 50.0, K1: LOWER_IN_GLSL, K5: 49.0}, SOFT, "not found"),
            f"LSL over {K1}: +0.00 ± 0.00; GLSL over {K5}: +1.00 ± 0.00",
        ),
        ({"NBS-S": 50.0, K1: 49.0}, SOFT, "confirmed", f"LSL over {K1}: +"),
        ({"NBS-S": 50.0, K1: 50.2}, SOFT, "not found", f"LSL over {K1}: −"),
        ({"NBS-S": 50.0, K1: 51.0}, SOFT, "opposite", f"LSL over {K1}: −"),
        ({K1: 50.0, K5: 53.0}, HARD, "confirmed", FIVE_OVER_ONE),
        # Differences by draw are 0, 3 and 6, so the interval of one pair is ±7.5.
        ({K1: [50.0] * 3, K5: [50.0, 53.0, 56.0]}, HARD, "undecided", FIVE_OVER_ONE),
    ],
)
def test_kinds_of_neighbours_are_compared_in_lsl_and_glsl(values, name, verdict, found):
    claim = neighbour_claims(values)[name]

    assert claim.verdict == verdict
    assert re.sub(r" \(by seed .*?\)", "", claim.found).startswith(found)


def test_variants_with_another_head_than_their_row_are_compared_under_that_head():
    (claim,) = neighbour_claims({"NBS-S": 50.0, ALL: 48.0}, head="linear").values()

    assert claim.name == "neighbours help (cCov-GAN-PN, linear head)"
    assert claim.verdict == "confirmed"


def test_with_more_ks_the_same_difference_says_less():
    # Differences by draw are 2, 3 and 4. Student's t of two degrees of freedom is 6.205 for two
    # comparisons and 10.886 for six (three pairs, two columns); each is divided by sqrt(3).
    rows = {K1: [50.0] * 3, K5: [52.0, 53.0, 54.0]}

    assert "+3.00 ± 3.58" in neighbour_claims(rows)[HARD].found
    assert "+3.00 ± 6.28" in neighbour_claims({**rows, "NBS-H, k = 10": 51.0})[HARD].found


LACKS, MORE, NEAREST = (
    "earlier augmentation lacks diversity",
    "cCov-GAN is more diverse",
    "cCov-GAN is nearest to the real diversity",
)


WITH_AND_WITHOUT = ("cCyc-GAN-PN: whole", "cCyc-GAN-PN: without the cycle term")


def diversity_claims(ratios: dict[tuple[str, int], list[float]]) -> dict[str, Claim]:
    """Return claims on ratios to the real data, by row and shots."""
    columns = ["method", "shots", "draw", "seed", "ratio"]
    rows = [
        (*key, draw, seed, value)
        for key, of in ratios.items()
        for draw, value in enumerate(of)
        for seed in (3, 4)
    ]
    frame = pd.DataFrame(rows, columns=columns)
    claims = judge_diversity(frame, {name: name for name, _ in ratios}, WITH_AND_WITHOUT)
    return {claim.name: claim for claim in with_verdicts(claims)}


@pytest.mark.parametrize(
    ("name", "ratios", "found", "verdict"),
    [
        (LACKS, {"FH": 0.8, "FI-PN": 0.5}, "FH +0.20 ± 0.00; FI-PN +0.50 ± 0.00", "confirmed"),
        (LACKS, {"FH": 0.8, "FI-PN": 1.1}, None, "not found"),
        (LACKS, {"FH": 1.2, "FI-PN": 1.1}, None, "opposite"),
        (
            MORE,
            {"FH": 0.8, "c-GAN-PN": 0.3, OF: 0.9},
            "FH +0.10 ± 0.00; c-GAN-PN +0.60 ± 0.00",
            "confirmed",
        ),
        (MORE, {"FH": 0.8, "FI-PMN": 1.2, OF: 0.9}, None, "not found"),
        (MORE, {"FH": 0.88, OF: 0.9}, None, "same sign, much smaller"),
        # Ratios 2 and 1/2 are equally near; log(2 / 1.1) is 0.60.
        (
            NEAREST,
            {"cDeLi-GAN-PN": 2.0, "cCyc-GAN-PN": 0.5, OF: 1.1},
            "cCyc-GAN-PN +0.60 ± 0.00; cDeLi-GAN-PN +0.60 ± 0.00",
            "confirmed",
        ),
        (NEAREST, {"FH": 0.98, OF: 1.1}, None, "opposite"),
        (NEAREST, {"c-GAN-PN": 0.0, OF: 0.5}, None, "confirmed"),  # all examples are equal
    ],
)
def test_diversity_is_judged_by_ratios_to_the_real_data(name, ratios, found, verdict):
    claim = diversity_claims({(row, 5): [value] * 2 for row, value in ratios.items()})[name]

    assert claim.verdict == verdict
    assert claim.found.startswith(found or "")


def test_ratios_have_a_margin_of_their_own():
    # The interval of two draws is ±0.38: below half a point, but large for a ratio.
    claim = diversity_claims({("FH", 5): [0.9, 0.9], (OF, 5): [0.92, 0.98]})[MORE]

    assert (claim.found, claim.verdict) == ("FH +0.05 ± 0.38", "undecided")


def test_five_shots_count_and_rows_that_synthesise_nothing_there_do_not():
    at_one = {("FH", 1): [0.1] * 2, ("FI-PN", 1): [0.1] * 2}
    at_five = {("FH", 5): [0.8] * 2, ("FI-PN", 5): [math.nan] * 2}

    assert diversity_claims({**at_one, **at_five})[LACKS].found == "FH +0.20 ± 0.00"
    assert "K = 1" in diversity_claims(at_one)[LACKS].text
    assert diversity_claims({("DC", 5): [1.0] * 2}) == {}


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(0.5, "confirmed"), (0.93, "same sign, much smaller"), (0.96, "not found"), (1.1, "opposite")],
)
def test_the_cycle_prevents_collapse_if_examples_without_it_are_less_diverse_at_one_shot(
    ratio, verdict
):
    whole, without = WITH_AND_WITHOUT
    ratios = {(whole, 1): [0.95] * 2, (without, 1): [ratio] * 2}
    # Five shots say the opposite, and the tuned row does not count.
    ratios |= {(whole, 5): [0.1] * 2, (without, 5): [0.9] * 2, ("cCyc-GAN-PN", 1): [0.2] * 2}

    claim = diversity_claims(ratios)["the cycle prevents collapse"]

    assert (claim.verdict, claim.kind, claim.marks) == (verdict, "primary", ())
    assert "K = 1" in claim.text


def test_claims_find_the_diversity_of_the_rows_with_and_without_the_cycle():
    labels = ("", f": {WITH_TERM}", ": without the cycle term")
    ratios = dict(zip([f"cCyc-GAN-PN{label}" for label in labels], (0.5, 0.9, 0.5), strict=True))
    rows = {(name, "centroid"): 50.0 for name in ratios}

    claim = claims_of(rows, family="terms", ratios=ratios)["the cycle prevents collapse"]

    assert claim.found.startswith("+0.40 ± 0.00 (by seed +0.40, +0.40)")

"""Verdicts on how synthetic examples spread, beside real ones."""

import math

import pandas as pd

from cpaan.report.claims import Claim
from cpaan.report.claims.diversity import judge_diversity

LACKS, MORE, NEAREST = (
    "earlier augmentation lacks diversity",
    "cCov-GAN is more diverse",
    "cCov-GAN is nearest to the real diversity",
)


def claims_of(ratios: dict[str, list[float]], shots: int = 5) -> dict[str, Claim]:
    """Return claims on ratios to the real data, by row and draw."""
    frame = pd.DataFrame(
        {"method": method, "shots": shots, "draw": draw, "seed": 3, "distance": 1.0, "ratio": ratio}
        for method, draws in ratios.items()
        for draw, ratio in enumerate(draws)
    )
    claims = judge_diversity(frame, {name: name for name in ratios})
    return {claim.name: claim for claim in claims}


def test_less_diverse_than_real_is_a_ratio_below_one():
    claims = claims_of({"FH": [0.8, 0.8], "FI-PN": [0.5, 0.5]})

    assert claims.keys() == {LACKS}
    assert claims[LACKS].found == "FH +0.20 ± 0.00, FI-PN +0.50 ± 0.00"
    assert claims[LACKS].verdict == "confirmed"
    assert claims_of({"FH": [0.8, 0.8], "FI-PN": [1.1, 1.1]})[LACKS].verdict == "not confirmed"


def test_more_diverse_is_more_than_each_of_the_others():
    ratios = {"FH": [0.8, 0.8], "c-GAN-PN": [0.3, 0.3], "cCov-GAN-PN": [0.9, 0.9]}

    assert claims_of(ratios)[MORE].found == "FH +0.10 ± 0.00, c-GAN-PN +0.60 ± 0.00"
    assert claims_of(ratios)[MORE].verdict == "confirmed"
    assert claims_of({**ratios, "FI-PMN": [1.2, 1.2]})[MORE].verdict == "not confirmed"


def test_twice_as_far_is_as_near_as_half():
    ratios = {"cDeLi-GAN-PN": [2.0, 2.0], "cCyc-GAN-PN": [0.5, 0.5], "cCov-GAN-PN": [1.1, 1.1]}

    claim = claims_of(ratios)[NEAREST]

    gap = math.log(2.0) - math.log(1.1)
    assert claim.found == f"cCyc-GAN-PN {gap:+.2f} ± 0.00, cDeLi-GAN-PN {gap:+.2f} ± 0.00"
    assert claim.verdict == "confirmed"
    assert claims_of({**ratios, "FH": [0.98, 0.98]})[NEAREST].verdict == "not confirmed"


def test_ratios_have_a_margin_of_their_own():
    # ±0.38 over two draws, far less than half a point, but a lot for a ratio.
    claims = claims_of({"FH": [0.9, 0.9], "cCov-GAN-PN": [0.92, 0.98]})

    assert claims[MORE].found == "FH +0.05 ± 0.38"
    assert claims[MORE].verdict == "unclear"


def test_a_generator_of_a_single_point_is_far_from_all():
    claim = claims_of({"c-GAN-PN": [0.0, 0.0], "cCov-GAN-PN": [0.5, 0.5]})[NEAREST]

    assert claim.verdict == "confirmed"


def test_five_shots_count_and_rows_that_synthesise_nothing_there_do_not():
    frame = pd.DataFrame(
        {"method": method, "shots": shots, "draw": draw, "seed": 0, "distance": 1.0, "ratio": ratio}
        for method, shots, ratio in [
            ("FH", 1, 0.1),
            ("FH", 5, 0.8),
            ("FI-PN", 1, 0.1),
            ("FI-PN", 5, math.nan),
        ]
        for draw in range(2)
    )
    methods = {"FH": "FH", "FI-PN": "FI-PN"}

    (claim,) = judge_diversity(frame, methods)
    (at_one,) = judge_diversity(frame[frame["shots"] == 1], methods)

    assert claim.found == "FH +0.20 ± 0.00"
    assert "K = 5" in claim.text
    assert at_one.found == "FH +0.90 ± 0.00, FI-PN +0.90 ± 0.00"
    assert "K = 1" in at_one.text


def test_without_diversities_there_are_no_claims():
    assert judge_diversity(pd.DataFrame(), {"FH": "FH"}) == []
    assert claims_of({"DC": [1.0, 1.0]}) == {}

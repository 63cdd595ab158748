"""Verdicts on the paper's claims about accuracy, from rows that one can rank by hand."""

import pandas as pd
import pytest

from cpaan.report.claims import judge_claims
from helpers.score_frames import claims_of, frame_of, same

# Draws whose mean is zero and whose interval is about ±12.4.
WILD = [-5.0, 0.0, 5.0]
OURS, PN = ("cCov-GAN-PN", "centroid"), ("PN", "centroid")
CYCLE, MIXTURE = ("cCyc-GAN-PN", "centroid"), ("cDeLi-GAN-PN", "centroid")


@pytest.mark.parametrize(
    ("name", "better", "worse", "printed"),
    [
        ("gain over PN", OURS, PN, "+9.0"),
        ("gain over FI on PMN", OURS, ("FI-PMN", "own"), "+2.6"),
        ("gain over FI on PN", OURS, ("FI-PN", "own"), "+3.4"),
        ("gain over ResNet-10", ("cCov-GAN", "linear"), ("LR", "linear"), "+8.6"),
        ("gain by preserving covariance", OURS, CYCLE, "+5.9"),
        ("gain by mixture noise", MIXTURE, CYCLE, "+3.5"),
    ],
)
def test_each_gain_compares_the_paper_s_two_rows_and_its_printed_number(
    name, better, worse, printed
):
    confirmed = claims_of({better: 50.0, worse: 49.5})[name]
    refuted = claims_of({better: 49.0, worse: 50.0})[name]
    unclear = claims_of({better: WILD, worse: [0.0, 0.0, 0.0]})[name]

    assert (confirmed.printed, confirmed.is_paper) == (printed, True)
    assert confirmed.found == f"+0.50 ± 0.00; the printed {printed} is above this interval"
    assert "LSL K = 1" in confirmed.text
    assert "is in this interval" in unclear.found
    verdicts = [each.verdict for each in (confirmed, refuted, unclear)]
    assert verdicts == ["confirmed", "not confirmed", "unclear"]


def test_the_gain_under_the_same_head_is_reported_but_does_not_decide():
    claim = claims_of(
        {
            ("FI-PN", "own"): 42.0,
            ("FI-PN", "cosine"): 50.0,
            ("FI-PN", "centroid"): 41.0,
            ("cCov-GAN-PN", "centroid"): 43.0,
            ("cCov-GAN-PN", "cosine"): 45.0,
        }
    )["gain over FI on PN"]

    assert claim.verdict == "confirmed"
    assert claim.found == (
        "+1.00 ± 0.00; the printed +3.4 is above this interval. "
        "Both under the same head: centroid +2.00 ± 0.00; cosine −5.00 ± 0.00"
    )


def test_the_best_gan_is_compared_with_the_strongest_earlier_augmentation_of_each_column():
    claim = claims_of(
        {
            ("FH", "linear"): same(40.0, {("all", 20): 49.0}),
            ("FI-PMN", "own"): same(44.0),
            OURS: same(46.0),
        }
    )["gain over earlier augmentation"]

    assert claim.found == (
        "cCov-GAN-PN is ahead of the strongest of them in 3 of 4 columns with the whole interval; "
        "smallest −3.00 ± 0.00 (GLSL K = 20, FH), largest +2.00 ± 0.00 (GLSL K = 1, FI-PMN)"
    )
    assert claim.verdict == "not confirmed"
    # Of 52.1 to 79.3 in the paper, GLSL K = 20 has the least over FI-PMN, LSL K = 1 the most.
    assert claim.printed == "+0.6 to +2.6 in all 10 columns"


@pytest.mark.parametrize(
    ("best", "verdict", "text"),
    [
        (4.0, "confirmed", "cCov-GAN over cDeLi-GAN +1.00 ± 0.00; mean over all K +1.00 ± 0.00"),
        (2.5, "not confirmed", "cCov-GAN over cDeLi-GAN −0.50 ± 0.00"),
        ([-6.0, 4.0, 14.0], "unclear", "cCov-GAN over cDeLi-GAN +1.00 ± 22.36"),
        # Better at one shot, and lower in the mean over shots.
        (same(5.0, {("novel", 20): 0.0}), "not confirmed", "mean over all K −0.50 ± 0.00"),
    ],
)
def test_the_order_of_the_gans_holds_if_every_step_goes_up_at_one_shot_and_on_average(
    best, verdict, text
):
    claim = claims_of({("c-GAN-PN", "centroid"): 1.0, CYCLE: 2.0, MIXTURE: 3.0, OURS: best})[
        "order of the GANs"
    ]

    assert (claim.verdict, claim.printed) == (verdict, "+3.9, +3.5, +2.4")
    assert text in claim.found


def test_a_plain_gan_has_to_be_below_both_earlier_augmentations():
    claim = claims_of(
        {("FH", "linear"): 41.0, ("FI-PN", "own"): 45.0, ("c-GAN-PN", "centroid"): 42.0}
    )["c-GAN below earlier augmentation"]

    assert claim.printed == "FH +2.1, FI-PN +6.4"
    assert claim.found == "FH over c-GAN −1.00 ± 0.00; FI-PN over c-GAN +3.00 ± 0.00"
    assert claim.verdict == "not confirmed"


RIVALS = {("LR", "linear"): 20.0, PN: 41.0, ("AWG", "own"): 45.0}


@pytest.mark.parametrize(
    ("ours", "verdict", "found"),
    [
        (44.0, "confirmed", "first in 0, second in 4 of 4 columns among 4 rows of the paper"),
        # PN, 3 ± 4.3 behind in one column, may be ahead there too.
        (same(50.0, {("all", 1): [42.0, 43.0, 47.0]}), "unclear", "first in 3, second in 1"),
        (
            same(50.0, {("all", 1): 40.5}),
            "not confirmed",
            "first in 3, second in 0 of 4 columns among 4 rows of the paper; ranks by K: LSL 1, 1; "
            "GLSL 3, 1; farthest behind at GLSL K = 1, where AWG is +4.50 ± 0.00",
        ),
    ],
)
def test_first_or_second_counts_the_paper_s_rows_alone(ours, verdict, found):
    later = {("wDAE", "own"): 90.0, ("copy", "linear"): 91.0, ("DC", "linear"): 92.0}

    claim = claims_of({**RIVALS, **later, OURS: ours})["first or second"]

    assert claim.verdict == verdict
    assert claim.found.startswith(found)
    assert claim.printed == "first in 8, second in 2 of 10 columns"  # bold and underlined there


def test_the_gain_should_be_larger_with_few_shots_than_with_many():
    rows = {
        PN: same(40.0, {("novel", 20): 70.0}),
        OURS: same(42.0, {("novel", 20): [70.0, 70.5, 71.0]}),
    }
    name = "gain is largest at the fewest shots"

    claim = claims_of(rows)[name]

    # By draw 2 - 1, 2 - 0.5 and 2 - 0; a deviation of 0.5 over the root of three, times 4.303.
    assert claim.found == "+2.00 and +0.50, so +1.50 ± 1.24"
    assert (claim.printed, claim.verdict) == ("+9.0 and +2.8", "confirmed")
    rows[OURS] = same(42.0, {("novel", 20): 75.0})
    assert claims_of(rows)[name].verdict == "not confirmed"


def test_a_trained_row_has_to_beat_every_control_under_its_own_head():
    rows = {
        ("cCov-GAN", "linear"): 45.0,
        ("cCov-GAN", "cosine"): 46.0,
        ("none", "linear"): 40.0,
        ("none", "cosine"): 43.0,
        ("copy", "linear"): 44.0,
        ("copy", "cosine"): 47.0,
    }

    claim = claims_of(rows)["cCov-GAN over the controls"]

    assert (claim.verdict, claim.is_paper, claim.printed) == ("confirmed", False, "")
    assert claim.found == (
        "under linear: none +5.00 ± 0.00; copy +1.00 ± 0.00. "
        "Under other heads, over the best of these: cosine −1.00 ± 0.00 (copy)"
    )
    beaten = claims_of({**rows, ("mean-shift", "linear"): 45.2})["cCov-GAN over the controls"]
    assert beaten.verdict == "not confirmed"
    embedded = claims_of({OURS: 45.0, PN: 44.0})["cCov-GAN-PN over the controls"]
    assert embedded.found == "under centroid: PN +1.00 ± 0.00"


def test_the_extended_method_is_compared_with_the_faithful_one():
    scores = frame_of({("cCov-GAN", "linear"): 45.0, ("CP-AAN+", "linear"): 47.0})
    methods = {name: name for name in ("cCov-GAN", "CP-AAN+")}

    (claim,) = judge_claims(scores, pd.DataFrame(), methods, dict.fromkeys(methods, "linear"))

    assert (claim.name, claim.verdict) == ("CP-AAN+ over cCov-GAN", "confirmed")
    assert (claim.found, claim.is_paper) == ("+2.00 ± 0.00", False)


def test_claims_without_their_rows_are_left_out():
    assert claims_of({PN: 40.0, ("LR", "linear"): 41.0}) == {}
    # By the paper's rule PN has a centroid, so a linear head alone does not count.
    assert "gain over PN" not in claims_of({("PN", "linear"): 1.0, OURS: 2.0})


def test_in_a_study_of_one_method_its_last_row_stands_for_it():
    levels = {"copy": 45.0, "cCov-GAN, trial 0": 44.0, "cCov-GAN, best": 46.0}
    scores = frame_of({(name, "cosine"): value for name, value in levels.items()})
    methods = {name: name.partition(",")[0] for name in levels}

    (claim,) = judge_claims(scores, pd.DataFrame(), methods, dict.fromkeys(methods, "cosine"))

    assert claim.name == "cCov-GAN, best over the controls"
    assert claim.found == "under cosine: copy +1.00 ± 0.00"


def test_rows_with_other_draws_are_refused():
    with pytest.raises(ValueError, match="draw 2 is not in both"):
        claims_of({PN: [1.0, 2.0], OURS: [1.0, 2.0, 3.0]})

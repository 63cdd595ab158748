"""Test verdicts on the paper's claims about accuracy, with rows that can be ranked by hand."""

import pandas as pd
import pytest

from cpaan.protocol.calibration import CALIBRATED
from cpaan.report.claims.judge import WITH_TERM, judge_claims
from helpers.frames import Cell, Draws, claims_of, frame_of, same

# Draws whose mean is zero and whose interval is about ±12.4.
WILD = [-5.0, 0.0, 5.0]
OURS, PN, FH, FI = (
    ("cCov-GAN-PN", "centroid"),
    ("PN", "centroid"),
    ("FH", "linear"),
    ("FI-PN", "own"),
)
P_FH, FI_PMN = ("P-FH", "linear"), ("FI-PMN", "own")
PLAIN, CYCLE, MIXTURE = ((f"{name}-PN", "centroid") for name in ("c-GAN", "cCyc-GAN", "cDeLi-GAN"))
ON_RAW, PLUS, PLUS_IN_PN = ("cCov-GAN", "linear"), ("CP-AAN+", "linear"), ("CP-AAN+-PN", "centroid")
SMALLER = "same sign, much smaller"


@pytest.mark.parametrize(
    ("kind", "better", "worse", "printed"),
    [
        ("primary", OURS, PN, "+9.0"),
        ("primary", OURS, ("none-PN", "centroid"), ""),
        ("primary", OURS, FI, "+3.4"),
        ("primary", OURS, ("FI-PMN", "own"), "+2.6"),
        ("primary", OURS, ("copy-PN", "centroid"), ""),
        ("primary", PLUS, ("copy", "linear"), ""),
        ("primary", PLUS_IN_PN, ("copy-PN", "centroid"), ""),
        ("paper", ON_RAW, ("LR", "linear"), "+8.6"),
        ("paper", OURS, CYCLE, "+5.9"),
        ("paper", MIXTURE, CYCLE, "+3.5"),
        ("control", ("AWG", "own"), PN, "+6.6"),
        ("control", ("AWG-cosine", "own"), PN, "+6.9"),
        ("control", ("wDAE", "own"), PN, "+8.6"),
        ("control", FI, PN, "+5.6"),
        ("control", ("FI-PMN", "own"), PN, "+6.4"),
        ("further", PLUS, ON_RAW, ""),
        ("further", PLUS_IN_PN, OURS, ""),
    ],
)
def test_each_gain_compares_two_rows_and_has_the_printed_number(kind, better, worse, printed):
    name = f"{better[0]} over {worse[0]}" + (", tuned separately" if worse == CYCLE else "")
    levels = {"much": 60.0, "little": 50.5, "less": 49.0, "none": [49.0, 50.1, 50.9], "wild": WILD}
    claims = {
        size: claims_of({better: level, worse: [0.0] * 3 if size == "wild" else 50.0})[name]
        for size, level in levels.items()
    }

    assert (claims["much"].printed, claims["much"].kind) == (printed, kind)
    assert "LSL K = 1" in claims["much"].text
    place = "; the printed {} is {} this interval".format
    found = f"+0.50 ± 0.00 (by seed +0.50, +0.50){place(printed, 'above') if printed else ''}"
    assert claims["little"].found.startswith(found)
    assert (place(printed, "in") in claims["wild"].found) == bool(printed)
    assert {size: claim.verdict for size, claim in claims.items()} == {
        "much": "confirmed",
        "little": SMALLER,
        "less": "opposite",
        "none": "not found",
        "wild": "undecided",
    }


@pytest.mark.parametrize(
    ("row", "term", "printed"),
    [
        (CYCLE, "the cycle term", "+3.9"),
        (MIXTURE, "mixture noise", "+3.5"),
        (OURS, "the covariance term", "+5.9"),
    ],
)
def test_a_claim_about_one_term_compares_a_row_with_itself_without_that_term(row, term, printed):
    whole, without = (f"{row[0]}: {label}" for label in (WITH_TERM, f"without {term}"))
    levels = {row: 70.0, (whole, row[1]): 50.0, (without, row[1]): 49.0}
    levels |= {(whole, "knn"): 50.0, (without, "knn"): 52.0}
    levels |= {("none-PN", "centroid"): 47.0, ("copy-PN", "centroid"): 51.0}

    found = claims_of(levels, family="terms")

    claim = found[f"gain by {term}"]
    assert (claim.printed, claim.verdict, claim.kind) == (printed, SMALLER, "primary")
    assert claim.found.startswith("+1.00 ± 0.00")
    assert "Both under the same head: knn −2.00 ± 0.00" in claim.found
    weighted = f"cCov-GAN-PN with the {WITH_TERM} over"
    further = {name: found[name].verdict for name in found if name.startswith(weighted)}
    verdicts = {f"{weighted} none-PN": "confirmed", f"{weighted} copy-PN": "opposite"}
    assert further == (verdicts if row == OURS else {})


def with_calibrated(plain: float, calibrated: Draws) -> dict[Cell, Draws]:
    """Return equal LSL and GLSL, and calibrated GLSL, at one and twenty shots."""
    return same(plain, {(CALIBRATED, 1): calibrated, (CALIBRATED, 20): calibrated})


def test_calibrated_glsl_is_listed_for_every_head_and_decides_nothing():
    rows = {OURS: with_calibrated(43.0, 61.0), FI: with_calibrated(42.0, 63.0)}
    rows |= {("cCov-GAN-PN", "knn"): with_calibrated(45.0, 65.0)}
    rows |= {("FI-PN", "knn"): with_calibrated(40.0, 64.5)}

    claim = claims_of(rows)["cCov-GAN-PN over FI-PN"]

    assert claim.verdict == SMALLER
    assert claim.found == (
        "+1.00 ± 0.00 (by seed +1.00, +1.00); the printed +3.4 is above this interval; calibrated "
        "GLSL −2.00 ± 0.00. Both under the same head (LSL, calibrated GLSL): "
        "knn +5.00 ± 0.00, +0.50 ± 0.00"
    )


def test_calibrated_glsl_takes_the_place_of_glsl_in_claims_about_all_columns():
    # In plain GLSL, cCov-GAN-PN is ahead of all rows by 6 points and more.
    rows = {OURS: with_calibrated(50.0, 60.0), FH: with_calibrated(44.0, 61.0)}
    rows |= {row: with_calibrated(44.0, 54.0) for row in (P_FH, FI, FI_PMN)}
    claims = claims_of({**rows, PN: with_calibrated(41.0, 62.0)})

    claim = claims["gain over earlier augmentation"]
    assert "in LSL and calibrated GLSL" in claim.text
    assert "ahead of all of them in 2 of 4 columns" in claim.found
    assert "smallest −1.00 ± 0.00 (calibrated GLSL K = 1, FH)" in claim.found
    claim = claims[PLACE]
    assert "ranks by K: LSL 1, 1; calibrated GLSL 3, 3; farthest" in claim.found


RISING = {PLAIN: 1.0, CYCLE: 2.0, MIXTURE: 3.0}
ORDER, PRINTED_ORDER = "order of the GANs", "+3.9, +3.5, +2.4"
RIVALS = {("LR", "linear"): 20.0, PN: 41.0, ("AWG", "own"): 45.0}
LATER = {("wDAE", "own"): 90.0, ("copy", "linear"): 91.0, ("DC", "linear"): 92.0}
PLACE, PRINTED_PLACE = "first or second", "first in 8, second in 2 of 10 columns"
CONTROLS = {
    (name, head): value
    for name, values in {"none": (40.0, 43.0), "copy": (44.0, 47.0)}.items()
    for head, value in zip(("linear", "cosine"), values, strict=True)
} | {ON_RAW: 45.0, ("cCov-GAN", "cosine"): 46.0}
FEWEST = "gain is largest at the fewest shots"


@pytest.mark.parametrize(
    ("name", "rows", "printed", "verdict", "found"),
    [
        (  # The gain under the same head is reported but does not affect the verdict.
            "cCov-GAN-PN over FI-PN",
            {
                **{FI: 42.0, ("FI-PN", "cosine"): 50.0, ("FI-PN", "centroid"): 41.0},
                **{OURS: 43.0, ("cCov-GAN-PN", "cosine"): 45.0},
            },
            "+3.4",
            SMALLER,
            "+1.00 ± 0.00 (by seed +1.00, +1.00); the printed +3.4 is above this interval. "
            "Both under the same head: centroid +2.00 ± 0.00; cosine −5.00 ± 0.00",
        ),
        (  # In the paper, the gain over FI-PMN is least at GLSL K = 20 and largest at LSL K = 1.
            "gain over earlier augmentation",
            {FH: same(40.0, {("all", 20): 49.0}), P_FH: 44.0, FI: 44.0, FI_PMN: 44.0, OURS: 46.0},
            "+0.6 to +2.6 in all 10 columns",
            "not found",
            "cCov-GAN-PN is ahead of all of them in 3 of 4 columns with the whole interval; "
            "smallest −3.00 ± 0.00 (GLSL K = 20, FH), largest +6.00 ± 0.00 (GLSL K = 1, FH)",
        ),
        (
            *(ORDER, {**RISING, OURS: 4.0}, PRINTED_ORDER, SMALLER),
            "cCyc-GAN over c-GAN +1.00 ± 0.00; mean over all K +1.00 ± 0.00",
        ),
        (ORDER, {PLAIN: 1.0, CYCLE: 5.0, MIXTURE: 9.0, OURS: 12.0}, PRINTED_ORDER, "confirmed", ""),
        (ORDER, {**RISING, OURS: 2.5}, PRINTED_ORDER, "not found", ""),
        (ORDER, {PLAIN: 4.0, CYCLE: 3.0, MIXTURE: 2.0, OURS: 1.0}, PRINTED_ORDER, "opposite", ""),
        (ORDER, {**RISING, OURS: [-6.0, 4.0, 14.0]}, PRINTED_ORDER, "undecided", ""),
        (  # The mean gain of cCyc-GAN is 1.0, which is less than half of (3.9 + 0.6) / 2.
            ORDER,
            {
                PLAIN: 1.0,
                CYCLE: same(5.0, {("novel", 20): -1.0}),
                MIXTURE: same(9.0, {("novel", 20): 3.0}),
                OURS: same(12.0, {("novel", 20): 6.0}),
            },
            *(PRINTED_ORDER, SMALLER, ""),
        ),
        (  # Better at one shot, and lower in the mean over shots.
            *(ORDER, {**RISING, OURS: same(5.0, {("novel", 20): 0.0})}, PRINTED_ORDER),
            *("not found", ""),
        ),
        (
            *("c-GAN below earlier augmentation", {FH: 41.0, FI: 45.0, PLAIN: 42.0}),
            *("FH +2.1, FI-PN +6.4", "not found"),
            "FH over c-GAN −1.00 ± 0.00; FI-PN over c-GAN +3.00 ± 0.00",
        ),
        (
            *(PLACE, {**RIVALS, **LATER, OURS: 44.0}, PRINTED_PLACE, "confirmed"),
            "first in 0, second in 4 of 4 columns among 4 rows of the paper",
        ),
        (  # PN is 3 ± 4.3 behind in one column, so it may be ahead there.
            *(PLACE, {**RIVALS, OURS: same(50.0, {("all", 1): [42.0, 43.0, 47.0]})}),
            *(PRINTED_PLACE, "undecided", "first in 3, second in 1"),
        ),
        (
            *(PLACE, {**RIVALS, **LATER, OURS: same(50.0, {("all", 1): 40.5})}),
            *(PRINTED_PLACE, "not found"),
            "first in 3, second in 0 of 4 columns among 4 rows of the paper; ranks by K: LSL 1, 1; "
            "GLSL 3, 1; farthest behind at GLSL K = 1: −4.50 ± ",
        ),
        (  # Differences by draw: 2 - 1, 2 - 0.5 and 2 - 0. Interval: 4.3 * 0.5 / sqrt(3).
            FEWEST,
            {
                PN: same(40.0, {("novel", 20): 70.0}),
                OURS: same(42.0, {("novel", 20): [70.0, 70.5, 71.0]}),
            },
            *("+9.0 and +2.8", SMALLER, "+2.00 and +0.50, so +1.50 ± 1.24"),
        ),
        (
            *(FEWEST, {PN: 40.0, OURS: same(42.0, {("novel", 20): 45.0})}),
            *("+9.0 and +2.8", "opposite", ""),
        ),
        (
            *("cCov-GAN over the controls", CONTROLS, "", "confirmed"),
            "under linear: none +5.00 ± 0.00; copy +1.00 ± 0.00. "
            "Under cosine: none +3.00 ± 0.00; copy −1.00 ± 0.00",
        ),
        (
            *("cCov-GAN over the controls", {**CONTROLS, ("mean-shift", "linear"): 45.2}, ""),
            *("not found", ""),
        ),
        (  # PN has an embedding of its own, so it is not a control.
            *(
                "cCov-GAN-PN over the controls",
                {OURS: 45.0, PN: 44.0, ("none-PN", "centroid"): 43.0},
            ),
            *("", "confirmed", "under centroid: none-PN +2.00 ± 0.00"),
        ),
    ],
)
def test_a_claim_has_a_printed_number_a_verdict_and_what_was_found(
    name, rows, printed, verdict, found
):
    claim = claims_of(rows)[name]

    assert (claim.printed, claim.verdict) == (printed, verdict)
    assert claim.found.startswith(found)


def test_claims_without_their_rows_are_left_out():
    assert claims_of({PN: 40.0, ("LR", "linear"): 41.0}) == {}
    # The paper's rule uses the centroid head for PN, so a linear head alone does not count.
    assert "cCov-GAN-PN over PN" not in claims_of({("PN", "linear"): 1.0, OURS: 2.0})


def test_in_a_study_of_one_method_its_last_row_stands_for_it():
    levels = {"copy": 45.0, "cCov-GAN, trial 0": 44.0, "cCov-GAN, best": 46.0}
    scores = frame_of({(name, "cosine"): value for name, value in levels.items()})
    methods = {name: name.partition(",")[0] for name in levels}

    (claim,) = judge_claims(scores, pd.DataFrame(), methods, dict.fromkeys(methods, "cosine"))

    assert claim.name == "cCov-GAN, best over the controls"
    assert claim.found.startswith("under cosine: copy +1.00 ± 0.00; one training seed")

"""Test verdicts on the paper's claims about accuracy, with rows that can be ranked by hand."""

import pandas as pd
import pytest

from cpaan.report.claims.judge import WITH_TERM, judge_claims
from helpers.frames import claims_of, frame_of, same

# Draws whose mean is zero and whose interval is about ±12.4.
WILD = [-5.0, 0.0, 5.0]
OURS, PN, FH, FI = (
    ("cCov-GAN-PN", "centroid"),
    ("PN", "centroid"),
    ("FH", "linear"),
    ("FI-PN", "own"),
)
PLAIN, CYCLE, MIXTURE = ((f"{name}-PN", "centroid") for name in ("c-GAN", "cCyc-GAN", "cDeLi-GAN"))
ON_RAW = ("cCov-GAN", "linear")
SMALLER = "same sign, much smaller"


@pytest.mark.parametrize(
    ("name", "better", "worse", "printed"),
    [
        ("gain over PN", OURS, PN, "+9.0"),
        ("gain over FI on PMN", OURS, ("FI-PMN", "own"), "+2.6"),
        ("gain over FI on PN", OURS, FI, "+3.4"),
        ("gain over ResNet-10", ON_RAW, ("LR", "linear"), "+8.6"),
        ("cCov-GAN over cCyc-GAN, tuned separately", OURS, CYCLE, "+5.9"),
        ("cDeLi-GAN over cCyc-GAN, tuned separately", MIXTURE, CYCLE, "+3.5"),
        ("AWG over PN", ("AWG", "own"), PN, "+6.6"),
        ("AWG-cosine over PN", ("AWG-cosine", "own"), PN, "+6.9"),
        ("wDAE over PN", ("wDAE", "own"), PN, "+8.6"),
        ("FI-PN over PN", FI, PN, "+5.6"),
        ("FI-PMN over PN", ("FI-PMN", "own"), PN, "+6.4"),
    ],
)
def test_each_gain_compares_the_paper_s_two_rows_and_its_printed_number(
    name, better, worse, printed
):
    levels = {"much": 60.0, "little": 50.5, "less": 49.0, "none": [49.0, 50.1, 50.9], "wild": WILD}
    claims = {
        size: claims_of({better: level, worse: [0.0] * 3 if size == "wild" else 50.0})[name]
        for size, level in levels.items()
    }

    assert claims["much"].printed == printed
    assert claims["much"].kind == ("control" if worse == PN and better != OURS else "paper")
    place = f"+0.50 ± 0.00 (by seed +0.50, +0.50); the printed {printed} is above this interval"
    assert claims["little"].found.startswith(place)
    assert "LSL K = 1" in claims["much"].text
    assert "is in this interval" in claims["wild"].found
    assert {size: claim.verdict for size, claim in claims.items()} == {
        "much": "confirmed",
        "little": "same sign, much smaller",
        "less": "opposite",
        "none": "not found",
        "wild": "undecided",
    }


@pytest.mark.parametrize(
    ("row", "name", "printed"),
    [
        (CYCLE, "gain by the cycle term", "+3.9"),
        (MIXTURE, "gain by mixture noise", "+3.5"),
        (OURS, "gain by the covariance term", "+5.9"),
    ],
)
def test_a_claim_about_one_term_compares_a_row_with_itself_without_that_term(row, name, printed):
    variants = {label: f"{row[0]}: {label}" for label in (WITH_TERM, "without it")}
    whole, without = variants.values()
    levels = {row: 70.0, (whole, row[1]): 50.0, (without, row[1]): 49.0}
    levels |= {(whole, "knn"): 50.0, (without, "knn"): 52.0}
    scores = pd.concat([frame_of(levels).assign(seed=seed) for seed in (0, 1)])
    ablations = [
        {"name": name, "of": row[0], "family": "terms", "label": label}
        for label, name in variants.items()
    ]

    claims = judge_claims(scores, pd.DataFrame(), {row[0]: row[0]}, {row[0]: row[1]}, ablations)

    (claim,) = (claim for claim in claims if claim.name == name)
    assert (claim.printed, claim.verdict, claim.kind) == (printed, SMALLER, "paper")
    assert claim.found.startswith("+1.00 ± 0.00")
    assert "Both under the same head: knn −2.00 ± 0.00" in claim.found


def test_positive_controls_come_first():
    claims = claims_of({OURS: 50.0, PN: 45.0, ("AWG", "own"): 46.0, FH: 41.0})

    assert [claim.kind for claim in claims.values()][:2] == ["control", "paper"]
    assert sorted({claim.kind for claim in claims.values()}) == ["control", "further", "paper"]


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
            "gain over FI on PN",
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
            {FH: same(40.0, {("all", 20): 49.0}), ("FI-PMN", "own"): 44.0, OURS: 46.0},
            "+0.6 to +2.6 in all 10 columns",
            "opposite",
            "cCov-GAN-PN is ahead of all of them in 3 of 4 columns with the whole interval; "
            "smallest −3.00 ± 0.00 (GLSL K = 20, FH), largest +6.00 ± 0.00 (GLSL K = 1, FH)",
        ),
        (
            *(ORDER, {**RISING, OURS: 4.0}, PRINTED_ORDER, SMALLER),
            "cCyc-GAN over c-GAN +1.00 ± 0.00; mean over all K +1.00 ± 0.00",
        ),
        (ORDER, {PLAIN: 1.0, CYCLE: 5.0, MIXTURE: 9.0, OURS: 12.0}, PRINTED_ORDER, "confirmed", ""),
        (ORDER, {**RISING, OURS: 2.5}, PRINTED_ORDER, "opposite", ""),
        (ORDER, {**RISING, OURS: [-6.0, 4.0, 14.0]}, PRINTED_ORDER, "undecided", ""),
        (  # Better at one shot, and lower in the mean over shots.
            *(ORDER, {**RISING, OURS: same(5.0, {("novel", 20): 0.0})}, PRINTED_ORDER),
            *("opposite", ""),
        ),
        (
            *("c-GAN below earlier augmentation", {FH: 41.0, FI: 45.0, PLAIN: 42.0}),
            *("FH +2.1, FI-PN +6.4", "opposite"),
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
            *(PRINTED_PLACE, "opposite"),
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
            "Under other heads, over the best of these: cosine −1.00 ± 0.00 (copy)",
        ),
        (
            *("cCov-GAN over the controls", {**CONTROLS, ("mean-shift", "linear"): 45.2}, ""),
            *("opposite", ""),
        ),
        (
            *("cCov-GAN-PN over the controls", {OURS: 45.0, PN: 44.0}, "", "confirmed"),
            "under centroid: PN +1.00 ± 0.00",
        ),
        (
            *("CP-AAN+ over cCov-GAN", {ON_RAW: 45.0, ("CP-AAN+", "linear"): 47.0}, ""),
            *("confirmed", "+2.00 ± 0.00"),
        ),
    ],
)
def test_a_claim_has_a_printed_number_a_verdict_and_what_was_found(
    name, rows, printed, verdict, found
):
    claim = claims_of(rows)[name]

    kind = "paper" if printed else "further"
    assert (claim.printed, claim.verdict, claim.kind) == (printed, verdict, kind)
    assert claim.found.startswith(found)


def test_claims_without_their_rows_are_left_out():
    assert claims_of({PN: 40.0, ("LR", "linear"): 41.0}) == {}
    # The paper's rule uses the centroid head for PN, so a linear head alone does not count.
    assert "gain over PN" not in claims_of({("PN", "linear"): 1.0, OURS: 2.0})


def test_in_a_study_of_one_method_its_last_row_stands_for_it():
    levels = {"copy": 45.0, "cCov-GAN, trial 0": 44.0, "cCov-GAN, best": 46.0}
    scores = frame_of({(name, "cosine"): value for name, value in levels.items()})
    methods = {name: name.partition(",")[0] for name in levels}

    (claim,) = judge_claims(scores, pd.DataFrame(), methods, dict.fromkeys(methods, "cosine"))

    assert claim.name == "cCov-GAN, best over the controls"
    assert claim.found.startswith("under cosine: copy +1.00 ± 0.00; one training seed")

"""Verdicts on what a reader asks next: controls, and what goes past the paper."""

import pandas as pd

from cpaan.report.claims import judge_claims
from helpers.score_frames import claims_of, frame_of


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
        "under linear: none +5.00 ± 0.00, copy +1.00 ± 0.00. "
        "Under other heads, over the best of these: cosine -1.00 ± 0.00 (copy)"
    )
    beaten = claims_of({**rows, ("mean-shift", "linear"): 45.2})["cCov-GAN over the controls"]
    assert beaten.verdict == "not confirmed"


def test_in_an_embedding_no_augmentation_is_pn():
    claim = claims_of({("cCov-GAN-PN", "centroid"): 45.0, ("PN", "centroid"): 44.0})[
        "cCov-GAN-PN over the controls"
    ]

    assert claim.found == "under centroid: PN +1.00 ± 0.00"


def test_what_goes_past_the_paper_is_held_against_the_faithful_row():
    scores = frame_of({("cCov-GAN", "linear"): 45.0, ("CP-AAN+", "linear"): 47.0})
    methods = {name: name for name in ("cCov-GAN", "CP-AAN+")}

    (claim,) = judge_claims(scores, pd.DataFrame(), methods, dict.fromkeys(methods, "linear"))

    assert (claim.name, claim.verdict) == ("CP-AAN+ over cCov-GAN", "confirmed")
    assert claim.found == "+2.00 ± 0.00"
    assert not claim.is_paper

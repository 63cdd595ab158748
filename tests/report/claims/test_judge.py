"""Which claims are judged: those whose rows there are."""

import pandas as pd
import pytest

from cpaan.report.claims import judge_claims
from helpers.score_frames import claims_of, frame_of


def test_claims_without_their_rows_are_left_out():
    assert claims_of({("PN", "centroid"): 40.0, ("LR", "linear"): 41.0}) == {}
    # By the paper's rule PN has a centroid, so that a linear head alone is no such row.
    assert "gain over PN" not in claims_of(
        {("PN", "linear"): 1.0, ("cCov-GAN-PN", "centroid"): 2.0}
    )


def test_in_a_study_of_one_method_its_best_row_stands_for_it():
    scores = frame_of(
        {
            ("copy", "cosine"): 45.0,
            ("cCov-GAN, trial 0", "cosine"): 44.0,
            ("cCov-GAN, best", "cosine"): 46.0,
        }
    )
    methods = {
        "copy": "copy",
        "cCov-GAN, trial 0": "cCov-GAN",
        "cCov-GAN, best": "cCov-GAN",
    }

    (claim,) = judge_claims(scores, pd.DataFrame(), methods, dict.fromkeys(methods, "cosine"))

    assert claim.name == "cCov-GAN, best over the controls"
    assert claim.found == "under cosine: copy +1.00 ± 0.00"


def test_top_1_can_be_judged_too():
    rows = {("PN", "centroid"): 40.0, ("cCov-GAN-PN", "centroid"): 43.0}

    assert claims_of(rows, metric="top1")["gain over PN"].found.startswith("+1.50 ± 0.00")


def test_rows_with_other_draws_are_refused():
    rows = {("PN", "centroid"): [1.0, 2.0], ("cCov-GAN-PN", "centroid"): [1.0, 2.0, 3.0]}

    with pytest.raises(ValueError, match="draw 2 is not in both"):
        claims_of(rows)

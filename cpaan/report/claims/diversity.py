"""The paper's claims about how synthetic examples spread, beside real ones."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from cpaan.report.claims.accuracy import BEST, EARLIER, GANS_IN_ORDER
from cpaan.report.claims.scored_table import label_of
from cpaan.report.claims.verdict import RATIO_MARGIN, Claim, all_of, show, verdict_of
from cpaan.report.gains import PairedScores, Step

_REAL, _DIVERSITY, _NO_HEAD = "real", "diversity", "-"
_SMALLEST_RATIO = 1e-3
_SHOTS = 5


def judge_diversity(diversity: pd.DataFrame, methods: Mapping[str, str]) -> list[Claim]:
    """Return the verdict on each claim about diversity whose rows there are.

    They are about five shots, as the paper's pictures are, or the fewest if there are no five.

    Args:
        diversity: Columns method (name of a row), shots, draw, seed and ratio: the mean distance
            of two synthetic examples of a class over that of two real ones.
        methods: Of whom each row is, without ablations.
    """
    if diversity.empty:
        return []
    # With many shots some methods synthesise nothing any more, and have no ratio.
    ratios = diversity[diversity["ratio"].notna()]
    if ratios.empty:
        return []
    numbers = sorted(int(k) for k in ratios["shots"].unique())
    shots = _SHOTS if _SHOTS in numbers else numbers[0]
    ratios = ratios[ratios["shots"] == shots].assign(head=_NO_HEAD, column=_DIVERSITY)
    real = ratios.drop_duplicates("draw").assign(method=_REAL, seed=0, ratio=1.0)
    ratios = pd.concat([ratios, real], ignore_index=True)
    # What makes one point only has no logarithm. A thousandth is far enough from all others.
    ratios["gap"] = np.log(ratios["ratio"].clip(lower=_SMALLEST_RATIO)).abs()
    ratio, gap = (PairedScores.of(ratios, metric) for metric in ("ratio", "gap"))

    def known(*keys: str) -> list[str]:
        labels = [label_of(methods, key) for key in keys]
        return [x for x in labels if x is not None and (x, _NO_HEAD) in ratio.frames]

    def minus(paired: PairedScores, subject: str, other: str, label: str) -> Step:
        rows = (subject, _NO_HEAD), (other, _NO_HEAD)
        return paired.compare(*rows, _DIVERSITY, shots, label=label)

    claims = [
        _claim(
            "earlier augmentation lacks diversity",
            "FH and FI make less diverse examples than the real ones (one minus the ratio to the "
            f"real mean distance, K = {shots}).",
            [minus(ratio, _REAL, other, other) for other in known(*EARLIER)],
        )
    ]
    for best in known(BEST):
        claims += [
            _claim(
                "cCov-GAN is more diverse",
                "cCov-GAN makes more diverse examples than FH, FI and the plain c-GAN, which "
                f"collapses (ratio to the real mean distance, cCov-GAN minus other, K = {shots}).",
                [minus(ratio, best, other, other) for other in known(*EARLIER, *GANS_IN_ORDER[:1])],
            ),
            _claim(
                "cCov-GAN is nearest to the real diversity",
                "No generator is nearer to the diversity of the real data than cCov-GAN, from "
                f"above or below (|log ratio|, other minus cCov-GAN, K = {shots}).",
                [minus(gap, other, best, other) for other in known(*EARLIER, *GANS_IN_ORDER[:-1])],
            ),
        ]
    return [claim for claim in claims if claim is not None]


def _claim(name: str, text: str, steps: Sequence[Step]) -> Claim | None:
    """Return the claim that all of these differences are positive; None if there are none."""
    if not steps:
        return None
    found = ", ".join(f"{step.label} {show(step)}" for step in steps)
    verdict = all_of(verdict_of(step, RATIO_MARGIN) for step in steps)
    return Claim(name, text, "", found, verdict)

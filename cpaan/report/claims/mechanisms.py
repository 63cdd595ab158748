"""The paper's claims about neighbours, and about the diversity of synthetic examples."""

from collections.abc import Iterator, Mapping, Sequence
from math import comb

import numpy as np
import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.report.claims.verdict import Claim, Kind, make_claim
from cpaan.report.gains import MethodScores, PairedScores, Scored
from cpaan.report.tables import TITLES

NEIGHBOURS, SOFT, HARD, NOBODY = "neighbours", "NBS-S", "NBS-H", "all base classes"
"""The family of ablations on neighbourhood batch sampling, and how labels of its rows begin."""
BEST = "cCov-GAN-PN"
"""The paper's best method."""
EARLIER = ("FH", "P-FH", "FI-PN", "FI-PMN")
"""Augmentations before the paper."""
GANS = ("c-GAN-PN", "cCyc-GAN-PN", "cDeLi-GAN-PN", BEST)
"""From the worst to the best, by the paper."""

_SHOTS = 5  # as in the paper's figures of diversity
_REAL, _DIVERSITY, _NO_HEAD = "real", "diversity", "-"
_SMALLEST_RATIO = 1e-3  # stands for zero, which has no logarithm


def judge_neighbours(
    paired: PairedScores,
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
    ablations: Sequence[Mapping[str, str]],
) -> Iterator[Claim]:
    """Judge from which base classes to translate, by the ablations of each row."""
    family = [each for each in ablations if each["family"] == NEIGHBOURS]
    for of in dict.fromkeys(each["of"] for each in family if each["of"] in head_of):
        names = {each["label"]: each["name"] for each in family if each["of"] == of}
        own = head = head_of[of]
        if not any((name, own) in paired.rows for name in names.values()):
            # The variants were scored with other heads than their row.
            head = next(iter(paired.heads(names.values())), own)
        rows = {label: (name, head) for label, name in names.items() if (name, head) in paired.rows}
        title = of if head == own else f"{of}, {head} head"
        kind: Kind = "paper" if ROWS[methods[of]].group == "CP-AAN" else "further"
        yield from _compare_neighbours(paired, rows, title, kind)


def _compare_neighbours(
    paired: PairedScores, rows: Mapping[str, Scored], of: str, kind: Kind
) -> Iterator[Claim]:
    hard = [label for label in rows if label.startswith(HARD)]
    # A difference that is picked out of many is large by chance alone: its interval is wider.
    num_pairs = len(TITLES) * comb(len(hard), 2)
    helps, suffices, depends = [], [], []
    for column, title in TITLES.items():
        cell = column, paired.shots
        ranked = sorted(hard, key=lambda label: -paired.values(rows[label], *cell).values.mean())
        if SOFT in rows and NOBODY in rows:
            helps.append((title, paired.compare(rows[SOFT], rows[NOBODY], *cell)))
        if SOFT in rows and hard:
            pair = rows[SOFT], rows[ranked[0]]
            gap = paired.compare(*pair, *cell, num_comparisons=len(hard))
            suffices.append((f"{title} over {ranked[0]}:", gap))
        if len(hard) > 1:
            pair = rows[ranked[0]], rows[ranked[-1]]
            gap = paired.compare(*pair, *cell, num_comparisons=num_pairs)
            depends.append((f"{title} {ranked[0]} over {ranked[-1]}:", gap))
    texts = {
        "neighbours help": (
            "Translating from related base classes (NBS-S) does better than from all of them",
            helps,
        ),
        "soft neighbours are better": (
            "NBS-S does better than NBS-H with the best k, whose choice the interval allows for",
            suffices,
        ),
        "hard neighbours need the right k": (
            "With NBS-H the best k does better than the worst; intervals allow for every pair of k",
            depends,
        ),
    }
    for name, (text, gaps) in texts.items():
        text += " (LSL and GLSL, means over all K)."
        yield from make_claim(f"{name} ({of})", text, gaps, has_seeds=True, kind=kind)


def judge_diversity(
    diversity: pd.DataFrame, row_of: Mapping[str, str], with_and_without: Sequence[str]
) -> Iterator[Claim]:
    """Judge how synthetic examples spread, by their mean distance over that of real examples.

    The claims are about five shots, as the paper's figures are, or the fewest without five. The one
    about the cycle is about the fewest: it compares the two rows ``with_and_without`` that term.
    """
    # With many shots some methods synthesise nothing, and have no ratio.
    ratios = diversity.dropna(subset="ratio") if len(diversity) else diversity
    if ratios.empty:
        return
    ratios = ratios.assign(head=_NO_HEAD, column=_DIVERSITY)
    heads = dict.fromkeys([*ratios["method"], _REAL], _NO_HEAD)
    numbers = ratios["shots"].unique().tolist()
    few = min(numbers)
    shots = _SHOTS if _SHOTS in numbers else few
    ratio = MethodScores(ratios[ratios["shots"] == few], row_of, heads, "ratio")
    if len(pair := ratio.find(*with_and_without)) == 2:
        yield from make_claim(
            "the cycle prevents collapse",
            "cCyc-GAN in PN makes more diverse examples than with the same settings without the "
            f"cycle term (ratio to the real mean distance, K = {few}).",
            [("", ratio.compare(pair[0], pair[1], _DIVERSITY, few))],
            has_seeds=True,
            is_ratio=True,
            kind="primary",
        )
    ratios = ratios[ratios["shots"] == shots]
    real = ratios.drop_duplicates("draw").assign(method=_REAL, seed=0, ratio=1.0)
    ratios = pd.concat([ratios, real], ignore_index=True)
    ratios["log"] = np.log(ratios["ratio"].clip(lower=_SMALLEST_RATIO)).abs()
    ratio, log = (MethodScores(ratios, row_of, heads, metric) for metric in ("ratio", "log"))
    cell, best = (_DIVERSITY, shots), ratio.find(BEST)
    earlier, others = ratio.find(*EARLIER), ratio.find(*EARLIER, *GANS[:-1])
    less_diverse = ratio.find(*EARLIER, GANS[0])
    claims = {
        "earlier augmentation lacks diversity": (
            "FH and FI make less diverse examples than the real ones (one minus the ratio to the "
            f"real mean distance, K = {shots}).",
            [(row[0], ratio.compare((_REAL, _NO_HEAD), row, *cell)) for row in earlier],
        ),
        "cCov-GAN is more diverse": (
            "cCov-GAN makes more diverse examples than FH, FI and the plain c-GAN, which collapses "
            f"(ratio to the real mean distance, cCov-GAN minus other, K = {shots}).",
            [(row[0], ratio.compare(ours, row, *cell)) for ours in best for row in less_diverse],
        ),
        "cCov-GAN is nearest to the real diversity": (
            "No generator is nearer to the diversity of the real data than cCov-GAN, from above or "
            f"below (|log ratio|, other minus cCov-GAN, K = {shots}).",
            [(row[0], log.compare(row, ours, *cell)) for ours in best for row in others],
        ),
    }
    for name, (text, gaps) in claims.items():
        yield from make_claim(name, text, gaps, is_ratio=True)

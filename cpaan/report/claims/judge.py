"""Judge the claims of `claims.csv` by the scores of a report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, product

import numpy as np
import pandas as pd

from cpaan.protocol.calibration import CALIBRATED
from cpaan.report.ablations import Ablation
from cpaan.report.claims.claim import (
    CLAIMS,
    GLSL,
    LOG_RATIO,
    RATIO,
    REAL,
    Claim,
    Contrast,
    Pick,
)
from cpaan.report.claims.verdict import ClaimPart, Judgement, with_verdicts
from cpaan.report.gains import PairedScores, Scored
from cpaan.report.published import printed_of
from cpaan.report.tables import Cell

_TITLES = {"all": "GLSL", RATIO: "diversity", LOG_RATIO: "|log diversity|"}
_SMALLEST_RATIO = 1e-3  # stands for zero, which has no logarithm
_NO_HEAD = ""  # of diversity


def judge_claims(
    scores: pd.DataFrame,
    diversity: pd.DataFrame,
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
    ablations: Mapping[str, Ablation],
) -> list[Judgement]:
    """Judge the claims whose rows are in a report.

    Args:
        scores: Top-5 by method (name of a row), head, column, shots, draw and seed.
        diversity: Columns method (name of a row), shots, draw, seed and ratio: the mean distance
            of two synthetic examples of a class over that of two real ones; or empty.
        methods: The methods of all rows but ablations and those as published, in the order of the
            report. In a study of one method, the last of its rows is the best.
        head_of: The heads of these rows.
        ablations: How other rows vary one of these, by name of the row.

    Raises:
        ValueError: If rows that are compared have different draws.
    """
    cells = PairedScores(_with_diversity(scores, diversity))
    rows = {method: (name, head_of.get(name, "")) for name, method in methods.items()}
    families: dict[tuple[str, str], dict[str, str]] = {}
    for name, ablation in ablations.items():
        families.setdefault((ablation.of, ablation.family), {})[ablation.key] = name
    for (row, _), variants in families.items():
        # Variants may have been scored with other heads than the row that they vary.
        heads = cells.heads(variants.values(), first=head_of.get(row, _NO_HEAD))
        for head in [head for head in heads if head != _NO_HEAD and row in methods][:1]:
            rows |= {f"{methods[row]}/{key}": (name, head) for key, name in variants.items()}
    titles = {name: ablation.title for name, ablation in ablations.items()}
    table = _Table(cells, {**rows, REAL: (REAL, _NO_HEAD)}, titles)
    judgements = [table.judge(claim) for claim in CLAIMS]
    return with_verdicts([judgement for judgement in judgements if judgement is not None])


@dataclass(frozen=True)
class _Table:
    """The scores of a report, whose rows are named as claims name them."""

    scores: PairedScores
    rows: Mapping[str, Scored]
    titles: Mapping[str, str]
    """The words for rows, where they are not their names."""

    def judge(self, claim: Claim) -> Judgement | None:
        """Return a claim with its differences, not yet decided; None if its rows are missing."""
        cells = [cell for contrast in claim.contrasts for cell in self._cells(contrast)]
        parts = [cell for cell in cells if cell is not None]
        if not parts or (len(parts) < len(cells) and claim.flag != "partial"):
            return None
        # A label names the rows and cells that differ among the parts, or that were picked.
        words = {part.cell for part in parts}
        pairs = [(contrast.better, contrast.worse) for contrast in claim.contrasts]
        is_named = [
            len(set(rows)) > 1 or isinstance(rows[0], Pick) for rows in zip(*pairs, strict=True)
        ]
        for place, part in enumerate(parts):
            better, worse = (self.titles.get(name, name) for name, _ in part.rows)
            texts = better, f"over {worse}", f"({part.cell})"
            label = " ".join(compress(texts, (*is_named, len(words) > 1)))
            parts[place] = part._replace(label=label)
        is_plain = all((x.column, x.shots) == ("novel", "fewest") for x in claim.contrasts)
        return Judgement(claim, parts, self._undecisive(parts) if is_plain else {})

    def _cells(self, contrast: Contrast) -> Iterator[ClaimPart | None]:
        """Yield the difference for all numbers of shots; None if a row is missing."""
        column = list(self.scores.titles)[1] if contrast.column == GLSL else contrast.column
        title = (_TITLES | self.scores.titles)[column]
        for words, shots in self._shots(contrast.shots).items():
            better = self._candidates(contrast.better, column, shots)
            worse = self._candidates(contrast.worse, column, shots)
            if not better or not worse or better[0] == worse[0]:
                yield None
                continue
            # A difference that was picked out of several is large by chance alone.
            num_pairs = sum(one != other for one, other in product(better, worse))
            rows = better[0], worse[0]
            gap = self.scores.compare(*rows, column, shots, num_comparisons=num_pairs)
            yield ClaimPart(gap, _printed(contrast, column, shots), rows, f"{title} {words}")

    def _shots(self, name: str) -> dict[str, dict[int, float]]:
        """Return the weights of numbers of shots in a difference, by the words for them."""
        numbers = self.scores.shots
        few, most = numbers[0], numbers[-1]
        five = 5 if 5 in numbers else few
        less = {f"K = {few} minus K = {most}": {few: 1.0, most: -1.0}}
        return {
            "fewest": {f"K = {few}": {few: 1.0}},
            "every": {f"K = {k}": {k: 1.0} for k in numbers},
            "mean": {"mean over all K": dict.fromkeys(numbers, 1 / len(numbers))},
            "five": {f"K = {five}": {five: 1.0}},
            "fewest-most": less if few < most else {},
        }[name]

    def _candidates(self, row: str | Pick, column: str, shots: Mapping[int, float]) -> list[Scored]:
        """Return the row with scores in a cell or, of a pick, the picked row and the others."""
        names = row.among if isinstance(row, Pick) else (row,)
        rows = [self.rows[name] for name in names if name in self.rows]
        if column in (RATIO, LOG_RATIO):
            rows = [(name, _NO_HEAD) for name, _ in rows]
        rows = [scored for scored in rows if self.scores.has(scored, column, shots)]
        if not isinstance(row, Pick):
            return rows
        values = {scored: self.scores.values(scored, column, shots).values for scored in rows}
        ranked = sorted(rows, key=lambda scored: -values[scored].mean())
        picked = ranked[{"first": 0, "second": 1, "last": -1}[row.place] :][:1]
        return [*picked, *(scored for scored in ranked if scored not in picked)] if picked else []

    def _undecisive(self, parts: Sequence[ClaimPart]) -> dict[str, list[Cell]]:
        """Return the differences in calibrated GLSL, and under other heads that all rows have."""
        names, few = {name for part in parts for name, _ in part.rows}, self.scores.shots[0]
        deciding = {head for part in parts for _, head in part.rows}
        heads = [head for head in self.scores.heads(names) if {head} not in ({_NO_HEAD}, deciding)]
        differences = {}
        for head, (column, title) in product(["", *heads], self.scores.titles.items()):
            if head or column != "novel":
                rows = [[(name, head or usual) for name, usual in part.rows] for part in parts]
                differences[f"{title}, {head} head" if head else title] = [
                    self.scores.compare(subject, other, column, few) for subject, other in rows
                ]
        return differences


def _with_diversity(scores: pd.DataFrame, diversity: pd.DataFrame) -> pd.DataFrame:
    """Return scores with two more columns of the table: the diversity, and its logarithm."""
    if diversity.empty:
        return scores
    # With many shots some methods synthesise nothing, and have no ratio.
    ratios = diversity.dropna(subset="ratio")
    real = ratios.drop_duplicates(["shots", "draw"]).assign(method=REAL, seed=0, ratio=1.0)
    ratios = pd.concat([ratios, real]).assign(head=_NO_HEAD)
    logs = np.log(ratios["ratio"].clip(lower=_SMALLEST_RATIO)).abs()
    columns = {RATIO: ratios["ratio"], LOG_RATIO: logs}
    frames = [ratios.assign(column=name, top5=values) for name, values in columns.items()]
    return pd.concat([scores, *frames], ignore_index=True)


def _printed(contrast: Contrast, column: str, shots: Mapping[int, float]) -> float | None:
    """Return the difference of two rows that papers print; None if one of them is not printed.

    Papers print plain GLSL, which stands for the calibrated one.
    """
    rows = contrast.printed.split() or (contrast.better, contrast.worse)
    ours, theirs = ({} if isinstance(row, Pick) else printed_of(row) for row in rows)
    cells = {("all" if column == CALIBRATED else column, k): shots[k] for k in shots}
    if not cells.keys() <= ours.keys() & theirs.keys():
        return None
    return sum(weight * (ours[cell] - theirs[cell]) for cell, weight in cells.items())

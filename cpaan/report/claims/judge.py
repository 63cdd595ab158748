"""All claims at once."""

from collections.abc import Mapping, Sequence

import pandas as pd

from cpaan.report.claims.accuracy import judge_accuracy
from cpaan.report.claims.beyond import judge_beyond
from cpaan.report.claims.diversity import judge_diversity
from cpaan.report.claims.neighbours import judge_neighbours
from cpaan.report.claims.scored_table import ScoredTable
from cpaan.report.claims.verdict import Claim
from cpaan.report.gains import PairedScores


def judge_claims(
    scores: pd.DataFrame,
    diversity: pd.DataFrame,
    methods: Mapping[str, str],
    head_of_paper: Mapping[str, str],
    ablations: Sequence[Mapping[str, str]] = (),
    metric: str = "top5",
) -> list[Claim]:
    """Return what the paper claims and what was found, and the answers to a reader's questions.

    Claims whose rows are missing are left out, so that a study of one method has few.

    Args:
        scores: A line for each method (name of a row), head, column, shots, draw and seed. All
            draws in it count: leave out those that should not.
        diversity: Columns method (name of a row), shots, draw, seed and ratio; or empty.
        methods: Of whom each row is, by `registry.ROWS`, in the order of the report; rows of
            ablations may be among them.
        head_of_paper: The head of each row, by the paper's rule or another one.
        ablations: Of each row of an ablation: name, of (the row that it varies), family, label.
        metric: "top5", as the paper has it, or "top1".

    Raises:
        ValueError: If rows that are compared have not the same draws.
    """
    varied = {each["name"] for each in ablations}
    table = ScoredTable(
        paired=PairedScores.of(scores, metric),
        methods={label: method for label, method in methods.items() if label not in varied},
        head_of=head_of_paper,
        shots=tuple(sorted(int(k) for k in scores["shots"].unique())),
    )
    return [
        *judge_accuracy(table),
        *judge_neighbours(table, ablations),
        *judge_diversity(diversity, table.methods),
        *judge_beyond(table),
    ]

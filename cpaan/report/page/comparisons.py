"""Every row against every other, paired by draw."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cpaan.protocol.statistics import paired_differences
from cpaan.report.page.contents import Contents
from cpaan.report.page.table_data import PAPER, PRINTED_COLUMNS, VALIDATION, TableData


class Difference(NamedTuple):
    """Subject minus other, in points of top-5."""

    difference: float
    interval: float | None
    """Half the width of the 95 % interval over draws; None for a single draw."""

    @property
    def side(self) -> int:
        """1 or -1 if the interval is wholly on that side of zero, else 0."""
        if self.interval is None or abs(self.difference) <= self.interval:
            return 0
        return 1 if self.difference > 0 else -1


@dataclass(frozen=True)
class Comparisons:
    """Differences over the seeded draws, by rule for the heads."""

    of_rule: Mapping[str, Mapping[tuple[str, str, str, int], Difference]]
    """By rule; then by subject, other, column (LSL or GLSL) and shots."""

    def for_page(self, table: TableData) -> dict[str, Any]:
        """Return it as plain lists: by rule, subject and other, the columns' shots in a row."""
        keys = [(column, k) for column in PRINTED_COLUMNS for k in table.shots]
        names = [place.name for place in table.places]
        return {
            rule: [
                [[_plain(found.get((subject, other, *key))) for key in keys] for other in names]
                for subject in names
            ]
            for rule, found in self.of_rule.items()
        }


def _plain(difference: Difference | None) -> list[float | None] | None:
    if difference is None:
        return None
    interval = None if difference.interval is None else round(difference.interval, 1)
    return [round(difference.difference, 1), interval, difference.side]


def compare_rows(contents: Contents, table: TableData) -> Comparisons:
    """Compare all rows of the table by the rule it shows first, and by both rules for all rows."""
    rules = [rule for rule in (PAPER, VALIDATION, table.default_rule) if rule in table.rules]
    return Comparisons({rule: _compare(contents, table, rule) for rule in dict.fromkeys(rules)})


def _compare(
    contents: Contents, table: TableData, rule: str
) -> dict[tuple[str, str, str, int], Difference]:
    head_of = table.view(rule).head_of
    scores = contents.seeded
    scores = scores[scores["column"].isin(PRINTED_COLUMNS)]
    scores = scores[scores["head"] == scores["method"].map(head_of)].assign(head="chosen")
    names = [name for name in head_of if name in set(scores["method"])]
    found: dict[tuple[str, str, str, int], Difference] = {}
    for number, subject in enumerate(names[:-1]):
        rest = scores[scores["method"].isin(names[number:])]
        index = ["method", "column", "shots"]
        pairs: dict[Any, Any] = paired_differences(rest, subject).set_index(index).to_dict("index")
        for (other, column, shots), pair in pairs.items():
            half = float(pair["top5_interval"])
            interval = None if math.isnan(half) else half
            difference, key = float(pair["top5_difference"]), (column, int(shots))
            found[other, subject, *key] = Difference(difference, interval)
            found[subject, other, *key] = Difference(-difference, interval)
    return found

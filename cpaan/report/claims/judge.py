"""The paper's claims about accuracy, and further questions of a reader, judged from scores."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN
from cpaan.protocol.statistics import mean_interval
from cpaan.report.claims.mechanisms import BEST, EARLIER, GANS, judge_diversity, judge_neighbours
from cpaan.report.claims.verdict import Claim, Verdict, all_of, is_positive, listed
from cpaan.report.gains import PairedDifference, PairedScores, Scored, signed
from cpaan.report.published import SHOTS, TABLE_1
from cpaan.report.tables import TITLES

_NOVEL = "novel"
_GAINS = {
    "gain over PN": (BEST, "PN", "the naive baseline, PN without augmentation"),
    "gain over FI on PMN": (BEST, "FI-PMN", "FI, which has PMN to build on"),
    "gain over FI on PN": (BEST, "FI-PN", "FI on the same embedding"),
    "gain over ResNet-10": ("cCov-GAN", "LR", "no augmentation of the same raw features"),
    "gain by preserving covariance": (
        BEST,
        "cCyc-GAN-PN",
        "cCyc-GAN, which does not preserve covariance; a centroid sees only the mean of synthetic "
        "examples, other heads see their spread too",
    ),
    "gain by mixture noise": (
        "cDeLi-GAN-PN",
        "cCyc-GAN-PN",
        "cCyc-GAN, which has no mixture noise",
    ),
}
"""The better method, the worse one, and the worse one in words."""
_CONTROLS = {
    IN_PN: ("PN", "none-PN", "mean-shift-PN", "half-mean-shift-PN", "copy-PN"),
    "": ("none", "mean-shift", "half-mean-shift", "copy"),
}
"""By space: no augmentation, and augmentation that trains nothing."""


@dataclass(frozen=True)
class _Table:
    """The rows of a report, found by method, each with its head."""

    paired: PairedScores
    row_of: Mapping[str, str]
    head_of: Mapping[str, str]

    @property
    def few(self) -> int:
        return self.paired.shots[0]

    @property
    def cells(self) -> list[tuple[str, int]]:
        return [(column, k) for column in TITLES for k in self.paired.shots]

    def find(self, *methods: str) -> list[Scored]:
        """Return the rows of these methods, without those that have no scores with their head."""
        names = [self.row_of.get(method, "") for method in methods]
        rows = [(name, self.head_of.get(name, "")) for name in names]
        return [row for row in rows if row in self.paired.rows]

    def minus(self, row: Scored, other: Scored) -> PairedDifference:
        """Compare two rows in LSL with the fewest shots."""
        return self.paired.compare(row, other, _NOVEL, self.few)


def judge_claims(
    scores: pd.DataFrame,
    diversity: pd.DataFrame,
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
    ablations: Sequence[Mapping[str, str]] = (),
) -> list[Claim]:
    """Judge the paper's claims, then further questions. Claims whose rows are missing are left out.

    Args:
        scores: Scores by method (name of a row), head, column, shots, draw and seed.
        diversity: Columns method (name of a row), shots, draw, seed and ratio: the mean distance
            of two synthetic examples of a class over that of two real ones; or empty.
        methods: The method of each row, in the order of the report.
        head_of: The head of each row.
        ablations: Of each row of an ablation: name, of (the row that it varies), family, label.

    Raises:
        ValueError: If rows that are compared have different draws.
    """
    varied = {each["name"] for each in ablations}
    own = {name: method for name, method in methods.items() if name not in varied}
    # A row has the name of its method. In a study of one method, the last of its rows is the best.
    row_of = {method: name for name, method in own.items()} | {name: name for name in own}
    table = _Table(PairedScores(scores), row_of, head_of)
    return [
        *(claim for name, gain in _GAINS.items() for claim in _gain(table, name, *gain)),
        *_over_earlier(table),
        *_order(table),
        *_collapse(table),
        *_first_or_second(table),
        *_largest_at_few_shots(table),
        *judge_neighbours(table.paired, own, head_of, ablations),
        *judge_diversity(diversity, row_of),
        *(claim for space in _CONTROLS for claim in _beyond(table, space)),
    ]


def _cell(column: str, shots: int) -> str:
    return f"{TITLES[column]} K = {shots}"


def _printed(better: str, worse: str, column: str, shots: int) -> float | None:
    """Return the difference of two rows of the paper's table; None if it lacks one of them."""
    if better not in TABLE_1 or worse not in TABLE_1:
        return None
    ours, theirs = (TABLE_1[name].at(column, shots) for name in (better, worse))
    return None if ours is None or theirs is None else ours - theirs


def _gain(
    table: _Table, name: str, better: str, worse: str, what: str, *, is_paper: bool = True
) -> Iterator[Claim]:
    """Compare two rows, each with its head.

    Differences under heads that both rows have are reported too, but they do not decide.
    """
    rows = table.find(better, worse)
    if len(rows) < 2:
        return
    gap = table.minus(*rows)
    printed = _printed(better, worse, _NOVEL, table.few)
    found = listed([("", gap)], has_seeds=True)
    if printed is not None and not math.isnan(gap.interval):
        off = round(printed - gap.difference, 9)
        place = "in" if abs(off) <= gap.interval else "above" if off > 0 else "below"
        found += f"; the printed {printed:+.1f} is {place} this interval"
    (subject, own_head), (other, other_head) = rows
    same = [
        (head, table.minus((subject, head), (other, head)))
        for head in table.paired.heads([subject, other])
        if not head == own_head == other_head
    ]
    if same:
        found += f". Both under the same head: {listed(same)}"
    title = better if ROWS[better].group == "CP-AAN+" else ROWS[better].generation
    yield Claim(
        name,
        f"{title} does better than {what} ({_cell(_NOVEL, table.few)}).",
        "" if printed is None else f"{printed:+.1f}",
        found,
        is_positive(gap),
        is_paper,
    )


def _over_earlier(table: _Table) -> Iterator[Claim]:
    earlier = table.find(*EARLIER)
    for best in table.find(BEST) if earlier else ():
        gaps = {
            cell: min(
                (table.paired.compare(best, row, *cell) for row in earlier),
                key=lambda gap: gap.difference,
            )
            for cell in table.cells
        }
        low, *_, high = sorted(gaps, key=lambda cell: gaps[cell].difference)
        smallest, largest = (
            f"{gaps[cell].text()} ({_cell(*cell)}, {gaps[cell].start[0]})" for cell in (low, high)
        )
        printed = [
            min(gain for each in EARLIER if (gain := _printed(BEST, each, column, k)))
            for column in TITLES
            for k in SHOTS
        ]
        verdicts = [is_positive(gap) for gap in gaps.values()]
        yield Claim(
            "gain over earlier augmentation",
            "cCov-GAN in PN does better than every earlier augmentation (FH, P-FH, FI), for all "
            "numbers of shots, in LSL and GLSL.",
            f"{min(printed):+.1f} to {max(printed):+.1f} in all {len(printed)} columns",
            f"{best[0]} is ahead of the strongest of them in {verdicts.count('confirmed')} of "
            f"{len(gaps)} columns with the whole interval; smallest {smallest}, largest {largest}",
            all_of(verdicts),
        )


def _order(table: _Table) -> Iterator[Claim]:
    rows = table.find(*GANS)
    if len(rows) < len(GANS):
        return
    gaps, printed = [], []
    pairs = zip(pairwise(rows), pairwise(GANS), strict=True)
    for (worse, better), (worse_name, better_name) in pairs:
        label = f"{ROWS[better_name].generation} over {ROWS[worse_name].generation}"
        on_average = table.paired.compare(better, worse, _NOVEL, table.paired.shots)
        gaps += [(label, table.minus(better, worse)), ("mean over all K", on_average)]
        printed.append(_printed(better_name, worse_name, _NOVEL, table.few))
    yield Claim(
        "order of the GANs",
        "In PN each idea adds to the one before: c-GAN, cCyc-GAN, cDeLi-GAN, cCov-GAN "
        f"({_cell(_NOVEL, table.few)}, and LSL on average).",
        ", ".join(f"{gain:+.1f}" for gain in printed if gain is not None),
        listed(gaps),
        all_of(is_positive(gap) for _, gap in gaps),
    )


def _collapse(table: _Table) -> Iterator[Claim]:
    rows, names = table.find("FH", "FI-PN", "c-GAN-PN"), ("FH", "FI-PN")
    if len(rows) < 3:
        return
    gaps = [(f"{row[0]} over c-GAN", table.minus(row, rows[-1])) for row in rows[:-1]]
    printed = {name: _printed(name, "c-GAN-PN", _NOVEL, table.few) for name in names}
    yield Claim(
        "c-GAN below earlier augmentation",
        f"The plain c-GAN does worse than FH and FI ({_cell(_NOVEL, table.few)}).",
        ", ".join(f"{name} {gain:+.1f}" for name, gain in printed.items() if gain is not None),
        listed(gaps),
        all_of(is_positive(gap) for _, gap in gaps),
    )


def _first_or_second(table: _Table) -> Iterator[Claim]:
    others = table.find(*(name for name, row in ROWS.items() if row.is_printed and name != BEST))
    for best in table.find(BEST) if len(others) > 1 else ():
        gaps = {
            cell: [table.paired.compare(other, best, *cell) for other in others]
            for cell in table.cells
        }
        ahead = {cell: max(of, key=lambda gap: gap.difference) for cell, of in gaps.items()}
        ranks = {
            cell: 1 + sum(round(gap.difference, 9) > 0 for gap in of) for cell, of in gaps.items()
        }
        found = f"{_count(ranks.values())} among {len(others) + 1} rows of the paper"
        if max(ranks.values()) > 2:
            by_column = [
                f"{title} {', '.join(str(ranks[column, k]) for k in table.paired.shots)}"
                for column, title in TITLES.items()
            ]
            far = max(ahead, key=lambda cell: ahead[cell].difference)
            found += (
                f"; ranks by K: {'; '.join(by_column)}; farthest behind at {_cell(*far)}, where "
                f"{ahead[far].label} is {ahead[far].text()}"
            )
        cells = [(column, k) for column in TITLES for k in SHOTS]
        printed = [[row.at(*cell) or 0.0 for row in TABLE_1.values()] for cell in cells]
        place = list(TABLE_1).index(BEST)
        yield Claim(
            "first or second",
            "cCov-GAN in PN is first or second in every column of the table.",
            _count(1 + sum(value > values[place] for value in values) for values in printed),
            found,
            all_of(map(_among_two, gaps.values())),
        )


def _count(ranks: Iterable[int]) -> str:
    found = list(ranks)
    return f"first in {found.count(1)}, second in {found.count(2)} of {len(found)} columns"


def _among_two(gaps: Sequence[PairedDifference]) -> Verdict:
    """Judge whether at most one of these rows is ahead, by the intervals of others minus ours."""
    if sum(gap.low > 0 for gap in gaps) > 1:
        return "not confirmed"
    return "confirmed" if sum(not gap.high < 0 for gap in gaps) <= 1 else "unclear"


def _largest_at_few_shots(table: _Table) -> Iterator[Claim]:
    rows, ends = table.find(BEST, "PN"), (table.few, table.paired.shots[-1])
    if len(rows) < 2 or ends[0] == ends[1]:
        return
    better, worse = ([table.paired.by_draw(row, _NOVEL, k) for k in ends] for row in rows)
    gains = [ours - theirs for ours, theirs in zip(better, worse, strict=True)]
    change = gains[0] - gains[1]
    gap = PairedDifference("", rows[1], rows[0], float(change.mean()), mean_interval(change))
    printed = [_printed(BEST, "PN", _NOVEL, k) for k in ends]
    yield Claim(
        "gain is largest at the fewest shots",
        f"The gain over PN is larger at K = {ends[0]} than at K = {ends[1]} (LSL).",
        " and ".join(f"{gain:+.1f}" for gain in printed if gain is not None),
        f"{' and '.join(signed(gain.mean()) for gain in gains)}, so {gap.text()}",
        is_positive(gap),
    )


def _beyond(table: _Table, space: str) -> Iterator[Claim]:
    """Compare our rows with controls, under each head, and with each other."""
    faithful, further = f"cCov-GAN{space}", f"CP-AAN+{space}"
    named = {name for name, _ in table.paired.rows}
    controls = [name for name in _CONTROLS[space] if name in named]
    for row, own_head in table.find(faithful, further) if controls else ():
        by_head = {
            head: [(name, table.minus((row, head), (name, head))) for name in controls]
            for head in table.paired.heads([row, *controls])
        }
        if not (own := by_head.pop(own_head, [])):
            continue
        found = f"under {own_head}: {listed(own)}"
        lowest = {
            head: min(of, key=lambda each: each[1].difference) for head, of in by_head.items()
        }
        if lowest:
            parts = [f"{head} {gap.text()} ({name})" for head, (name, gap) in lowest.items()]
            found += f". Under other heads, over the best of these: {', '.join(parts)}"
        yield Claim(
            f"{row} over the controls",
            f"{row} does better than no augmentation, and than controls that train no generator, "
            f"under the same head ({_cell(_NOVEL, table.few)}).",
            "",
            found,
            all_of(is_positive(gap) for _, gap in own),
            is_paper=False,
        )
    name = f"{further} over {faithful}"
    yield from _gain(table, name, further, faithful, f"the faithful {faithful}", is_paper=False)

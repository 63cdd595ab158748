"""The paper's claims about accuracy, and further questions of a reader, judged from scores."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import pandas as pd

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN
from cpaan.protocol.calibration import SCORED
from cpaan.report.claims.mechanisms import BEST, EARLIER, GANS, judge_diversity, judge_neighbours
from cpaan.report.claims.verdict import Claim, Kind, Labelled, listed, make_claim, with_verdicts
from cpaan.report.gains import MethodScores, PairedDifference, Scored, signed
from cpaan.report.published import CELLS, TABLE_1, printed_of
from cpaan.report.tables import TITLES

_NOVEL = "novel"
TERMS = "terms"
"""The family of ablations that take one term away."""
TERM_OF = {GANS[1]: "the cycle term", GANS[2]: "mixture noise", BEST: "the covariance term"}
"""The term that a method adds to the one that the paper compares it with."""
WITH_TERM = "recommended weight of synthetic examples"
"""The ablation that has the term, and differs in nothing else from the one without it."""
_TERM_ROWS = {
    method: (f"{method}: {WITH_TERM}", f"{method}: without {term}")
    for method, term in TERM_OF.items()
}
"""The ablations with and without the term of a method."""
_OWN = "cCyc-GAN with its own settings"
_COPIES = "copies of related base examples"
_PLAIN = "no augmentation in the same embedding"
_GAINS: Sequence[tuple[Kind, str, str, str]] = (
    *(("control", name, "PN", "PN") for name in ("AWG", "AWG-cosine", "wDAE", "FI-PN", "FI-PMN")),
    ("primary", BEST, "PN", "PN, whose embedding was tuned; none-PN has that of this row"),
    ("primary", BEST, "none-PN", _PLAIN),
    ("primary", BEST, "FI-PN", "FI, which trains a PN of its own"),
    ("primary", BEST, "FI-PMN", "FI, which has PMN to build on and its own classifier"),
    ("primary", BEST, "copy-PN", _COPIES),
    ("primary", "CP-AAN+", "copy", _COPIES),
    ("primary", "CP-AAN+-PN", "copy-PN", _COPIES),
    ("paper", "cCov-GAN", "LR", "LR, whose head was tuned; the row “none” has that of this row"),
    ("paper", BEST, GANS[1], _OWN),
    ("paper", GANS[2], GANS[1], _OWN),
    ("further", _TERM_ROWS[BEST][0], "none-PN", _PLAIN),
    ("further", _TERM_ROWS[BEST][0], "copy-PN", _COPIES),
    ("further", "CP-AAN+-PN", BEST, "the faithful method"),
    ("further", "CP-AAN+", "cCov-GAN", "the faithful method"),
)
"""The kind of a claim, the better method, the worse one, and the worse one in words."""
_CONTROLS = {
    IN_PN: ("none-PN", "mean-shift-PN", "half-mean-shift-PN", "copy-PN"),
    "": ("none", "mean-shift", "half-mean-shift", "copy"),
}
"""By space: no augmentation, and augmentation that trains nothing."""


def judge_claims(
    scores: pd.DataFrame,
    diversity: pd.DataFrame,
    methods: Mapping[str, str],
    head_of: Mapping[str, str],
    ablations: Sequence[Mapping[str, str]] = (),
) -> list[Claim]:
    """Judge positive controls, primary comparisons, the paper's other claims, further questions.

    Claims of one kind are in order. Claims whose rows are missing are left out.

    Args:
        scores: Scores by method (name of a row), head, column, shots, draw and seed.
        diversity: Columns method (name of a row), shots, draw, seed and ratio: the mean distance
            of two synthetic examples of a class over that of two real ones; or empty.
        methods: The method of each row but ablations and rows as published, in the order of the
            report.
        head_of: The head of each row.
        ablations: Of each row of an ablation: name, of (the row that it varies), family, label.

    Raises:
        ValueError: If rows that are compared have different draws.
    """
    # A row has the name of its method. In a study of one method, the last of its rows is the best.
    row_of = {method: name for name, method in methods.items()} | {name: name for name in methods}
    heads = dict(head_of)
    for each in ablations:
        if each["family"] == TERMS and (of := each["of"]) in head_of:
            row_of[f"{methods[of]}: {each['label']}"] = each["name"]
            heads[each["name"]] = head_of[of]
    table = MethodScores(scores, row_of, heads)
    claims = [
        *(claim for method in TERM_OF for claim in _one_term(table, method)),
        *(claim for gain in _GAINS for claim in _gain(table, *gain)),
        *_over_earlier(table),
        *_order(table),
        *_collapse(table),
        *_first_or_second(table),
        *_largest_at_few_shots(table),
        *judge_neighbours(table, methods, head_of, ablations),
        *judge_diversity(diversity, row_of, _TERM_ROWS[GANS[1]]),
        *(claim for space in _CONTROLS for claim in _beyond(table, space)),
    ]
    return with_verdicts(claims)


def _printed(better: str, worse: str, column: str, shots: int) -> float | None:
    """Return the difference of two rows that papers print; None if one of them is not printed.

    Papers print plain GLSL, which stands for the calibrated one.
    """
    cell = column if column in TITLES else "all", shots
    ours, theirs = (printed_of(method).get(cell) for method in (better, worse))
    return None if ours is None or theirs is None else ours - theirs


def _signs(values: Iterable[float | None], between: str = ", ") -> str:
    return between.join(f"{value:+z.1f}" for value in values if value is not None)


def _gain(table: MethodScores, kind: Kind, better: str, worse: str, what: str) -> Iterator[Claim]:
    title = better.replace(": ", " with the ")
    text = f"{title} does better than {what} ({table.label(*table.few)})."
    name = f"{title} over {worse}"
    if better in GANS and worse in GANS:
        name += ", tuned separately"
    printed = _printed(better, worse, *table.few)
    yield from _compare(table, name, text, table.find(better, worse), printed, kind)


def _one_term(table: MethodScores, method: str) -> Iterator[Claim]:
    """Compare a GAN with the same settings without its term, both with `WITH_TERM`.

    A centroid sees only the mean of synthetic examples. Other heads, which see their spread too,
    are reported but do not decide.
    """
    before = GANS[0] if method == GANS[1] else GANS[1]
    title, other = (ROWS[name].generation for name in (method, before))
    text = (
        f"{title} does better than with the same settings without {TERM_OF[method]}, both with the "
        f"{WITH_TERM} ({table.label(*table.few)}; printed is its gain over {other})."
    )
    rows, printed = table.find(*_TERM_ROWS[method]), _printed(method, before, *table.few)
    yield from _compare(table, f"gain by {TERM_OF[method]}", text, rows, printed, "primary")


def _compare(
    table: MethodScores,
    name: str,
    text: str,
    rows: Sequence[Scored],
    printed: float | None,
    kind: Kind,
) -> Iterator[Claim]:
    """Compare two rows, each with its head; nothing if one of them is missing.

    Calibrated GLSL, and differences under heads that both rows have, are reported too, but they do
    not decide.
    """
    if len(rows) < 2:
        return
    columns = [column for column in table.titles if column in SCORED]

    def gaps(subject: Scored, other: Scored) -> list[PairedDifference]:
        return [table.compare(subject, other, column, table.few[1]) for column in columns]

    gap, *calibrated = gaps(*rows)
    found, of_paper = listed([("", gap)], has_seeds=True), _signs([printed])
    if printed is not None and not math.isnan(gap.interval):
        off = round(printed - gap.difference, 9)
        place = "in" if abs(off) <= gap.interval else "above" if off > 0 else "below"
        found += f"; the printed {of_paper} is {place} this interval"
    found += "".join(f"; calibrated GLSL {each.text()}" for each in calibrated)
    (subject, own_head), (other, other_head) = rows
    same = [
        f"{head} {', '.join(each.text() for each in gaps((subject, head), (other, head)))}"
        for head in table.heads([subject, other])
        if not head == own_head == other_head
    ]
    if same:
        which = f" ({', '.join(table.titles.values())})" if calibrated else ""
        found += f". Both under the same head{which}: {'; '.join(same)}"
    yield from make_claim(
        name, text, [("", gap)], printed=of_paper, found=found, values=[printed], kind=kind
    )


def _over_earlier(table: MethodScores) -> Iterator[Claim]:
    earlier = table.find(*EARLIER)
    for best in table.find(BEST) if len(earlier) == len(EARLIER) else ():
        keys = [(row, cell) for cell in table.cells for row in earlier]
        gaps = [table.compare(best, row, *cell) for row, cell in keys]
        order = sorted(range(len(gaps)), key=lambda place: gaps[place].difference)
        smallest, largest = (
            f"{gaps[at].text()} ({table.label(*keys[at][1])}, {keys[at][0][0]})"
            for at in (order[0], order[-1])
        )
        num_ahead = sum(
            all(gap.side > 0 for gap, (_, of) in zip(gaps, keys, strict=True) if of == cell)
            for cell in table.cells
        )
        of_paper = [
            min(gain for each in EARLIER if (gain := _printed(BEST, each, *cell))) for cell in CELLS
        ]
        yield from make_claim(
            "gain over earlier augmentation",
            "cCov-GAN in PN does better than every earlier augmentation (FH, P-FH, FI), for all "
            f"numbers of shots, in {' and '.join(table.titles.values())}.",
            [("", gap) for gap in gaps],
            printed=f"{_signs([min(of_paper), max(of_paper)], ' to ')} in all {len(CELLS)} columns",
            found=f"{best[0]} is ahead of all of them in {num_ahead} of {len(table.cells)} columns "
            f"with the whole interval; smallest {smallest}, largest {largest}",
            values=[_printed(BEST, row[0], *cell) for row, cell in keys],
            shown=[order[0], order[-1]],
        )


def _order(table: MethodScores) -> Iterator[Claim]:
    rows = table.find(*GANS)
    if len(rows) < len(GANS):
        return
    gaps, printed = list[Labelled](), list[float | None]()
    for (worse, better), (low, high) in zip(pairwise(GANS), pairwise(rows), strict=True):
        title = f"{ROWS[better].generation} over {ROWS[worse].generation}"
        gaps.append((title, table.compare(high, low, *table.few)))
        gaps.append(("mean over all K", table.compare(high, low, _NOVEL, table.shots)))
        by_shots = [_printed(better, worse, _NOVEL, k) for k in table.shots]
        known = [gain for gain in by_shots if gain is not None]
        mean = sum(known) / len(known) if len(known) == len(by_shots) else None
        printed += [by_shots[0], mean]
    yield from make_claim(
        "order of the GANs",
        "In PN each idea adds to the one before: c-GAN, cCyc-GAN, cDeLi-GAN, cCov-GAN "
        f"({table.label(*table.few)}, and LSL on average).",
        gaps,
        printed=_signs(printed[::2]),
        values=printed,
    )


def _collapse(table: MethodScores) -> Iterator[Claim]:
    names = "FH", "FI-PN"
    rows = table.find(*names, GANS[0])
    if len(rows) < 3:
        return
    printed = {name: _printed(name, GANS[0], *table.few) for name in names}
    yield from make_claim(
        "c-GAN below earlier augmentation",
        f"The plain c-GAN does worse than FH and FI ({table.label(*table.few)}).",
        [(f"{row[0]} over c-GAN", table.compare(row, rows[-1], *table.few)) for row in rows[:-1]],
        printed=", ".join(f"{name} {_signs([gain])}" for name, gain in printed.items() if gain),
        values=list(printed.values()),
    )


def _first_or_second(table: MethodScores) -> Iterator[Claim]:
    """In each column, cCov-GAN has to be ahead of the second best of the other rows."""
    others = table.find(*(name for name, row in ROWS.items() if row.is_printed and name != BEST))
    for best in table.find(BEST) if len(others) > 1 else ():
        gaps, ranks = {}, {}
        for cell in table.cells:
            of_cell = {
                other: table.compare(best, other, *cell, num_comparisons=len(others))
                for other in others
            }
            gaps[cell] = sorted(of_cell.items(), key=lambda item: item[1].difference)
            ranks[cell] = 1 + sum(round(gap.difference, 9) < 0 for gap in of_cell.values())
        found = f"{_count(ranks.values())} among {len(others) + 1} rows of the paper"
        if max(ranks.values()) > 2:
            by_column = [
                f"{title} {', '.join(str(ranks[column, k]) for k in table.shots)}"
                for column, title in table.titles.items()
            ]
            far = min(gaps, key=lambda cell: gaps[cell][0][1].difference)
            ahead = gaps[far][0][0]
            found += (
                f"; ranks by K: {'; '.join(by_column)}; farthest behind at {table.label(*far)}: "
                f"{table.compare(best, ahead, *far).text()} against {ahead[0]}"
            )
        ours = TABLE_1[BEST]
        yield from make_claim(
            "first or second",
            "cCov-GAN in PN is first or second in every column of the table "
            f"({' and '.join(table.titles.values())}).",
            [("", of_cell[1][1]) for of_cell in gaps.values()],
            printed=_count(
                1 + sum(row.get(cell, 0.0) > ours[cell] for row in TABLE_1.values())
                for cell in CELLS
            ),
            found=found,
            shown=[],
        )


def _count(ranks: Iterable[int]) -> str:
    found = list(ranks)
    return f"first in {found.count(1)}, second in {found.count(2)} of {len(found)} columns"


def _largest_at_few_shots(table: MethodScores) -> Iterator[Claim]:
    rows, ends = table.find(BEST, "PN"), (table.shots[0], table.shots[-1])
    if len(rows) < 2 or ends[0] == ends[1]:
        return
    few, many = (
        table.values(rows[0], _NOVEL, k).minus(table.values(rows[1], _NOVEL, k)) for k in ends
    )
    gap = PairedDifference.of(few.minus(many))
    at_few, at_many = (_printed(BEST, "PN", _NOVEL, k) for k in ends)
    gains = " and ".join(signed(each.estimate().mean) for each in (few, many))
    yield from make_claim(
        "gain is largest at the fewest shots",
        f"The gain over PN is larger at K = {ends[0]} than at K = {ends[1]} (LSL).",
        [("", gap)],
        printed=_signs([at_few, at_many], " and "),
        found=f"{gains}, so {gap.text()}",
        values=[at_few - at_many if at_few and at_many else None],
    )


def _beyond(table: MethodScores, space: str) -> Iterator[Claim]:
    """Compare our rows with controls, under each head; that of the row decides."""
    named = {name for name, _ in table.rows}
    controls = [name for name in _CONTROLS[space] if name in named]
    for row, own_head in table.find(f"cCov-GAN{space}", f"CP-AAN+{space}") if controls else ():
        heads = sorted(table.heads([row, *controls]), key=lambda head: head != own_head)
        gaps = {
            head: [
                (name, table.compare((row, head), (name, head), *table.few)) for name in controls
            ]
            for head in heads
        }
        found = ". Under ".join(f"{head}: {listed(of)}" for head, of in gaps.items())
        text = (
            f"{row} does better than no augmentation, and than controls that train no generator, "
            f"under the same head ({table.label(*table.few)})."
        )
        own, name = gaps.get(own_head, []), f"{row} over the controls"
        yield from make_claim(name, text, own, found=f"under {found}", kind="further")

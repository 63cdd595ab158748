"""The paper's claims about accuracy, from the rows of its table."""

from itertools import pairwise

from cpaan.methods.registry import ROWS
from cpaan.protocol.statistics import mean_interval
from cpaan.report.claims.scored_table import NOVEL, ScoredTable, name_of, printed_gain
from cpaan.report.claims.verdict import Claim, Verdict, against_printed, all_of, show, verdict_of
from cpaan.report.gains import Scored, Step
from cpaan.report.published import SHOTS, TABLE_1
from cpaan.report.tables import TITLES

BEST = "cCov-GAN-PN"
"""What the paper calls its best method."""
EARLIER = ("FH", "P-FH", "FI-PN", "FI-PMN")
"""The augmentations that were there before it."""
GANS_IN_ORDER = ("c-GAN-PN", "cCyc-GAN-PN", "cDeLi-GAN-PN", "cCov-GAN-PN")
"""From the worst to the best, by the paper."""

_PAIRS = {
    "gain over PN": (BEST, "PN", "does better than the naive baseline, PN without augmentation"),
    "gain over FI on PMN": (BEST, "FI-PMN", "does better than FI, which has PMN to build on"),
    "gain over FI on PN": (BEST, "FI-PN", "does better than FI on the same embedding"),
    "gain over ResNet-10": (
        "cCov-GAN",
        "LR",
        "does better on raw features than they do without augmentation",
    ),
    "gain by preserving covariance": (
        BEST,
        "cCyc-GAN-PN",
        "does better for preserving covariance than cCyc-GAN does without; a centroid sees only "
        "the mean of synthetic examples, other heads see their spread too",
    ),
    "gain by mixture noise": (
        "cDeLi-GAN-PN",
        "cCyc-GAN-PN",
        "does better for its mixture noise than cCyc-GAN does without",
    ),
}


def judge_accuracy(table: ScoredTable) -> list[Claim]:
    """Return the verdict on each claim about accuracy whose rows there are."""
    first = table.shots[0]
    claims = [
        better_claim(
            table,
            name,
            f"{ROWS[better].generation} {text} ({name_of(NOVEL, first)}).",
            better,
            worse,
        )
        for name, (better, worse, text) in _PAIRS.items()
    ]
    claims += [
        _over_earlier(table),
        _order(table),
        _collapse(table),
        _first_or_second(table),
        _largest_at_few_shots(table),
    ]
    return [claim for claim in claims if claim is not None]


def better_claim(
    table: ScoredTable, name: str, text: str, better: str, worse: str, *, is_paper: bool = True
) -> Claim | None:
    """Return whether a method does better than another, in LSL with the fewest shots.

    Each has the head of its row. Where both have other heads in common, the differences under the
    same head are told too, but they do not decide.
    """
    rows = table.find(better, worse)
    if rows is None:
        return None
    subject, other = rows
    shots = table.shots[0]
    step = table.paired.compare(subject, other, NOVEL, shots)
    printed = printed_gain(better, worse, NOVEL, shots)
    same = [
        f"{head} {show(table.paired.compare((subject[0], head), (other[0], head), NOVEL, shots))}"
        for head in table.heads([subject[0], other[0]], without={subject, other})
    ]
    found = f"{show(step, seeds=True)}{against_printed(step, printed)}"
    if same:
        found += f". Both under the same head: {', '.join(same)}"
    return Claim(
        name,
        text,
        "" if printed is None else f"{printed:+.1f}",
        found,
        verdict_of(step),
        is_paper=is_paper,
    )


def _strongest(table: ScoredTable, rows: list[Scored], column: str, shots: int) -> Scored:
    return max(rows, key=lambda row: table.paired.mean(row, column, shots))


def _over_earlier(table: ScoredTable) -> Claim | None:
    best = table.scored(BEST)
    earlier = [row for name in EARLIER if (row := table.scored(name)) is not None]
    if best is None or not earlier:
        return None
    steps = {
        cell: table.paired.compare(best, _strongest(table, earlier, *cell), *cell)
        for cell in table.cells()
    }
    verdicts = [verdict_of(step) for step in steps.values()]
    low, high = (pick(steps, key=lambda cell: steps[cell].difference) for pick in (min, max))
    gains = [
        min(gain for each in EARLIER if (gain := printed_gain(BEST, each, column, k)) is not None)
        for column in TITLES
        for k in SHOTS
    ]
    return Claim(
        "gain over earlier augmentation",
        "cCov-GAN in PN does better than every earlier augmentation (FH, P-FH, FI), for all "
        "numbers of shots, in LSL and GLSL.",
        f"{min(gains):+.1f} to {max(gains):+.1f} in all {len(gains)} columns",
        f"{best[0]} is ahead of the strongest of them in {verdicts.count('confirmed')} of "
        f"{len(steps)} columns with the whole interval; smallest {show(steps[low])} "
        f"({name_of(*low)}, {steps[low].start[0]}), largest {show(steps[high])} "
        f"({name_of(*high)}, {steps[high].start[0]})",
        all_of(verdicts),
    )


def _order(table: ScoredTable) -> Claim | None:
    rows = table.find(*GANS_IN_ORDER)
    if rows is None:
        return None
    first, parts, printed, verdicts = table.shots[0], [], [], []
    for (worse, better), (worse_name, better_name) in zip(
        pairwise(rows), pairwise(GANS_IN_ORDER), strict=True
    ):
        steps = [table.paired.compare(better, worse, NOVEL, k) for k in (first, table.shots)]
        verdicts += [verdict_of(step) for step in steps]
        pair = f"{ROWS[better_name].generation} over {ROWS[worse_name].generation}"
        parts.append(f"{pair} {show(steps[0])}, mean over all K {show(steps[1])}")
        gain = printed_gain(better_name, worse_name, NOVEL, first)
        printed += [] if gain is None else [f"{gain:+.1f}"]
    return Claim(
        "order of the GANs",
        "In PN each idea adds to the one before: c-GAN, cCyc-GAN, cDeLi-GAN, cCov-GAN "
        f"({name_of(NOVEL, first)}, and LSL on average).",
        ", ".join(printed),
        "; ".join(parts),
        all_of(verdicts),
    )


def _collapse(table: ScoredTable) -> Claim | None:
    names, first = ("FH", "FI-PN"), table.shots[0]
    rows = table.find(*names, "c-GAN-PN")
    if rows is None:
        return None
    steps = [table.paired.compare(row, rows[-1], NOVEL, first) for row in rows[:-1]]
    return Claim(
        "c-GAN below earlier augmentation",
        f"The plain c-GAN does worse than FH and FI ({name_of(NOVEL, first)}).",
        ", ".join(
            f"{name} {gain:+.1f}"
            for name in names
            if (gain := printed_gain(name, "c-GAN-PN", NOVEL, first)) is not None
        ),
        "; ".join(f"{step.label} over c-GAN {show(step)}" for step in steps),
        all_of(map(verdict_of, steps)),
    )


def _first_or_second(table: ScoredTable) -> Claim | None:
    subject = table.scored(BEST)
    printed = [name for name, row in ROWS.items() if row.is_printed and name != BEST]
    others = [row for name in printed if (row := table.scored(name)) is not None]
    if subject is None or len(others) < 2:
        return None
    ranks, verdicts, ahead = {}, [], {}
    for cell in table.cells():
        steps = [table.paired.compare(other, subject, *cell) for other in others]
        ranks[cell] = 1 + sum(round(step.difference, 9) > 0 for step in steps)
        ahead[cell] = max(steps, key=lambda step: step.difference)
        verdicts.append(_among_two(steps))
    found = f"{_count(list(ranks.values()))} among {len(others) + 1} rows of the paper"
    if max(ranks.values()) > 2:
        by_column = [
            f"{title} {', '.join(str(ranks[column, k]) for k in table.shots)}"
            for column, title in TITLES.items()
        ]
        far = max(ahead, key=lambda cell: ahead[cell].difference)
        found += (
            f"; ranks by K: {'; '.join(by_column)}; farthest behind at {name_of(*far)}, where "
            f"{ahead[far].label} is {show(ahead[far])}"
        )
    return Claim(
        "first or second",
        "cCov-GAN in PN is first or second in every column of the table.",
        _count(_printed_ranks()),
        found,
        all_of(verdicts),
    )


def _among_two(steps: list[Step]) -> Verdict:
    """Return whether at most one of these rows is ahead, by the intervals of others minus ours."""
    if sum(step.difference - step.interval > 0 for step in steps) > 1:
        return "not confirmed"
    is_behind = [step.difference + step.interval < 0 for step in steps]
    return "confirmed" if is_behind.count(False) <= 1 else "unclear"


def _printed_ranks() -> list[int]:
    ranks = []
    for column in TITLES:
        for k in SHOTS:
            values = {name: row.at(column, k) or 0.0 for name, row in TABLE_1.items()}
            ranks.append(1 + sum(value > values[BEST] for value in values.values()))
    return ranks


def _count(ranks: list[int]) -> str:
    return f"first in {ranks.count(1)}, second in {ranks.count(2)} of {len(ranks)} columns"


def _largest_at_few_shots(table: ScoredTable) -> Claim | None:
    rows, few, many = table.find(BEST, "PN"), table.shots[0], table.shots[-1]
    if rows is None or few == many:
        return None
    of_few, of_many = (
        table.paired.by_draw(rows[0], NOVEL, k) - table.paired.by_draw(rows[1], NOVEL, k)
        for k in (few, many)
    )
    of_draw = of_few - of_many
    step = Step("", rows[1], rows[0], float(of_draw.mean()), mean_interval(of_draw))
    printed = [printed_gain(BEST, "PN", NOVEL, k) for k in (few, many)]
    return Claim(
        "gain is largest at the fewest shots",
        f"The gain over PN is larger at K = {few} than at K = {many} (LSL).",
        f"{printed[0]:+.1f} and {printed[1]:+.1f}" if None not in printed else "",
        f"{of_few.mean():+.2f} and {of_many.mean():+.2f}, so {show(step)}",
        verdict_of(step),
    )

"""The finding of a report in one sentence, and the data that it is about."""

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

from cpaan.methods.registry import ROWS
from cpaan.protocol.statistics import ROW, bootstrap_interval
from cpaan.report.claims.verdict import MARGIN, VERDICTS, Judgement
from cpaan.report.gains import Scored
from cpaan.report.page.contents import DEFAULT, Contents
from cpaan.report.page.templates import plus_minus
from cpaan.report.page.views import TableViews
from cpaan.report.table_one import Cells
from cpaan.report.tables import Cell, signed

_RELATIONS = (
    *["scores higher than"] * 2,
    f"is within {MARGIN} points of",
    "scores lower than",
    "is not shown to differ from",
)
_IN_WORDS = dict(zip(VERDICTS, _RELATIONS, strict=True))
"""How a row compares with another, by the verdict on the claim that it is better."""


class Training(NamedTuple):
    """How long GANs were trained, in episodes, and the weights of synthetic examples."""

    episodes: str
    printed: str
    of_trials: str
    lowest_weights: Mapping[float, Sequence[str]]
    """The rows whose sweep chose the lowest weight that it tried, by this weight in shots."""


class Headline(NamedTuple):
    """The top of the page."""

    finding: str
    """With a difference and its interval."""
    beside: Sequence[str]
    """Sentences with further differences."""
    training: Training | None
    """None without GANs."""


def make_headline(
    contents: Contents, table: TableViews, gains: Cells, judged: Sequence[Judgement]
) -> Headline:
    """State the main finding, and the training that it is about.

    The finding is that of the headline claims. Without them, the two best rows are compared. A
    study of one row begins with its winner and the default settings.
    """
    findings = [*_of_search(contents, table), *_of_claims(contents, table, gains, judged)]
    return Headline(findings[0], findings[1:], _training(contents))


def _of_claims(
    contents: Contents, table: TableViews, gains: Cells, judged: Sequence[Judgement]
) -> list[str]:
    """Return the headline claims in the words of their verdicts, or else the two best rows."""
    sentences, of_controls = list[str](), dict[str, str]()
    places = {name: (row.group, row.representation) for name, row in table.rows.items()}
    for judgement in [x for x in judged if x.claim.flag == "headline"]:
        (part,) = judgement.parts
        (name, head), (other, _) = part.rows
        draws = "" if judgement.deciding else "; over draws alone"
        sentences.append(
            f"{name} {_IN_WORDS[judgement.verdict]} {other} ({table.rows[other].summary}): "
            f"{_number(part.gap)} points ({judgement.cell}, {head} head"
            f"{draws}; verdict: {judgement.verdict})."
        )
        sentences += _over_classes(contents, *part.rows)
        # The best control may be another one.
        best = next(name for name in table.ranked if places[name] == places[other])
        for control in (other, best):
            if gain := gains.get((control, "novel", table.shots[0])):
                of_controls[control] = f"{control} {_number(gain)}"
    if not sentences:
        return [_best_row(contents, table)]
    if of_controls:
        sentences.append(f"Over no augmentation, uncorrected: {'; '.join(of_controls.values())}.")
    return [f"On these features, {sentences[0]}", *sentences[1:]]


def _number(cell: Cell) -> str:
    return f"{signed(cell.value)}{plus_minus(cell.interval, 2)}"


def _best_row(contents: Contents, table: TableViews) -> str:
    """Compare the two rows with the highest means."""
    names = [x for x in table.ranked if x in contents.searched and not x.endswith(DEFAULT)]
    if len(names) < 2:
        return f"{names[0]} is the only row: there is nothing to compare it with."
    best, second = ((name, table.head_of[name]) for name in names[:2])
    num_pairs, shots = comb(len(names), 2), table.shots[0]
    gap = contents.paired.compare(best, second, "novel", shots, num_comparisons=num_pairs)
    return (
        f"{names[0]} has the highest mean: {names[0]} − {names[1]} is "
        f"{_number(gap)} points (LSL K = {shots}; the interval allows for "
        f"the choice among {len(names)} rows)."
    )


def _over_classes(contents: Contents, subject: Scored, other: Scored) -> list[str]:
    """Say how much a difference depends on the novel classes, by a bootstrap over them."""
    if contents.classes is None:
        return []
    by_class = {key: frame["top5"].to_numpy() for key, frame in contents.classes.groupby(ROW)}
    gaps = by_class[subject] - by_class[other]
    low, high = bootstrap_interval(gaps)
    zero = ", which includes zero" if low <= 0 <= high else ""
    ends = f"{signed(low)} to {signed(high)}{zero}"
    return [f"A bootstrap over the {len(gaps)} novel classes gives {ends}."]


def _of_search(contents: Contents, table: TableViews) -> list[str]:
    """Compare the winner of a single search with the default settings in the search's score."""
    if len(contents.best) > 1:
        return []
    winner, method = list(contents.methods.items())[-1]
    default, scores = f"{method}, {DEFAULT}", contents.paired
    if contents.best[method]["trial"] == 0 and default not in contents.methods:
        return [f"The search found no settings that beat the default settings of {method}."]
    ours, usual = ((name, table.head_of.get(winner, "")) for name in (winner, default))
    if not {ours, usual} <= scores.rows:
        return []
    gap = scores.compare(ours, usual, list(scores.titles), scores.shots)
    beats = ("is not shown to differ from", "beats", "scores lower than")[gap.side]
    return [
        f"The search’s winner {beats} the default settings of {method} on the test phase: "
        f"{gap.text()} points (mean of {' and '.join(scores.titles.values())} over all shots)."
    ]


def _training(contents: Contents) -> Training | None:
    gans = {
        name: int(best["training"]["num_episodes"])
        for name, best in contents.best.items()
        if ROWS[best["method"]].gan and "training" in best
    }
    if not gans:
        return None
    published: Any = ROWS[contents.best[next(iter(gans))]["method"]].published
    factors = {name: contents.studies[name]["config"].get("report_length", 1) for name in gans}
    trials = (gans[name] // factor for name, factor in factors.items())
    lowest = dict[float, list[str]]()
    for name, best in contents.best.items():
        tried = {line["mixing_shots"] for line in best.get("sweep", ()) if "mixing_shots" in line}
        if len(tried) > 1 and best["swept"]["mixing_shots"] == min(tried):
            lowest.setdefault(min(tried), []).append(name)
    return Training(_range(gans.values()), f"{published.num_episodes:,}", _range(trials), lowest)


def _range(numbers: Iterable[int]) -> str:
    ends = sorted(numbers)
    return " to ".join(f"{number:,}" for number in dict.fromkeys([ends[0], ends[-1]]))

"""The finding of a report, and the data that it is about; `headline.jinja` has the words."""

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any, NamedTuple

from cpaan.methods.registry import METHODS
from cpaan.protocol.statistics import ROW, bootstrap_interval
from cpaan.report.claims.verdict import Judgement
from cpaan.report.gains import Scored
from cpaan.report.page.contents import Contents
from cpaan.report.page.older import DEFAULT
from cpaan.report.page.views import TableViews
from cpaan.report.table_one import Cells
from cpaan.report.tables import Cell


class Training(NamedTuple):
    """How long GANs were trained, in episodes, and the weights of synthetic examples."""

    episodes: Sequence[int]
    """The fewest and the most; one number if they are equal."""
    printed: int
    of_trials: Sequence[int]
    lowest_weights: Mapping[float, Sequence[str]]
    """The rows whose sweep chose the lowest weight that it tried, by this weight in shots."""


class SearchResult(NamedTuple):
    """The winner of a search beside the default settings."""

    method: str
    gap: Cell | None
    """The winner minus the default settings, mean over columns and shots; None if these won."""


class HeadlineClaim(NamedTuple):
    """A claim of the headline, which has a single difference."""

    judgement: Judgement
    over_classes: tuple[float, float] | None
    """Ends of the interval by a bootstrap over the novel classes, if their scores were kept."""


class BestRows(NamedTuple):
    """The two rows with the highest means."""

    names: Sequence[str]
    """All rows that were compared, the best first."""
    gap: Cell | None
    """The first minus the second; None for a single row."""


class Headline(NamedTuple):
    """The top of the page: the first of these that there is is the finding."""

    search: SearchResult | None
    """Of a study of one row."""
    claims: Sequence[HeadlineClaim]
    control_gains: Mapping[str, Cell]
    """What the controls of these claims, and the best of their kind, gain over no augmentation."""
    best: BestRows | None
    """In place of claims, if there are none."""
    training: Training | None
    """None without GANs."""


def make_headline(
    contents: Contents, table: TableViews, gains: Cells, judgements: Sequence[Judgement]
) -> Headline:
    """Choose the findings of a report, and summarise the training that they are about."""
    claims, control_gains = list[HeadlineClaim](), dict[str, Cell]()
    places = {name: (row.group, row.representation) for name, row in table.rows.items()}
    for judgement in [x for x in judgements if x.claim.flag == "headline"]:
        (part,) = judgement.parts
        claims.append(HeadlineClaim(judgement, _over_classes(contents, part.rows)))
        control = part.rows[1][0]
        # The best control may be another one.
        best = next(name for name in table.ranked if places[name] == places[control])
        for name in (control, best):
            if gain := gains.get((name, "novel", table.shots[0])):
                control_gains[name] = gain
    best_rows = None if claims else _best_rows(contents, table)
    search, training = _search_result(contents, table), _training(contents)
    return Headline(search, claims, control_gains, best_rows, training)


def _best_rows(contents: Contents, table: TableViews) -> BestRows:
    defaults = {row.name for row in contents.rows if row.settings == DEFAULT}
    names = [x for x in table.ranked if x in contents.searched and x not in defaults]
    if len(names) < 2:
        return BestRows(names, None)
    best, second = ((name, table.head_of[name]) for name in names[:2])
    num_pairs, shots = comb(len(names), 2), table.shots[0]
    gap = contents.paired.compare(best, second, "novel", shots, num_comparisons=num_pairs)
    return BestRows(names, gap)


def _over_classes(contents: Contents, rows: tuple[Scored, Scored]) -> tuple[float, float] | None:
    if contents.classes is None:
        return None
    by_class = {key: frame["top5"].to_numpy() for key, frame in contents.classes.groupby(ROW)}
    subject, other = (by_class[row] for row in rows)
    return bootstrap_interval(subject - other)


def _search_result(contents: Contents, table: TableViews) -> SearchResult | None:
    """Compare the winner of a single search with the default settings in the search's score."""
    if len(contents.best) > 1:
        return None
    winner, method = list(contents.methods.items())[-1]
    of_method = [row for row in contents.rows if row.method == method]
    defaults = [row.name for row in of_method if row.settings == DEFAULT]
    if not defaults:
        return SearchResult(method, None) if contents.best[method]["trial"] == 0 else None
    scores, head = contents.paired, table.head_of.get(winner, "")
    ours, usual = (winner, head), (defaults[0], head)
    if not {ours, usual} <= scores.rows:
        return None
    return SearchResult(method, scores.compare(ours, usual, list(scores.titles), scores.shots))


def _training(contents: Contents) -> Training | None:
    gans = {
        name: int(best["training"]["num_episodes"])
        for name, best in contents.best.items()
        if METHODS[best["method"]].gan and "training" in best
    }
    if not gans:
        return None
    published: Any = METHODS[contents.best[next(iter(gans))]["method"]].published
    factors = {name: contents.studies[name]["config"].get("report_length", 1) for name in gans}
    of_trials = [gans[name] // factor for name, factor in factors.items()]
    lowest = dict[float, list[str]]()
    for name, best in contents.best.items():
        tried = {line["mixing_shots"] for line in best.get("sweep", ()) if "mixing_shots" in line}
        if len(tried) > 1 and best["swept"]["mixing_shots"] == min(tried):
            lowest.setdefault(min(tried), []).append(name)
    ends, ends_of_trials = (sorted({min(x), max(x)}) for x in (gans.values(), of_trials))
    return Training(ends, published.num_episodes, ends_of_trials, lowest)

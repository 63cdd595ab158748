"""The finding of a report in one sentence, and the data that it is about."""

from collections.abc import Iterable, Sequence
from math import comb
from typing import Any, NamedTuple

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN, NO_GENERATION
from cpaan.protocol.statistics import ROW, bootstrap_interval
from cpaan.report.claims.mechanisms import BEST
from cpaan.report.claims.verdict import (
    CONFIRMED,
    MARGIN,
    NOT_FOUND,
    OPPOSITE,
    SMALLER,
    UNDECIDED,
    Claim,
)
from cpaan.report.gains import PairedDifference, Scored, signed
from cpaan.report.page.contents import DEFAULT, PUBLISHED, Contents
from cpaan.report.page.facts import plus_minus
from cpaan.report.page.views import TableViews, is_trained
from cpaan.report.published import NUM_BASE_CLASSES

_PRIMARY = ((BEST, f"copy{IN_PN}"), ("CP-AAN+", "copy"))
"""The primary comparisons that the headline of a table is about."""
_NONE = {False: "none", True: f"none{IN_PN}"}
"""No augmentation of the same features, by whether these are embedded."""
_IN_WORDS = {
    CONFIRMED: "scores higher than",
    SMALLER: "scores higher than",
    OPPOSITE: "scores lower than",
    NOT_FOUND: f"is within {MARGIN} points of",
    UNDECIDED: "is not shown to differ from",
}
"""How a row compares with another, by the verdict on the claim that it is better."""


class Headline(NamedTuple):
    """The sentences at the top of the page."""

    finding: str
    """With a difference and its interval."""
    beside: Sequence[str]
    """Further differences."""
    data: str
    training: str
    """How long generators were trained here and in the paper; empty without generators."""


def make_headline(contents: Contents, table: TableViews, claims: Sequence[Claim]) -> Headline:
    """State the main finding, and the data and the training that it is about."""
    first, *others = [*_of_search(contents, table), *_finding(contents, table, claims)]
    return Headline(first, others, _data(contents, table), _training(contents))


def _finding(contents: Contents, table: TableViews, claims: Sequence[Claim]) -> list[str]:
    """Compare generators with copies of related base examples, which train nothing.

    A table has the primary comparisons, in the words of their verdicts. Other studies compare each
    trained generator with copies in its representation, or else with the best control there, or the
    best row that does not augment. A control that is better than copies is compared, too. Both rows
    have the head of the generator. Without generators, the two best rows are compared. Rows as
    published do not count.
    """
    rows, head_of, shots = table.rows, table.head_of, table.shots[0]
    where = f"LSL, {'one shot' if shots == 1 else f'{shots} shots'}"
    names = [name for name in table.ranked if not name.endswith((PUBLISHED, DEFAULT))]
    row_of = {contents.methods[name]: name for name in names}

    def others_of(name: str) -> list[str]:
        """Return the row to compare a generator with, and a control that is better, if any."""
        found = [
            other
            for other in names
            if rows[other].representation == rows[name].representation
            and (rows[other].group == "Control" or rows[other].generation == NO_GENERATION)
            and (other, head_of[name]) in contents.paired.rows
        ]
        controls = [other for other in found if rows[other].generation != NO_GENERATION]
        copies = [other for other in controls if rows[other].generation == "copy"]
        return list(dict.fromkeys([*copies, *controls[:1], *found[:1]][: 1 + len(copies)]))

    def minus(one: str, other: str, head: str) -> PairedDifference:
        return contents.compare((one, head), (other, head), "novel", shots)

    # In the order of the table, because the best of many may be so by chance.
    generators = [row_of[x] for x, y in _PRIMARY if {x, y} <= row_of.keys()] or [
        name for name in rows if name in names and is_trained(rows[name])
    ]
    pairs = [(name, other) for name in generators for other in others_of(name)]
    if not pairs:
        if len(names) < 2:
            return [f"{names[0]} is the only row: there is nothing to compare it with."]
        best, second = ((name, head_of[name]) for name in names[:2])
        num_pairs = comb(len(names), 2)
        gap = contents.paired.compare(best, second, "novel", shots, num_comparisons=num_pairs)
        return [
            f"{best[0]} has the highest mean: {best[0]} − {second[0]} is {_number(gap)} points "
            f"({where}; the interval allows for the choice among {len(names)} rows)."
        ]
    sentences, of_controls = list[str](), dict[str, str]()
    verdict_of = {claim.name: claim.verdict for claim in claims}
    for name, other in pairs:
        head, plain = head_of[name], row_of.get(_NONE[rows[other].is_embedded], other)
        gap = minus(name, other, head)
        verdict = verdict_of.get(f"{contents.methods[name]} over {contents.methods[other]}")
        notes = ["over draws alone"] if len(gap.by_seed) == 1 else []
        notes.append(f"verdict: {verdict}" if verdict else "uncorrected")
        relation = _IN_WORDS[verdict or _uncorrected(gap)]
        sentences.append(
            f"{name} {relation} {other} ({rows[other].summary}): {_number(gap)} points "
            f"({'; '.join([f'{where}, {head} head', *notes])})."
        )
        sentences += _over_classes(contents, (name, head), (other, head))
        if plain != other and (plain, head) in contents.paired.rows:
            of_controls[other] = f"{other} − {plain} is {_number(minus(other, plain, head))}"
    if of_controls:
        sentences.append(f"Augmentation itself, uncorrected: {'; '.join(of_controls.values())}.")
    return [f"On these features, {sentences[0]}", *sentences[1:]]


def _uncorrected(gap: PairedDifference) -> str:
    """Return the verdict that the interval of a single comparison implies."""
    if gap.side:
        return CONFIRMED if gap.side > 0 else OPPOSITE
    return NOT_FOUND if abs(gap.difference) + gap.interval <= MARGIN else UNDECIDED


def _number(gap: PairedDifference) -> str:
    return f"{signed(gap.difference)}{plus_minus(gap.interval, 2)}"


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
    default, head = f"{method}, {DEFAULT}", table.head_of.get(winner, "")
    if contents.best[method]["trial"] == 0 and default not in contents.methods:
        return [f"The search found no settings that beat the default settings of {method}."]
    paired = contents.paired
    if not {(winner, head), (default, head)} <= paired.rows:
        return []
    gap = paired.compare((winner, head), (default, head), list(paired.titles), paired.shots)
    number = f"{gap.text()} points (mean of {' and '.join(paired.titles.values())} over all shots)"
    defaults = f"the default settings of {method} on the test phase"
    if gap.side > 0:
        return [f"The search’s winner beats {defaults}: {number}."]
    level = "it scores lower" if gap.side < 0 else "the difference may be zero"
    return [f"The search’s winner does not beat {defaults}; {level}: {number}."]


def make_setting(contents: Contents, claims: Sequence[Claim]) -> str:
    """Say which gains of other papers appear here, and what limits the setting.

    Without such claims nothing is said: there is no positive control.
    """
    controls = [claim for claim in claims if claim.kind == "control"]
    if not controls:
        return ""
    found = [
        f"{claim.name} {signed(mark.found)}{plus_minus(mark.interval, 2)} "
        f"(printed {claim.printed}: {claim.verdict})"
        for claim in controls
        for mark in claim.marks
    ]
    num_found = sum(claim.verdict == CONFIRMED for claim in controls)
    split = next(iter(contents.studies.values()))["data"]["split"]
    num_base = len({*split["validation"]["base"], *split["test"]["base"]})
    facts, methods = list[str](), set(contents.methods.values())
    if of_cosine := [name for name in ("AWG", "wDAE") if name in methods]:
        own = "only AWG-cosine" if "AWG-cosine" in methods else "no row"
        facts.append(
            f"the gains of {' and '.join(of_cosine)} are printed for backbones trained with a "
            f"cosine classifier, which {own} has here"
        )
    trained = f"methods are trained on {num_base} base classes"
    facts.append(f"{trained}, {NUM_BASE_CLASSES} in the papers")
    if {*split["test"]["base"], *split["test"]["novel"]} <= set(contents.words):
        facts.append("Tiny-ImageNet has images of 64 pixels")
    if backbone := contents.about.get("backbone"):
        facts.append(f"the backbone is {backbone}")
    text = (
        f"Positive controls: {num_found} of {len(controls)} gains over PN that other papers print "
        f"are confirmed in this setting: {'; '.join(found)}. What limits it: {'; '.join(facts)}."
    )
    if num_found < len(controls):
        text += " So “not found” below is about this setting, not about CP-AAN alone."
    return text


def _data(contents: Contents, table: TableViews) -> str:
    study = next(iter(contents.studies.values()))
    split, files = study["data"]["split"]["test"], study["data"].get("features") or []
    names = {*split["base"], *split["novel"]}
    source = "Tiny-ImageNet" if names <= set(contents.words) else files[0] if files else "a user"
    num_seeds = max(len(row.seeds) for row in contents.rows)
    over = "draws alone" if num_seeds == 1 else "draws and training seeds"
    return (
        f"features of {source} ({study['dimensions']} dimensions), {len(split['base'])} base and "
        f"{len(split['novel'])} novel test classes; top-5 accuracy, {num_seeds} training "
        f"{'seed' if num_seeds == 1 else 'seeds'}, {next(iter(table.draws.values()))} draws of the "
        f"shots, 95 % intervals over {over}."
    )


def _training(contents: Contents) -> str:
    """Return the lengths of the GANs' trainings, here and in the paper, and what chose them."""
    gans = {
        name: int(best["training"]["num_episodes"])
        for name, best in contents.best.items()
        if ROWS[best["method"]].gan and "training" in best
    }
    if not gans:
        return ""
    published: Any = ROWS[contents.best[next(iter(gans))]["method"]].published
    here, there = _ends(gans.values()), f"{published.num_episodes:,}"
    paper = "as in the paper." if here == there else f"not {there} as in the paper."
    text = f"GANs were trained for {here} episodes, {paper}"
    lengths = {name: contents.studies[name]["config"].get("report_length", 1) for name in gans}
    if max(lengths.values()) > 1:
        trials = _ends(gans[name] // length for name, length in lengths.items())
        text += (
            f" Their settings and the weight of synthetic examples were chosen after {trials} "
            "episodes, the length of a trial."
        )
    return text + _lowest_weights(contents)


def _ends(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    return " to ".join(f"{number:,}" for number in dict.fromkeys([found[0], found[-1]]))


def _lowest_weights(contents: Contents) -> str:
    """Name the rows whose sweep chose the lowest weight of synthetic examples that it tried."""
    found = dict[float, list[str]]()
    for name, best in contents.best.items():
        tried = [each["mixing_shots"] for each in best.get("sweep", ()) if "mixing_shots" in each]
        if len(set(tried)) > 1 and best["swept"]["mixing_shots"] == min(tried):
            found.setdefault(min(tried), []).append(name)
    return "".join(
        f" For {', '.join(names)}, the sweep chose the lowest weight that it tried: all synthetic "
        f"examples of a class together count as {weight:g} shots."
        for weight, names in found.items()
    )

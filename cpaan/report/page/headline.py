"""The finding of a report in one sentence, and the data that it is about."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN, NO_GENERATION
from cpaan.protocol.calibration import CALIBRATED, SCORED
from cpaan.protocol.statistics import ROW, bootstrap_interval
from cpaan.report.claims.mechanisms import BEST
from cpaan.report.claims.verdict import CONFIRMED, Claim
from cpaan.report.gains import PairedScores, Scored, signed
from cpaan.report.page.contents import DEFAULT, Contents
from cpaan.report.page.facts import plus_minus
from cpaan.report.page.views import TableViews, is_trained
from cpaan.report.published import NUM_BASE_CLASSES
from cpaan.report.tables import TITLES, side_of


class Headline(NamedTuple):
    """The sentences at the top of the page."""

    finding: str
    """With a difference and its interval."""
    beside: Sequence[str]
    """Further differences."""
    data: str
    training: str
    """How long generators were trained here and in the paper; empty without generators."""


def make_headline(contents: Contents, table: TableViews) -> Headline:
    """State the main finding, and the data and the training that it is about."""
    first, *others = [*_of_search(contents, table), *_finding(contents, table)]
    return Headline(first, others, _data(contents, table), _training(contents))


def _finding(contents: Contents, table: TableViews) -> list[str]:
    """Compare trained generators with the best augmentation that trains nothing.

    Without such a row the generators are compared with the best row that does not augment, and
    without generators the best row is compared with the second best.
    """
    rows, ranked, shots = table.rows, table.ranked, table.shots[0]
    where = f"points (LSL, {'one shot' if shots == 1 else f'{shots} shots'})"
    generators = [name for name in ranked if is_trained(rows[name])]
    augments = {name: rows[name].generation != NO_GENERATION for name in ranked}
    controls = [name for name in ranked if rows[name].group == "Control" and augments[name]]
    others = controls or [name for name in ranked if not augments[name]]
    differences = table.differences[table.default_rule]

    def minus(one: str, other: str) -> str:
        gap = differences[one, other, "novel", shots]
        return f"{one} − {other} is {signed(gap.value)}{plus_minus(gap.interval, 2)}"

    if not generators or not others:
        if len(ranked) < 2:
            return [f"{ranked[0]} is the only row: there is nothing to compare it with."]
        first, second = ranked[:2]
        return [f"{first} has the highest mean: {minus(first, second)} {where}."]
    best = others[0]
    words = rows[best].summary if controls else best
    if contents.methods[best].removesuffix(IN_PN) in ("none", "PN", "LR"):
        words = "examples without augmentation"
    sides = {name: side_of(*differences[name, best, "novel", shots][:2]) for name in generators}
    every = "the trained generator" if len(generators) == 1 else "every trained generator"
    if ahead := [name for name in generators if sides[name] > 0]:
        share = f"{every} scores"
        if len(ahead) < len(generators):
            share = f"{len(ahead)} of {len(generators)} trained generators score"
        finding, subject = f"{share} higher than {words}", ahead[0]
    else:
        level = "score higher than" if max(sides.values()) < 0 else "score as well as"
        of_paper = [name for name in generators if contents.methods[name] == BEST]
        finding, subject = f"{words} {level} {every}", [*of_paper, generators[0]][0]
    sentences = [f"On these features, {finding}: {minus(subject, best)} {where}."]
    sentences += _over_classes(contents, *((name, table.head_of[name]) for name in (subject, best)))
    if subject != generators[0] and not ahead:
        best_of_all = minus(generators[0], best)
        sentences.append(f"The best of {len(generators)} generators: {best_of_all}.")
    space = rows[best].representation
    plain = [x for x in ranked if not augments[x] and rows[x].representation == space]
    if controls and plain:
        sentences.append(f"Augmentation itself: {minus(best, plain[0])}.")
    return sentences


def _over_classes(contents: Contents, subject: Scored, other: Scored) -> list[str]:
    """Say how much a difference depends on the novel classes, by a bootstrap over them."""
    if contents.classes is None:
        return []
    by_class = {key: frame["top5"].to_numpy() for key, frame in contents.classes.groupby(ROW)}
    gaps = by_class[subject] - by_class[other]
    ends = " to ".join(map(signed, bootstrap_interval(gaps)))
    return [f"A bootstrap over the {len(gaps)} novel classes gives {ends} for this difference."]


def _of_search(contents: Contents, table: TableViews) -> list[str]:
    """Compare the winner of a single search with the default settings in the search's score."""
    if len(contents.best) > 1:
        return []
    winner, method = list(contents.methods.items())[-1]
    default, head = f"{method}, {DEFAULT}", table.head_of.get(winner, "")
    if contents.best[method]["trial"] == 0 and default not in contents.methods:
        return [f"The search found no settings that beat the default settings of {method}."]
    if not {(winner, head), (default, head)} <= contents.scored:
        return []
    paired = PairedScores(contents.seeded)
    columns, kind = list(SCORED), "calibrated "
    if CALIBRATED not in table.columns:  # an older report, whose search used plain GLSL
        columns, kind = list(TITLES), ""
    gap = paired.compare((winner, head), (default, head), columns, paired.shots)
    side = side_of(gap.difference, gap.interval)
    number = f"{gap.text()} points (mean of LSL and {kind}GLSL over all shots)"
    defaults = f"the default settings of {method} on the test phase"
    if side > 0:
        return [f"The search’s winner beats {defaults}: {number}."]
    level = "it scores lower" if side < 0 else "the difference may be zero"
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
    facts = [f"methods are trained on {num_base} base classes, {NUM_BASE_CLASSES} in the papers"]
    if {*split["test"]["base"], *split["test"]["novel"]} <= set(contents.words):
        facts.append("Tiny-ImageNet has images of 64 pixels")
    if backbone := contents.about.get("backbone"):
        facts.append(f"the backbone is {backbone}")
    return (
        f"Positive controls: {num_found} of {len(controls)} gains over PN that other papers print "
        f"are confirmed in this setting: {'; '.join(found)}. What limits it: {'; '.join(facts)}."
    )


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
    """Return the lengths of the GANs' trainings, here and in the paper."""
    methods = [each["method"] for each in contents.best.values() if ROWS[each["method"]].gan]
    found = sorted(
        {
            int(each["training"]["num_episodes"])
            for each in contents.best.values()
            if each["method"] in methods and "training" in each
        }
    )
    if not found:
        return ""
    published: Any = ROWS[methods[0]].published
    here = " to ".join(f"{number:,}" for number in dict.fromkeys([found[0], found[-1]]))
    return f"GANs were trained for {here} episodes here, {published.num_episodes:,} in the paper."

"""Words and single numbers of the page: its headline, its provenance, and the commands."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION
from cpaan.report.gains import GainSplit, signed
from cpaan.report.page.contents import Contents
from cpaan.report.page.views import OURS, TableViews

_AGAINST = ("PN", "FI-PMN", "FI-PN", "LR", "none", "none-PN")
_HOUR = 3600.0


class Headline(NamedTuple):
    """The sentences at the top of the page."""

    number: str
    interval: str
    lead: str
    lines: Sequence[str] = ()


class Command(NamedTuple):
    """A command, and the numbers that it makes."""

    makes: str
    command: str
    commit: str = ""
    time: str = ""


def plus_minus(interval: float, digits: int = 1) -> str:
    """Return half the width of an interval; nothing if it is NaN."""
    return "" if isnan(interval) else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{interval:.{digits}f}"


def subject_of(contents: Contents) -> str:
    """Return the row that the page is about: of ours, the best one on validation.

    Without scores of the validation phase it is the last of ours, and without any of ours the last
    row. A study of one row has its best as the last row.
    """
    names = list(contents.methods)
    if contents.is_table:
        ours = [name for name in names if ROWS[contents.methods[name]].group in OURS]
        of_ours = contents.heads[contents.heads["method"].isin(ours)]
        names += [*ours, *of_ours.sort_values("score", kind="stable")["method"]]
    return names[-1]


def make_headline(
    contents: Contents, table: TableViews, subject: str, splits: Sequence[GainSplit]
) -> Headline:
    """Tell the subject's accuracy on novel classes with the fewest shots, whatever it is."""
    shots, methods = table.shots[0], contents.methods
    cell = table.cells.get((subject, "novel", shots))
    if cell is None:
        return Headline("", "", f"{subject} has no scores with this final classifier.")
    count = "one example" if shots == 1 else f"{shots} examples"
    head = table.head_of[subject]
    classifier = "its own classifier" if head == "own" else f"the {head} head"
    against = {
        name: _against(table, subject, name)
        for name in methods
        if (subject, name, "novel", shots) in table.differences[table.default_rule]
    }
    lines = [
        f"That is {_ordinal(cell.rank)} of {len(table.head_of)} rows (LSL, K = {shots}), mean "
        f"over {next(iter(table.draws.values()))} draws."
    ]
    if others := [against[name] for name in _AGAINST if name in against]:
        lines[0] += f" Paired by draw it is {', '.join(others[:2])}."
    rows = {name: ROWS[methods[name]] for name in table.head_of}
    controls = [
        name
        for name, row in rows.items()
        if row.group == "Control" and row.generation != NO_GENERATION
    ]
    best = min(controls, key=lambda name: table.cells[name, "novel", shots].rank, default="")
    if best in against:
        lines.append(f"The best control that learns nothing: {against[best]}.")
    for split in splits:
        if split.total.end[0] == subject:
            steps = ", ".join(
                f"{step.label} {signed(step.difference, 1)}{plus_minus(step.interval)}"
                for step in split.steps
            )
            start = ", ".join(split.steps[0].start)
            lines.append(f"From {split.start:.1f} of {start} head: {steps}.")
    return Headline(
        number=f"{cell.value:.1f} %",
        interval=plus_minus(cell.interval).replace("\N{NO-BREAK SPACE}", " ").strip(),
        lead=f"top-5 on novel classes from {count} each: {subject}, with {classifier}.",
        lines=lines,
    )


def _against(table: TableViews, subject: str, other: str) -> str:
    shots = table.shots[0]
    pair = table.differences[table.default_rule][subject, other, "novel", shots]
    text = f"{signed(pair.value, 1)}{plus_minus(pair.interval)} against {other}"
    ours, theirs = (table.printed.get((name, "novel", shots)) for name in (subject, other))
    if ours is None or theirs is None:
        return text
    return f"{text} (the paper prints {signed(ours.value - theirs.value, 1)})"


def _ordinal(number: int) -> str:
    is_teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def make_provenance(contents: Contents) -> dict[str, str]:
    """Return the study's size, data, code, seeds, machines and cost, by label."""
    about, run, trials = contents.about, contents.about["run"], contents.trials.values()
    num_variants = len(contents.rows) - len(contents.methods)
    num_trials = sum(int(best["num_trials"]) for best in contents.best.values())
    study = next(iter(contents.studies.values()))
    data, split = study["data"], study["data"]["split"]
    fingerprints = {name: each["data"]["fingerprint"] for name, each in contents.studies.items()}
    first = data["fingerprint"]
    others = [f"{name}: {each}" for name, each in fingerprints.items() if each != first]
    counts = [
        f"{phase}: {len(split[phase]['base'])} base and {len(split[phase]['novel'])} novel classes"
        for phase in ("validation", "test")
    ]
    searched = sorted({int(each["config"]["seed"]) for each in contents.studies.values()})
    trained = sorted({seed for row in contents.rows for seed in row.seeds})
    cost, num_draws = about["cost"], contents.seeded["draw"].nunique()
    time = duration(sum(table["seconds"].sum() for table in trials))
    hours = [sum(table["gpu_seconds"].sum() for table in trials), cost["gpu_seconds"] or 0.0]
    return {
        "Rows": f"{len(contents.methods)}, and {num_variants} variants of them",
        "Trials": f"{num_trials} in {len(contents.best)} searches",
        "Data fingerprint": "; ".join([first, *others]),
        "Classes": "; ".join([*counts, f"features of {study['dimensions']} dimensions"]),
        "Seeds of the searches": ", ".join(map(str, searched)),
        "Seeds of the report": ", ".join(map(str, trained)),
        "Draws": f"{contents.num_fixed} fixed, {num_draws} seeded, the same for every row",
        "Reads of the test phase": f"{about['test_reads']} so far, of this data",
        "Commit": str(run["commit"]),
        "Versions": ", ".join(f"{name} {run[name]}" for name in ("python", "numpy", "torch")),
        "Hardware": _hardware(about["nodes"]),
        "Time": f"trials {time}, report {duration(cost['seconds'])}, finished {run['time'][:10]}",
        "GPU hours": "trials {:.2f}, by their shares of a card; report {:.2f}, the last command by "
        "whole cards; finalists are not counted".format(*(seconds / _HOUR for seconds in hours)),
    }


def _hardware(nodes: Sequence[Mapping[str, float]]) -> str:
    counts = Counter(
        ", ".join(
            f"{node[name]:g} {name.removeprefix('accelerator_type:')}"
            for name in sorted(node)
            if name in ("CPU", "GPU") or name.startswith("accelerator_type:")
        )
        for node in nodes
    )
    return "; ".join(f"{count} × {text}" for text, count in counts.items())


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / _HOUR:.1f} h"


def make_commands(contents: Contents) -> list[Command]:
    """Return which command makes which number: the report's, those of the searches, the page's."""
    run = contents.about["run"]
    everything = "every number and picture of the test phase: tables, differences, gains, claims"
    commands = [Command(everything, run["command"], run["commit"], run["time"])]
    for earlier in contents.about.get("earlier", []):
        by_seeds: dict[str, list[str]] = {}
        for name, seeds in earlier["pieces"].items():
            by_seeds.setdefault(", ".join(map(str, seeds)), []).append(name)
        rows = "; ".join(f"{', '.join(names)} (seeds {by})" for by, names in by_seeds.items())
        makes = f"of these, measured before the report was stopped and resumed: {rows}"
        commands.append(Command(makes, *(earlier[key] for key in ("command", "commit", "time"))))
    searches: dict[tuple[str, str], list[str]] = {}
    for name, started in contents.started.items():
        # The first command repeats a search; its winner may be of a later commit.
        key = started["command"], contents.best[name]["run"]["commit"]
        searches.setdefault(key, []).append(name)
    for key, names in searches.items():
        time = max(contents.best[name]["run"]["time"] for name in names)
        commands.append(Command(f"trials and choice of {', '.join(names)}", *key, time))
    redraw = f"python tune/report.py {contents.folder} --redraw"
    return [*commands, Command("this page again, of the report’s files", redraw)]

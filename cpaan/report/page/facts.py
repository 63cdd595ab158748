"""Words and single numbers of the page: its headline, the study's size, and its provenance."""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION
from cpaan.report.gains import GainSplit
from cpaan.report.page.contents import Contents
from cpaan.report.page.views import OURS, TableViews

_AGAINST = ("PN", "FI-PMN", "FI-PN", "LR", "none", "none-PN")
_HOUR = 3600.0


class Fact(NamedTuple):
    """A number or word with its label."""

    label: str
    value: str
    note: str = ""


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


def signed(value: float, digits: int = 1) -> str:
    """Return a difference as people print it: with its sign, few digits, no negative zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def plus_minus(interval: float, digits: int = 1) -> str:
    """Return half the width of an interval; nothing if it is NaN."""
    return "" if isnan(interval) else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{interval:.{digits}f}"


def subject_of(contents: Contents) -> str:
    """Return the row that the page is about: of ours, the best one on validation.

    Without scores of the validation phase it is the last of ours, and without any of ours the last
    row. A study of one row has its best as the last row.
    """
    ours = [row.name for row in contents.table_rows if ROWS[row.method].group in OURS]
    if not contents.is_table or not ours:
        return contents.table_rows[-1].name
    if contents.heads is not None:
        of_ours = contents.heads[contents.heads["method"].isin(ours)]
        if len(of_ours):
            return str(of_ours.sort_values("score", kind="stable")["method"].iloc[-1])
    return ours[-1]


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
    controls = {
        name: table.cells[name, "novel", shots].rank
        for name in table.head_of
        if ROWS[methods[name]].group == "Control"
        and ROWS[methods[name]].generation != NO_GENERATION
    }
    if controls and (best := min(controls, key=lambda name: controls[name])) in against:
        lines.append(f"The best control that learns nothing: {against[best]}.")
    for split in splits:
        if split.total.end[0] == subject:
            gains = [(step.label, step.difference, step.interval) for step in split.steps]
            steps = (f"{label} {signed(gain)}{plus_minus(half)}" for label, gain, half in gains)
            start = f"{split.start:.1f} of {', '.join(split.steps[0].start)} head"
            lines.append(f"From {start}: {', '.join(steps)}.")
    return Headline(
        number=f"{cell.value:.1f} %",
        interval=plus_minus(cell.interval).replace("\N{NO-BREAK SPACE}", " ").strip(),
        lead=f"top-5 on novel classes from {count} each: {subject}, with {classifier}.",
        lines=lines,
    )


def _against(table: TableViews, subject: str, other: str) -> str:
    shots = table.shots[0]
    pair = table.differences[table.default_rule][subject, other, "novel", shots]
    text = f"{signed(pair.value)}{plus_minus(pair.interval)} against {other}"
    ours, theirs = (table.printed.get((name, "novel", shots)) for name in (subject, other))
    if ours is None or theirs is None:
        return text
    return f"{text} (the paper prints {signed(ours.value - theirs.value)})"


def _ordinal(number: int) -> str:
    is_teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def make_facts(contents: Contents) -> list[Fact]:
    """Return how large the study was."""
    num_variants = len(contents.rows) - len(contents.table_rows)
    variants = f"and {num_variants} variant{'s' * (num_variants != 1)}" if num_variants else ""
    num_trials = sum(int(best.get("num_trials", 0)) for best in contents.best.values())
    searches = f"in {len(contents.best)} search{'es' * (len(contents.best) != 1)}"
    hours = sum(gpu_hours(contents).values())
    shown = f"{hours:.2f}" if hours < 10 else f"{hours:.0f}"
    num_draws = contents.seeded["draw"].nunique()
    return [
        Fact("rows", str(len(contents.table_rows)), variants),
        Fact("trials", str(num_trials), searches),
        Fact("reads of the test phase", str(contents.about["test_reads"]), "so far, of this data"),
        Fact("GPU hours", shown if hours else "0", "trials and report" if hours else "no GPU"),
        Fact("draws", str(num_draws), f"seeded, and {contents.num_fixed} fixed"),
        Fact("seeds", str(len(contents.seeds)), "at most, of a row"),
    ]


def gpu_hours(contents: Contents) -> dict[str, float]:
    """Return GPU hours of the searches' trials and of the report."""
    trials = sum(float(table["gpu_seconds"].sum()) for table in contents.trials.values())
    report = contents.about.get("cost", {}).get("gpu_seconds") or 0.0
    return {"trials": trials / _HOUR, "report": float(report) / _HOUR}


def make_provenance(contents: Contents) -> list[Fact]:
    """Return data, code, seeds, machines and cost, as far as they were recorded."""
    about, run = contents.about, contents.about["run"]
    facts = []
    if contents.studies:
        seeds = sorted({int(each["config"]["seed"]) for each in contents.studies.values()})
        searched = Fact("Seeds of the searches", ", ".join(map(str, seeds)))
        facts = [*_data_facts(contents.studies), searched]
    trained = ", ".join(map(str, contents.seeds))
    draws = f"{contents.num_fixed} fixed, {contents.seeded['draw'].nunique()} seeded"
    versions = ", ".join(f"{name} {run[name]}" for name in ("python", "numpy", "torch"))
    seconds = sum(float(table["seconds"].sum()) for table in contents.trials.values())
    duration = f"trials {_duration(seconds)}"
    if "cost" in about:
        duration += f", report {_duration(about['cost']['seconds'])}"
    hours = gpu_hours(contents)
    return [
        *facts,
        Fact("Seeds of the report", trained, "none of which a search has used"),
        Fact("Draws", draws, "the same for every row"),
        Fact("Reads of the test phase", str(about["test_reads"])),
        Fact("Commit", str(run["commit"])),
        Fact("Versions", versions),
        Fact("Hardware", _hardware(about.get("nodes", []))),
        Fact("Time", duration, f"report finished {str(run['time'])[:16].replace('T', ' ')}"),
        Fact(
            "GPU hours",
            f"trials {hours['trials']:.2f}, report {hours['report']:.2f}",
            "trials by their shares of a card, the report’s last command by whole cards; "
            "finalists are not counted",
        ),
    ]


def _data_facts(studies: Mapping[str, Mapping[str, Any]]) -> list[Fact]:
    study = next(iter(studies.values()))
    data = study["data"]
    fingerprints = {name: each["data"]["fingerprint"] for name, each in studies.items()}
    first = data["fingerprint"]
    others = [f"{name}: {each}" for name, each in fingerprints.items() if each != first]
    facts = [Fact("Data fingerprint", str(first), "; ".join(others))]
    split = data.get("split", {})
    counts = [
        f"{phase}: {len(split[phase]['base'])} base and {len(split[phase]['novel'])} novel classes"
        for phase in ("validation", "test")
        if phase in split
    ]
    if counts:
        note = f"features of {study['dimensions']} dimensions" if "dimensions" in study else ""
        facts.append(Fact("Classes", "; ".join(counts), note))
    return facts


def _hardware(nodes: Sequence[Mapping[str, float]]) -> str:
    def words(node: Mapping[str, float]) -> str:
        kinds = [name.partition(":")[2] for name in node if name.startswith("accelerator_type:")]
        text = f"{node.get('CPU', 0):g} CPU"
        if node.get("GPU"):
            text += f", {node['GPU']:g} GPU" + (f" ({', '.join(kinds)})" if kinds else "")
        return text

    each = [words(node) for node in nodes]
    counts = {text: each.count(text) for text in each}
    parts = [f"{count} machines of {text}" if count > 1 else text for text, count in counts.items()]
    return "; ".join(parts) or "not recorded"


def _duration(seconds: float) -> str:
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

"""What the page says in words and single numbers: its headline, facts and origin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import NO_GENERATION
from cpaan.report.gains import GainSplit
from cpaan.report.page.comparisons import Comparisons
from cpaan.report.page.contents import Contents
from cpaan.report.page.table_data import OURS, TableData
from cpaan.report.published import printed_of

_AGAINST = ("PN", "FI-PMN", "FI-PN", "LR", "none", "none-PN")
_HOUR = 3600.0


@dataclass(frozen=True)
class Fact:
    """A number or word with its label."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Headline:
    """What the page says first."""

    number: str
    interval: str
    lead: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Chosen:
    """What a search chose."""

    name: str
    trial: int
    num_trials: int
    score: str
    head: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class Command:
    """What a command makes."""

    makes: str
    command: str
    commit: str
    time: str


def subject_of(contents: Contents) -> str:
    """Return the row that the page is about: of ours, the one that did best on validation.

    Without scores of the validation phase it is the last of ours, and without any of ours the last
    row. Of a study of one row, it is its best: the last row, too.
    """
    if not contents.is_table:
        return contents.table_rows[-1].name
    ours = [row.name for row in contents.table_rows if ROWS[row.method].group in OURS]
    if contents.heads is not None and ours:
        of_ours = contents.heads[contents.heads["method"].isin(ours)]
        if len(of_ours):
            return str(of_ours.sort_values("score", kind="stable")["method"].iloc[-1])
    return ours[-1] if ours else contents.table_rows[-1].name


def make_headline(
    contents: Contents,
    table: TableData,
    comparisons: Comparisons,
    subject: str,
    splits: Sequence[GainSplit],
) -> Headline:
    """Say how far the subject came on novel classes with the fewest shots, whatever that is."""
    shots = table.shots[0]
    view, found = table.default, comparisons.of_rule[table.default_rule]
    cell = view.cells.get((subject, "novel", shots))
    if cell is None:
        return Headline("", "", f"{subject} has no scores with this final classifier.", ())
    count = "one example" if shots == 1 else f"{shots} examples"
    lead = f"top-5 on novel classes from {count} each: {subject}, {_head(view.head_of[subject])}."
    methods, num_draws = contents.methods, next(iter(table.draws.values()))
    lines = [
        f"That is {_ordinal(cell.rank)} of {len(view.head_of)} rows (LSL, K = {shots}), mean over "
        f"{num_draws} draws."
    ]
    against = [
        text
        for name in _AGAINST
        if name in methods and (text := _against(found, methods, subject, name, shots))
    ]
    if against:
        lines[0] += f" Paired by draw it is {', '.join(against[:2])}."
    scored = [name for name in view.head_of if _is_control(methods[name])]
    if scored:
        best = min(scored, key=lambda name: view.cells[name, "novel", shots].rank)
        if text := _against(found, methods, subject, best, shots):
            lines.append(f"The best control that learns nothing: {text}.")
    lines += [_split_line(split) for split in splits if split.total.end[0] == subject]
    interval = "" if cell.interval is None else f"± {cell.interval:.1f}"
    return Headline(f"{cell.mean:.1f} %", interval, lead, tuple(lines))


def _is_control(method: str) -> bool:
    """Return whether a row augments without having learned to."""
    row = ROWS[method]
    return row.group == "Control" and row.generation != NO_GENERATION


def _head(head: str) -> str:
    return "with its own classifier" if head == "own" else f"with the {head} head"


def _against(
    found: Mapping[Any, Any], methods: Mapping[str, str], subject: str, other: str, shots: int
) -> str:
    pair = found.get((subject, other, "novel", shots))
    if pair is None:
        return ""
    text = f"{signed(pair.difference)}{plus_minus(pair.interval)} against {other}"
    ours, theirs = printed_of(methods[subject]), printed_of(methods[other])
    if ours is None or theirs is None:
        return text
    values = ours.at("novel", shots), theirs.at("novel", shots)
    if values[0] is None or values[1] is None:
        return text
    return f"{text} (the paper prints {signed(values[0] - values[1])})"


def _split_line(split: GainSplit) -> str:
    parts = [
        f"{step.label} {signed(step.difference)}{plus_minus(step.interval)}" for step in split.steps
    ]
    name, head = split.steps[0].start
    return f"From {split.start:.1f} of {name}, {head} head: {', '.join(parts)}."


def _ordinal(number: int) -> str:
    suffix = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{suffix}"


def signed(value: float, digits: int = 1) -> str:
    """Return a difference as people print it: with its sign, few digits, no negative zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def plus_minus(interval: float | None, digits: int = 1) -> str:
    """Return half the width of an interval; nothing if there is none."""
    return (
        ""
        if interval is None or interval != interval
        else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{interval:.{digits}f}"
    )


def make_facts(contents: Contents) -> list[Fact]:
    """Return how large the study was."""
    variants = len(contents.rows) - len(contents.table_rows)
    seeds = {seed for row in contents.rows for seed in row.seeds}
    num_trials = sum(int(best.get("num_trials", 0)) for best in contents.best.values())
    hours = gpu_hours(contents)
    num_draws = len(contents.seeded["draw"].unique())
    return [
        Fact(
            "rows",
            str(len(contents.table_rows)),
            f"and {_count(variants, 'variant', 'variants')}" if variants else "",
        ),
        Fact("trials", str(num_trials), f"in {_count(len(contents.best), 'search', 'searches')}"),
        Fact("reads of the test phase", str(contents.about["test_reads"]), "so far, of this data"),
        Fact(
            "GPU hours",
            _hours(sum(hours.values())),
            "trials and report" if any(hours.values()) else "no GPU",
        ),
        Fact("draws", str(num_draws), f"seeded, and {contents.num_fixed} fixed"),
        Fact("seeds", str(len(seeds)), "at most, of a row"),
    ]


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def gpu_hours(contents: Contents) -> dict[str, float]:
    """Return GPU hours of the searches' trials and of the report."""
    trials = sum(float(table["gpu_seconds"].sum()) for table in contents.trials.values())
    report = contents.about.get("cost", {}).get("gpu_seconds") or 0.0
    return {"trials": trials / _HOUR, "report": float(report) / _HOUR}


def _hours(hours: float) -> str:
    if not hours:
        return "0"
    return f"{hours:.2f}" if hours < 10 else f"{hours:.0f}"

"""The cost of a report, and the commands that make its numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cpaan.core.provenance import commit
from cpaan.report.page.contents import Contents


class Command(NamedTuple):
    """A command, and the numbers that it makes."""

    makes: str
    command: str
    commit: str = ""
    time: str = ""


class Cost(NamedTuple):
    """The cost of the searches: seconds of workers, and of GPUs by shares of a card."""

    trials: float
    trials_gpu: float
    finalists_gpu: float | None
    """None if one was trained before they were counted."""


def make_cost(contents: Contents) -> Cost:
    """Return the cost of trials and finalists; ``report.json`` has that of the report."""
    trials = contents.trials.values()
    seconds, of_gpus = (
        sum(table[name].sum() for table in trials) for name in ("worker_seconds", "gpu_seconds")
    )
    finalists = [best["run"].get("gpu_seconds") for best in contents.best.values()]
    return Cost(seconds, of_gpus, None if None in finalists else sum(finalists))


def make_hardware(nodes: Sequence[Mapping[str, float]]) -> str:
    """Return how many machines have which processors."""
    counts = Counter(
        ", ".join(
            f"{node[name]:g} {name.removeprefix('accelerator_type:')}"
            for name in sorted(node)
            if name in ("CPU", "GPU") or name.startswith("accelerator_type:")
        )
        for node in nodes
    )
    return "; ".join(f"{count} × {text}" for text, count in counts.items())


def make_commands(contents: Contents) -> list[Command]:
    """Return which command makes which number: the report's, those of the searches, the page's."""
    run = contents.about["run"]
    everything = "every number and picture of the test phase: tables, gains, claims"
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
    return [*commands, Command("this page, drawn from the report’s files", redraw, commit())]

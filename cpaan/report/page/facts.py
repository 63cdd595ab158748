"""The provenance of a report, and the commands that make its numbers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isnan
from typing import NamedTuple

from cpaan.core.provenance import commit
from cpaan.data.table import counted
from cpaan.report.page.contents import Contents
from cpaan.training.drive import in_words

_HOUR = 3600.0


class Command(NamedTuple):
    """A command, and the numbers that it makes."""

    makes: str
    command: str
    commit: str = ""
    time: str = ""


def plus_minus(interval: float, digits: int = 1) -> str:
    """Return half the width of an interval; nothing if it is NaN."""
    return "" if isnan(interval) else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{interval:.{digits}f}"


def make_provenance(contents: Contents) -> dict[str, str]:
    """Return the study's size, data, code, seeds, machines and cost, by label."""
    about, run = contents.about, contents.about["run"]
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
    num_draws = contents.seeded["draw"].nunique()
    return {
        "Rows": f"{len(contents.methods)}, and {num_variants} variants of them",
        "Trials": f"{num_trials} in {counted(len(contents.best), 'search')}",
        "Data fingerprint": "; ".join([first, *others]),
        "Classes": "; ".join([*counts, f"features of {study['dimensions']} dimensions"]),
        "Seeds of the searches": ", ".join(map(str, searched)),
        "Seeds of the report": ", ".join(map(str, trained)),
        "Draws": f"{contents.num_fixed} fixed, {num_draws} seeded, the same for every row",
        "Reads of the test phase": f"{about['test_reads']} so far, of this data",
        "Commit": str(run["commit"]),
        "Versions": ", ".join(f"{name} {run[name]}" for name in ("python", "numpy", "torch")),
        "Hardware": _hardware(about["nodes"]),
        **_cost(contents),
    }


def _cost(contents: Contents) -> dict[str, str]:
    """Return the time of workers and the GPU hours: trials, finalists and all parts of the report.

    Older reports have the cost of their last command alone, by whole cards.
    """
    cost, trials = contents.about["cost"], contents.trials.values()
    times = [f"trials {in_words(sum(table['worker_seconds'].sum() for table in trials))}"]
    hours = [f"trials {sum(table['gpu_seconds'].sum() for table in trials) / _HOUR:.2f}"]
    runs = [best["run"] for best in contents.best.values()]
    if all("gpu_seconds" in run for run in runs):
        hours.append(f"finalists {sum(run['gpu_seconds'] for run in runs) / _HOUR:.2f}")
    else:
        hours.append("finalists not counted")
    hours.append(f"report {cost['gpu_seconds'] / _HOUR:.2f}")
    if "worker_seconds" not in cost:
        hours[-1] += " by whole cards, its last command only"
    else:
        times.append(f"report {in_words(cost['worker_seconds'])}")
        if count := int(cost["num_uncounted"]):
            hours.append(f"{counted(count, 'part')} of the report not counted")
    last = f"last command of the report: {in_words(cost['seconds'])}"
    finished = f"finished {contents.about['run']['time'][:10]}"
    return {
        "Time": f"of workers: {', '.join(times)}; {last}; {finished}",
        "GPU hours": f"by shares of a card: {'; '.join(hours)}",
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

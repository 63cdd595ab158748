"""Where the page's numbers come from: data, code, machines, and the commands that remake them."""

from collections.abc import Mapping
from typing import Any

from cpaan.report.page.contents import Contents
from cpaan.report.page.facts import Chosen, Command, Fact, gpu_hours

_ACCELERATOR = "accelerator_type:"


def make_provenance(contents: Contents) -> list[Fact]:
    """Return data, code, seeds, machines and cost, as far as they were noted."""
    about, run = contents.about, contents.about["run"]
    facts = []
    if contents.studies:
        facts += _data_facts(contents.studies)
        seeds = sorted({int(each["config"]["seed"]) for each in contents.studies.values()})
        facts.append(Fact("Seeds of the searches", ", ".join(map(str, seeds))))
    trained = sorted({seed for row in contents.rows for seed in row.seeds})
    hours = gpu_hours(contents)
    seconds = sum(float(table["seconds"].sum()) for table in contents.trials.values())
    facts += [
        Fact(
            "Seeds of the report", ", ".join(map(str, trained)), "none of which a search has seen"
        ),
        Fact(
            "Draws",
            f"{contents.num_fixed} fixed, {contents.seeded['draw'].nunique()} seeded",
            "the same for every row",
        ),
        Fact("Reads of the test phase", str(about["test_reads"])),
        Fact("Commit", str(run["commit"])),
        Fact("Versions", ", ".join(f"{name} {run[name]}" for name in ("python", "numpy", "torch"))),
        Fact("Hardware", _hardware(about.get("nodes", []))),
        Fact(
            "Time",
            f"trials {_duration(seconds)}"
            + (f", report {_duration(about['cost']['seconds'])}" if "cost" in about else ""),
            f"report finished {str(run['time'])[:16].replace('T', ' ')}",
        ),
        Fact(
            "GPU hours",
            f"trials {hours['trials']:.2f}, report {hours['report']:.2f}",
            "trials by their shares of a card, the report’s last command by whole cards; "
            "finalists are not counted",
        ),
    ]
    return facts


def _data_facts(studies: Mapping[str, Mapping[str, Any]]) -> list[Fact]:
    study = next(iter(studies.values()))
    data = study["data"]
    others = [
        f"{name}: {each['data']['fingerprint']}"
        for name, each in studies.items()
        if each["data"]["fingerprint"] != data["fingerprint"]
    ]
    split = data.get("split", {})
    counts = [
        f"{phase}: {len(split[phase]['base'])} base and {len(split[phase]['novel'])} novel classes"
        for phase in ("validation", "test")
        if phase in split
    ]
    facts = [Fact("Data fingerprint", str(data["fingerprint"]), "; ".join(others))]
    if counts:
        note = f"features of {study['dimensions']} dimensions" if "dimensions" in study else ""
        facts.append(Fact("Classes", "; ".join(counts), note))
    return facts


def _hardware(nodes: list[Mapping[str, float]]) -> str:
    def words(node: Mapping[str, float]) -> str:
        kinds = [name.removeprefix(_ACCELERATOR) for name in node if name.startswith(_ACCELERATOR)]
        text = f"{node.get('CPU', 0):g} CPU"
        if node.get("GPU"):
            text += f", {node['GPU']:g} GPU" + (f" ({', '.join(kinds)})" if kinds else "")
        return text

    each = [words(node) for node in nodes]
    counts = {text: each.count(text) for text in dict.fromkeys(each)}
    parts = [f"{count} machines of {text}" if count > 1 else text for text, count in counts.items()]
    return "; ".join(parts) or "not noted"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def make_chosen(contents: Contents) -> list[Chosen]:
    """Return what every search chose on the validation phase."""
    return [
        Chosen(
            name=name,
            trial=int(best["trial"]),
            num_trials=int(best["num_trials"]),
            score=f"{best['score']:.1f}",
            head=str(best.get("head", "–")),
            parameters={key: _value(value) for key, value in best["parameters"].items()},
        )
        for name, best in contents.best.items()
    ]


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


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
        commands.append(
            Command(
                f"of these, measured before the report was stopped and resumed: {rows}",
                earlier["command"],
                earlier["commit"],
                earlier["time"],
            )
        )
    makes: dict[tuple[str, str], list[str]] = {}
    times: dict[tuple[str, str], str] = {}
    for name, begun in contents.begun.items():
        # What began a search says how to do it again; its winner may be of a later commit.
        chosen = contents.best[name]["run"]
        key = begun["command"], chosen["commit"]
        makes.setdefault(key, []).append(name)
        times[key] = max(times.get(key, ""), chosen["time"])
    commands += [
        Command(f"trials and choice of {', '.join(names)}", *key, times[key])
        for key, names in makes.items()
    ]
    redraw = f"python tune/report.py {contents.folder} --redraw"
    return [*commands, Command("this page again, of the report’s files", redraw, "", "")]

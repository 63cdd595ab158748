"""The provenance of a report, and its commands."""

from dataclasses import replace

from cpaan.report.page.facts import make_commands, make_provenance
from helpers.report_folders import COST, RUN, SEARCH


def test_provenance_has_size_data_code_seeds_machines_and_cost(contents):
    contents.studies["MAML"]["data"] = {"fingerprint": "a1a2a3"}

    found = make_provenance(contents)

    expected = {
        "Rows": "5, and 1 variants of them",
        "Trials": "20 in 5 searches",
        "Data fingerprint": "f1f2f3; MAML: a1a2a3",
        "Commit": RUN["commit"],
        "Versions": "python 3.11.7, numpy 2.4.6, torch 2.13.0",
        "Seeds of the searches": "0",
        "Seeds of the report": "3, 4",
        "Draws": "2 fixed, 3 seeded, the same for every row",
        "Hardware": "1 × 16 CPU, 1 GPU, 1 H200",
        "Reads of the test phase": "7 so far, of this data",
        # Two searches of four trials of 90 s.
        "Time": "of workers: trials 12 min, report 60 min; last command of the report: 10 min; "
        "finished 2026-11-15",
        # Eight trials of 45 GPU seconds, and five rows whose finalists took 36.
        "GPU hours": "by shares of a card: trials 0.10; finalists 0.05; report 0.50",
    }
    assert {label: found[label] for label in expected} == expected
    assert "test: 2 base and 3 novel classes" in found["Classes"]
    about = {**contents.about, "nodes": [{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 8.0}]}
    found = make_provenance(replace(contents, about=about))
    assert found["Hardware"] == "2 × 2 CPU; 1 × 8 CPU"


def test_cost_that_is_not_counted_is_named(contents):
    def provenance_with(cost: dict, **best: dict) -> dict[str, str]:
        about = {**contents.about, "cost": cost}
        return make_provenance(replace(contents, about=about, best={**contents.best, **best}))

    found = provenance_with({**COST, "num_uncounted": 2})
    assert found["GPU hours"].endswith("report 0.50; 2 parts of the report not counted")

    # Older reports and searches have no seconds of parts.
    older = {**contents.best["PN"], "run": RUN}
    found = provenance_with({"seconds": 600.0, "gpu_seconds": 1800.0}, PN=older)
    assert found["Time"].startswith("of workers: trials 12 min; last command of the report: 10 min")
    assert found["GPU hours"] == (
        "by shares of a card: trials 0.10; finalists not counted; report 0.50 by whole cards, its "
        "last command only"
    )


def test_every_number_has_a_command_and_other_commands_and_commits_have_lines_of_their_own(
    contents,
):
    report, search, page = make_commands(contents)

    assert (report.command, report.commit) == (RUN["command"], RUN["commit"])
    assert search.command == SEARCH["command"]
    assert search.makes == "trials and choice of none, copy, MAML, PN, cCov-GAN-PN"
    assert page.command == f"python tune/report.py {contents.folder} --redraw"

    earlier = {**RUN, "commit": "fedcba", "pieces": {"PN": [3, 4], "MAML": [3]}}
    other = {**SEARCH, "command": "python tune/search.py --resume hand"}
    later = {**SEARCH, "commit": "fedcba"}
    about, started = {**contents.about, "earlier": [earlier]}, {**contents.started, "PN": other}
    best = {**contents.best, "MAML": {**contents.best["MAML"], "run": later}}
    commands = make_commands(replace(contents, about=about, started=started, best=best))
    assert commands[1].commit == "fedcba"
    assert commands[1].makes.endswith("and resumed: PN (seeds 3, 4); MAML (seeds 3)")
    assert [command[:3] for command in commands[2:-1]] == [
        ("trials and choice of none, copy, cCov-GAN-PN", SEARCH["command"], RUN["commit"]),
        ("trials and choice of MAML", SEARCH["command"], "fedcba"),
        ("trials and choice of PN", other["command"], RUN["commit"]),
    ]

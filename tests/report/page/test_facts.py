"""The provenance of a report, and its commands."""

from dataclasses import replace

from cpaan.report.page.facts import make_commands, make_provenance
from helpers.report_folders import RUN, SEARCH


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
        # Two searches of four trials of 90 s, and ten minutes for the report.
        "Time": "trials 12 min, report 10 min, finished 2026-11-15",
    }
    assert {label: found[label] for label in expected} == expected
    assert "test: 2 base and 3 novel classes" in found["Classes"]
    # Two searches of four trials of 45 GPU seconds, and half an hour for the report.
    assert found["GPU hours"].startswith("trials 0.10, by their shares of a card; report 0.50")
    about = {**contents.about, "nodes": [{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 8.0}]}
    found = make_provenance(replace(contents, about=about))
    assert found["Hardware"] == "2 × 2 CPU; 1 × 8 CPU"


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

"""Where the page's numbers come from."""

from dataclasses import replace

import pytest

from cpaan.report.page.contents import read_contents
from cpaan.report.page.origin import make_chosen, make_commands, make_provenance
from helpers.report_folders import RUN, SEARCH, write_report


@pytest.fixture
def contents(tmp_path):
    return read_contents(write_report(tmp_path / "hand"))


def test_provenance_names_data_code_seeds_machines_and_cost(contents):
    found = {fact.label: fact.value for fact in make_provenance(contents)}

    assert found["Data fingerprint"] == "f1f2f3"
    assert "test: 2 base and 3 novel classes" in found["Classes"]
    assert found["Commit"] == RUN["commit"]
    assert found["Versions"] == "python 3.11.7, numpy 2.4.6, torch 2.13.0"
    assert found["Seeds of the searches"] == "0"
    assert found["Seeds of the report"] == "3, 4"
    assert found["Hardware"] == "16 CPU, 1 GPU (H200)"
    assert found["Reads of the test phase"] == "7"
    # Two searches of four trials, 90 s each; ten minutes for the report.
    assert found["Time"] == "trials 12 min, report 10 min"
    assert found["GPU hours"] == "trials 0.10, report 0.50"


def test_machines_that_are_alike_are_counted(contents):
    about = {**contents.about, "nodes": [{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 8.0}]}
    del about["cost"]

    found = {fact.label: fact.value for fact in make_provenance(replace(contents, about=about))}

    assert found["Hardware"] == "2 machines of 2 CPU; 8 CPU"
    assert found["Time"] == "trials 12 min"


def test_what_searches_chose_has_short_numbers(contents):
    chosen = make_chosen(contents)

    assert [choice.name for choice in chosen] == list(contents.best)
    assert (chosen[0].trial, chosen[0].num_trials, chosen[0].score) == (3, 4, "42.0")
    assert chosen[0].parameters == {"cycle_weight": "4", "ky_fan_order": "5"}


def test_every_number_has_a_command(contents):
    report, search, page = make_commands(contents)

    assert (report.command, report.commit) == (RUN["command"], RUN["commit"])
    assert search.command == SEARCH["command"]
    assert search.makes == "trials and choice of none, copy, MAML, PN, cCov-GAN-PN"
    assert page.command == f"python tune/report.py {contents.folder} --redraw"


def test_searches_of_other_commands_are_told_apart(contents):
    later = {**SEARCH, "command": "python tune/search.py --resume hand"}

    commands = make_commands(replace(contents, begun={**contents.begun, "PN": later}))

    assert [command.makes for command in commands[1:-1]] == [
        "trials and choice of none, copy, MAML, cCov-GAN-PN",
        "trials and choice of PN",
    ]


def test_a_search_that_ended_with_another_commit_says_so(contents):
    run = {**SEARCH, "commit": "fedcba", "time": "2026-11-16T10:00:00+00:00"}

    commands = make_commands(
        replace(contents, best={**contents.best, "PN": {**contents.best["PN"], "run": run}})
    )

    assert [(each.makes, each.command, each.commit) for each in commands[2:-1]] == [
        ("trials and choice of PN", SEARCH["command"], "fedcba")
    ]


def test_what_an_earlier_command_measured_has_its_own_line(contents):
    earlier = {**RUN, "commit": "fedcba", "pieces": {"PN": [3, 4], "MAML": [3]}}

    commands = make_commands(replace(contents, about={**contents.about, "earlier": [earlier]}))

    assert commands[1].commit == "fedcba"
    assert commands[1].makes.endswith("and resumed: PN (seeds 3, 4); MAML (seeds 3)")


def test_features_of_rows_that_have_others_are_named(contents):
    studies = {name: {**study} for name, study in contents.studies.items()}
    studies["MAML"]["data"] = {"fingerprint": "a1a2a3"}

    facts = {fact.label: fact for fact in make_provenance(replace(contents, studies=studies))}

    fingerprint = facts["Data fingerprint"]
    assert (fingerprint.value, fingerprint.note) == ("f1f2f3", "MAML: a1a2a3")

"""The cost of a report, and its commands."""

from dataclasses import replace

from cpaan.report.page.facts import make_commands, make_cost, make_hardware
from helpers.report_folders import RUN, SEARCH


def test_cost_is_the_time_of_workers_and_the_share_of_a_gpu(contents):
    # Two searches of four trials of 90 s and 45 GPU seconds; five rows whose finalists took 36.
    assert make_cost(contents) == (720, 360, 180)
    older = {**contents.best, "PN": {**contents.best["PN"], "run": RUN}}
    assert make_cost(replace(contents, best=older)).finalists_gpu is None


def test_machines_with_the_same_processors_are_counted_together():
    assert make_hardware([{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 8.0}]) == "2 × 2 CPU; 1 × 8 CPU"
    card = {"CPU": 16.0, "GPU": 1.0, "accelerator_type:H200": 1.0, "memory": 1e9}
    assert make_hardware([card]) == "1 × 16 CPU, 1 GPU, 1 H200"


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
    assert commands[1].makes.endswith("PN (seeds 3, 4); MAML (seeds 3)")
    assert [command[1:3] for command in commands[2:-1]] == [
        (SEARCH["command"], RUN["commit"]),
        (SEARCH["command"], "fedcba"),
        (other["command"], RUN["commit"]),
    ]
    makes = [command.makes.removeprefix("trials and choice of ") for command in commands[2:-1]]
    assert makes == ["none, copy, cCov-GAN-PN", "MAML", "PN"]

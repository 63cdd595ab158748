"""The cost of a report, and its commands."""

from dataclasses import replace

from cpaan.report.page.facts import make_commands, make_cost, make_hardware
from helpers.report_folders import COST, RUN, SEARCH


def test_cost_is_the_time_of_workers_and_the_share_of_a_gpu(contents):
    def cost_with(cost: dict, **best: dict) -> dict[str, str]:
        about = {**contents.about, "cost": cost}
        return make_cost(replace(contents, about=about, best={**contents.best, **best}))

    # Two searches of four trials of 90 s and 45 GPU seconds; five rows whose finalists took 36.
    assert cost_with(COST) == {
        "time": "trials 12 min, report 60 min",
        "gpu_hours": "trials 0.10; finalists 0.05; report 0.50",
    }
    uncounted = cost_with({**COST, "num_uncounted": 2})["gpu_hours"]
    assert uncounted.endswith("report 0.50; 2 parts of the report not counted")
    # Older reports and searches have no seconds of parts.
    older = {**contents.best["PN"], "run": RUN}
    assert cost_with({"seconds": 600.0, "gpu_seconds": 1800.0}, PN=older) == {
        "time": "trials 12 min",
        "gpu_hours": "trials 0.10; finalists not counted; report 0.50 by whole cards, its last "
        "command only",
    }


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
    assert commands[1].makes.endswith("and resumed: PN (seeds 3, 4); MAML (seeds 3)")
    assert [command[:3] for command in commands[2:-1]] == [
        ("trials and choice of none, copy, cCov-GAN-PN", SEARCH["command"], RUN["commit"]),
        ("trials and choice of MAML", SEARCH["command"], "fedcba"),
        ("trials and choice of PN", other["command"], RUN["commit"]),
    ]

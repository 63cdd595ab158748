"""Test the texts and single numbers of the page, and their provenance."""

from dataclasses import replace

from cpaan.report.page.facts import (
    make_commands,
    make_headline,
    make_provenance,
    subject_of,
)
from cpaan.report.page.pictures import make_splits
from cpaan.report.page.views import make_views
from helpers.report_folders import RUN, SEARCH


def headline_of(contents, subject):
    table = make_views(contents)
    headline = make_headline(contents, table, subject, make_splits(contents, table, subject))
    return headline, " ".join(headline.lines).replace("\N{NO-BREAK SPACE}", " ")


def test_the_subject_is_the_best_of_ours_on_validation_whatever_others_do(contents):
    heads = contents.heads.replace({"method": {"PN": "ours"}})
    rows = (*contents.rows, replace(contents.rows[-2], name="ours"))
    # Its validation score is 40, below the 45 of our other row.
    assert subject_of(replace(contents, rows=rows, heads=heads)) == "cCov-GAN-PN"
    heads.loc[heads["method"] == "ours", "score"] = 46.0
    assert subject_of(replace(contents, rows=rows, heads=heads)) == "ours"
    # Without validation scores, it is our last row; without rows of ours, the last row.
    assert subject_of(replace(contents, heads=contents.heads.head(0))) == "cCov-GAN-PN"
    others = tuple(row for row in contents.rows if row.method != "cCov-GAN-PN")
    assert subject_of(replace(contents, rows=others)) == "PN"
    # The subject of a one-row study is its best trial, even if trial 0 has a higher score.
    first, best = (replace(contents.rows[-2], name=f"cCov-GAN-PN, {x}") for x in ("0", "best"))
    heads = contents.heads.assign(method="cCov-GAN-PN, 0")
    one = replace(contents, rows=(first, best), heads=heads, is_table=False)
    assert subject_of(one) == "cCov-GAN-PN, best"


def test_the_headline_has_the_subject_s_number_its_place_and_the_paper_s_gain(contents):
    # The mean and its interval are over the seeded draws.
    contents.scores.loc[contents.scores["draw"] < contents.num_fixed, "top5"] += 10

    headline, lines = headline_of(contents, "cCov-GAN-PN")

    assert headline[:2] == ("41.0 %", "± 5.0")
    assert "cCov-GAN-PN, with the centroid head" in headline.lead
    assert lines.startswith("That is 1st of 5 rows (LSL, K = 1), mean over 3 draws.")
    # 41 minus 40 here; 48.4 minus 39.4 in the paper.
    assert "+1.0 ± 0.0 against PN (the paper prints +9.0)" in lines
    assert "augmentation +12.0" in lines
    # The headline also reports that a control is as good.
    _, lines = headline_of(contents, "MAML")
    assert "That is 3rd of 5 rows" in lines
    assert "The best control that learns nothing: +4.0 ± 0.0 against copy." in lines
    assert "augmentation" not in lines, "the gain of another row"


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

"""Test the report of a study without Ray: its parts are scored in this process."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from cpaan.core.provenance import count_test_reads
from cpaan.methods.registry import METHODS
from cpaan.protocol.config import HEADS
from cpaan.study import report, worker_pool
from cpaan.study.report_rows import ReportSettings
from cpaan.study.resolve import StudyRequest, new_study
from cpaan.study.study import BEST
from helpers.report_folders import RUN
from helpers.studies import run_here

CLUSTER = SimpleNamespace(
    nodes=({"CPU": 2.0},), check=lambda _: None, most_trials_at_once=lambda _: 1
)


def test_a_replaced_machine_continues_the_count_of_test_reads(study_features, monkeypatch):
    monkeypatch.setattr(report, "check_machines", lambda *_: None)
    request = StudyRequest(methods=("copy",), features=[str(study_features)])
    study = new_study(request, Path("results/mine"), str(Path("shared").absolute()))
    fingerprint = study.rows[0].data.fingerprint

    for count in (1, 2):
        report._measure(study, {}, CLUSTER, print)
        assert count_test_reads(fingerprint) == count
        Path("results").rename(f"lost-{count}")

    assert len(Path("shared/mine/test-reads.jsonl").read_text().splitlines()) == 2


CONTROLS = ("none", "mean-shift", "half-mean-shift")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "rows", "heads"),
    [
        (("copy",), [*CONTROLS, "copy, default settings", "copy, best"], {"linear"}),
        (("none", "copy"), ["none", "copy"], set(HEADS)),
        (("none", "LR"), ["LR, as published", "none", "LR"], set(HEADS)),
    ],
)
def test_a_study_of_one_row_or_several_is_reported_by_one_program(
    study_features, monkeypatch, methods, rows, heads
):
    def run_in_order(jobs, *others):
        is_published = ["as published" in key.row for key in jobs]
        assert is_published == sorted(is_published), "searched rows first"
        return run_here(jobs, *others)

    short = replace(METHODS["LR"], published_head={"linear_num_steps": 7})
    monkeypatch.setitem(METHODS, "LR", short)
    monkeypatch.setattr(report, "check_machines", lambda *_: None)
    monkeypatch.setattr(worker_pool, "check_this_machine", lambda _: None)
    monkeypatch.setattr(worker_pool, "run_on_ray", run_in_order)
    features, settings = [str(study_features)], ("shots=1,2",)
    request = StudyRequest(methods=methods, features=features, settings=settings)
    study = new_study(request, Path("results/mine"), None)
    for row in study.rows:
        best = {"trial": 0, "score": 50.0, "parameters": {}, "num_trials": 1, "method": row.method}
        settings = {name: getattr(row, name).to_dict() for name in ("training", "evaluation")}
        settings["evaluation"]["linear_num_steps"] = 20  # few, for a short test
        if methods == ("copy",):  # the first trial is best with another weight
            settings["evaluation"]["mixing_shots"] = 0.5
        best |= {**settings, "run": RUN, "finalists": [{"trial": 0, "score": 50.0}]}
        study.write_json(study.path_of(row, BEST), best)

    sizes = ReportSettings(
        num_fixed_draws=2, num_seeded_draws=3, num_published_seeds=1, is_table_only=True
    )
    lines, failed = report.make_report(study, CLUSTER, lambda _: None, sizes)

    assert (len(lines), failed) == (2 + min(3, len(rows)), {})
    assert count_test_reads(study.rows[0].data.fingerprint) == 1
    folder = Path("results/mine/report")
    about = json.loads((folder / "report.json").read_text())
    assert [row["name"] for row in about["rows"]] == rows
    if methods == ("copy",):  # controls use their examples as the best row does
        weights = {row["name"]: row["evaluation"]["mixing_shots"] for row in about["rows"]}
        assert weights["half-mean-shift"] == weights["copy, best"] == 0.5
        assert weights["copy, default settings"] != 0.5
    steps = {row["name"]: row["evaluation"]["linear_num_steps"] for row in about["rows"]}
    assert all((count == 7) == ("as published" in name) for name, count in steps.items())
    assert about["cost"]["worker_seconds"] > 0 == about["cost"]["num_uncounted"]
    assert list(about["best"]) == list(about["studies"]) == list(methods)
    assert set(pd.read_parquet(folder / "scores.parquet")["head"]) == heads
    assert lines[0] in (folder / "findings.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    classes = pd.read_parquet(folder / "classes.parquet")
    lsl = pd.read_parquet(folder / "scores.parquet").query("column == 'novel' and shots == 1")
    means = lsl[lsl["draw"] >= 2].groupby(["method", "head"])["top5"].mean()
    assert classes.groupby(["method", "head"])["top5"].mean().to_dict() == pytest.approx(
        means.to_dict()
    ), "all classes have as many queries"
    assert "top5_minus_none" in pd.read_csv(folder / "table.csv")
    page, latex = ((folder / name).read_text() for name in ("report.md", "table.tex"))
    assert all(f" | {name} | " in page and f" & {name} & " in latex for name in rows)

"""Test reading report folders, and the errors for damaged ones."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from cpaan.report.ablations import Ablation
from cpaan.report.page.contents import read_contents
from helpers.report_folders import SEARCH, make_trials, write_report


@contextmanager
def changed(path: Path) -> Iterator[dict]:
    """Yield the content of a file of JSON, and write it back."""
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


def test_a_report_of_many_rows_has_the_searches_of_each_and_its_variants(contents):
    assert list(contents.methods) == ["none", "copy", "MAML", "PN", "cCov-GAN-PN"]
    assert list(contents.best) == list(contents.studies) == list(contents.methods)
    assert list(contents.trials) == ["PN", "cCov-GAN-PN"]
    assert len(contents.trials["PN"]) == len(make_trials())
    (variant,) = [row for row in contents.rows if row.ablation]
    assert (variant.name, variant.method) == ("cCov-GAN-PN: all", "cCov-GAN-PN")
    assert variant.ablation == Ablation("cCov-GAN-PN", "neighbours", "all")
    assert variant.ablation.title == "cCov-GAN-PN: all base classes"
    # Seeded draws come after the two fixed draws.
    assert sorted(contents.seeded["draw"].unique()) == [2, 3, 4]
    assert (contents.spectra, contents.projections, contents.spiral) == (None, None, None)


@pytest.mark.parametrize(
    ("family", "label", "key"),
    [
        ("terms", "recommended weight of synthetic examples", "recommended-weight"),
        ("neighbours", "NBS-H, k = 5", "hard-5"),
        ("ideas", "without the cycle term", "without-cycle"),
    ],
)
def test_an_older_report_has_the_words_of_ablations_in_place_of_keys(tmp_path, family, label, key):
    with changed(write_report(tmp_path) / "report" / "report.json") as about:
        about["rows"][-1]["ablation"] = {"of": "cCov-GAN-PN", "family": family, "label": label}

    assert read_contents(tmp_path).rows[-1].ablation == Ablation("cCov-GAN-PN", family, key)


def test_an_older_report_of_one_row_has_its_study_alone_and_the_cost_of_whole_cards(tmp_path):
    today = read_contents(write_report(tmp_path, is_table=False))
    with changed(tmp_path / "report" / "report.json") as about:
        (about["study"],) = about.pop("studies").values()
        (about["best"],) = about["best"].values()
        about["cost"] = {"seconds": 60.0, "gpu_seconds": 30.0}

    older = read_contents(tmp_path)

    assert (older.studies, older.best) == (today.studies, today.best)
    assert older.about["cost"]["worker_seconds"] is None


def test_a_report_of_one_row_has_its_trials_beside_it(tmp_path):
    contents = read_contents(write_report(tmp_path, is_table=False))

    assert list(contents.best) == list(contents.studies) == list(contents.trials) == ["cCov-GAN-PN"]


def test_rows_as_published_come_after_all_others(tmp_path):
    path, name = write_report(tmp_path) / "report" / "scores.parquet", "copy, as published"
    with changed(path.with_name("report.json")) as about:
        about["rows"][1]["name"] = name
    pd.read_parquet(path).replace({"method": {"copy": name}}).to_parquet(path)

    contents = read_contents(tmp_path)

    assert list(contents.methods) == ["none", "MAML", "PN", "cCov-GAN-PN", name]
    assert name not in contents.searched


def test_a_row_has_the_command_that_named_it_or_else_the_one_that_chose_its_winner(tmp_path):
    folder = write_report(tmp_path)
    runs = [
        {"command": "python tune/search.py --method none,PN"},
        {"command": "python tune/search.py --resume hand --method MAML,copy"},
        {"command": "python tune/search.py --resume hand"},
    ]
    (folder / "config.json").write_text(json.dumps({"runs": runs}))

    started = read_contents(folder).started

    assert [started[name] for name in ("none", "PN")] == [runs[0]] * 2
    assert [started[name] for name in ("MAML", "copy")] == [runs[1]] * 2
    assert started["cCov-GAN-PN"]["command"] == SEARCH["command"], "that of its best.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("report.json", None, r"has no report\.json"),
        ("report.json", b'{"run": ', r"report\.json cannot be read"),
        ("report.json", b"[]", "is not of a report: it lacks run, rows, num_fixed"),
        ("report.json", {"method": "ABC"}, "a row for an unknown method: 'ABC'"),
        ("report.json", {"name": "another"}, "no scores of its row 'another'"),
        ("scores.parquet", None, r"has no scores\.parquet"),
        ("scores.parquet", b"no table", r"scores\.parquet cannot be read"),
        ("scores.parquet", "top1", r"scores\.parquet is not of a report: it lacks top1"),
    ],
)
def test_a_damaged_report_is_refused(tmp_path, name, content, message):
    path = write_report(tmp_path) / "report" / name
    if content is None:
        path.unlink()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        pd.read_parquet(path).drop(columns=content).to_parquet(path)
    else:
        with changed(path) as about:
            about["rows"][0] |= content

    with pytest.raises(ValueError, match=message):
        read_contents(tmp_path)

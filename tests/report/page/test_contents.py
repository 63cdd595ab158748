"""Reading a report's folder, and refusing damaged ones."""

import json

import pandas as pd
import pytest

from cpaan.report.page.contents import Ablation, read_contents
from helpers.report_folders import NUM_FIXED, make_trials, write_report


def test_a_report_of_many_rows_has_the_searches_of_each_and_its_variants(contents):
    assert contents.is_table
    assert list(contents.methods) == ["none", "copy", "MAML", "PN", "cCov-GAN-PN"]
    assert list(contents.best) == list(contents.studies) == list(contents.methods)
    assert list(contents.trials) == ["PN", "cCov-GAN-PN"]
    assert len(contents.trials["PN"]) == len(make_trials())
    (variant,) = [row for row in contents.rows if row not in contents.table_rows]
    assert (variant.name, variant.method) == ("cCov-GAN-PN: all base classes", "cCov-GAN-PN")
    assert variant.ablation == Ablation("cCov-GAN-PN", "neighbours", "all base classes")
    # Seeded draws come after the two fixed ones.
    assert sorted(contents.seeded["draw"].unique()) == [2, 3, 4]
    assert contents.shots == (1, 5)


def test_a_report_of_one_row_has_its_trials_beside_it(tmp_path):
    contents = read_contents(write_report(tmp_path, is_table=False))

    assert not contents.is_table
    assert list(contents.best) == list(contents.studies) == ["cCov-GAN-PN"]
    assert list(contents.trials) == ["cCov-GAN-PN"]


def test_older_reports_lack_later_keys_and_files(tmp_path):
    folder = write_report(tmp_path, num_fixed=None, heads=None, cost=None, diversity=None)

    contents = read_contents(folder)

    assert contents.num_fixed == NUM_FIXED
    for name in ("heads", "diversity", "spectra", "projections", "spiral"):
        assert getattr(contents, name) is None, name
    pd.DataFrame([{"method": "real", "share": 0.5}]).to_parquet(folder / "report/spectra.parquet")
    (folder / "report" / "spiral.json").write_text('{"points": []}')
    contents = read_contents(folder)
    assert contents.spectra["share"].tolist() == [0.5]
    assert contents.spiral == {"points": []}


def test_a_row_that_was_added_later_has_the_command_that_named_it(tmp_path):
    folder = write_report(tmp_path)
    runs = [
        {"command": "python tune/search.py --method none,PN"},
        {"command": "python tune/search.py --resume hand --method MAML,copy"},
    ]
    (folder / "config.json").write_text(json.dumps({"runs": runs}))

    started = read_contents(folder).started

    assert [started[name] for name in ("none", "PN", "cCov-GAN-PN")] == [runs[0]] * 3
    assert [started[name] for name in ("MAML", "copy")] == [runs[1]] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"has no report\.json: there is no report to draw"),
        ('{"run": ', r"report\.json cannot be read"),
        ("[]", "is not a JSON object"),
        ("{}", "is not a report: it lacks run, rows, settings, test_reads, best"),
        ({"method": "ABC"}, "a row for an unknown method: 'ABC'"),
        ({"name": "another"}, "no scores of its row 'another'"),
    ],
)
def test_a_damaged_report_is_refused(tmp_path, text, message):
    path = write_report(tmp_path) / "report" / "report.json"
    about = json.loads(path.read_text())
    path.unlink()
    if text is not None:
        is_row = isinstance(text, dict)
        row = json.dumps({**about, "rows": [{**about["rows"][0], **text}]}) if is_row else text
        path.write_text(row)

    with pytest.raises(ValueError, match=message):
        read_contents(tmp_path)


def test_damaged_scores_are_refused(tmp_path):
    scores = write_report(tmp_path) / "report" / "scores.parquet"

    pd.read_parquet(scores).drop(columns="top1").to_parquet(scores)
    with pytest.raises(ValueError, match=r"scores\.parquet lacks top1"):
        read_contents(tmp_path)
    scores.write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"scores\.parquet cannot be read"):
        read_contents(tmp_path)
    scores.unlink()
    with pytest.raises(ValueError, match=r"has no scores\.parquet"):
        read_contents(tmp_path)

"""What is read of a report's folder, and what is refused."""

import json

import pandas as pd
import pytest

from cpaan.report.page.contents import Ablation, read_contents
from helpers.report_folders import NUM_FIXED, make_trials, write_report


def test_a_report_of_many_rows_has_the_searches_of_each(tmp_path):
    contents = read_contents(write_report(tmp_path / "hand"))

    assert contents.name == "hand"
    assert contents.is_table
    assert list(contents.methods) == ["none", "copy", "MAML", "PN", "cCov-GAN-PN"]
    assert list(contents.best) == list(contents.studies) == list(contents.methods)
    assert list(contents.trials) == ["PN", "cCov-GAN-PN"]
    assert len(contents.trials["PN"]) == len(make_trials())


def test_variants_are_rows_but_not_of_the_table(tmp_path):
    contents = read_contents(write_report(tmp_path))

    (variant,) = [row for row in contents.rows if row not in contents.table_rows]
    assert variant.name == "cCov-GAN-PN: all base classes"
    assert variant.method == "cCov-GAN-PN"
    assert variant.ablation == Ablation("cCov-GAN-PN", "neighbours", "all base classes")


def test_a_report_of_one_row_has_its_trials_beside_it(tmp_path):
    contents = read_contents(write_report(tmp_path, is_table=False))

    assert not contents.is_table
    assert list(contents.best) == list(contents.studies) == ["cCov-GAN-PN"]
    assert list(contents.trials) == ["cCov-GAN-PN"]


def test_seeded_draws_come_after_the_fixed_ones(tmp_path):
    contents = read_contents(write_report(tmp_path))

    assert sorted(contents.seeded["draw"].unique()) == [2, 3, 4]
    assert contents.shots == (1, 5)


def test_older_reports_lack_what_came_later(tmp_path):
    folder = write_report(tmp_path, num_fixed=None, heads=None, cost=None, diversity=None)

    contents = read_contents(folder)

    assert contents.num_fixed == NUM_FIXED
    assert contents.heads is None
    assert contents.diversity is None
    assert contents.spectra is None
    assert contents.projections is None
    assert contents.spiral is None


def test_optional_files_are_read_where_they_are(tmp_path):
    folder = write_report(tmp_path)
    spectrum = pd.DataFrame([{"method": "real", "class": "c", "index": 1, "share": 0.5}])
    spectrum.to_parquet(folder / "report" / "spectra.parquet")
    (folder / "report" / "spiral.json").write_text('{"points": []}')

    contents = read_contents(folder)

    assert contents.spectra is not None
    assert contents.spectra["share"].tolist() == [0.5]
    assert contents.spiral == {"points": []}


def test_a_row_that_was_added_later_has_the_command_that_named_it(tmp_path):
    folder = write_report(tmp_path)
    runs = [
        {"command": "python tune/search.py --method none,PN"},
        {"command": "python tune/search.py --resume hand --method MAML,copy"},
    ]
    (folder / "config.json").write_text(json.dumps({"runs": runs}))

    begun = read_contents(folder).begun

    assert [begun[name] for name in ("none", "PN", "cCov-GAN-PN")] == [runs[0]] * 3
    assert [begun[name] for name in ("MAML", "copy")] == [runs[1]] * 2


def test_a_folder_without_a_report_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no report\.json: there is no report to draw"):
        read_contents(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"run": ', r"report\.json cannot be read"),
        ("[]", "is no JSON object"),
        ("{}", "is no report: it lacks run, rows, settings, test_reads, best"),
    ],
)
def test_a_damaged_report_is_refused(tmp_path, text, message):
    folder = write_report(tmp_path)
    (folder / "report" / "report.json").write_text(text)

    with pytest.raises(ValueError, match=message):
        read_contents(folder)


def test_damaged_scores_are_refused(tmp_path):
    folder = write_report(tmp_path)
    scores = folder / "report" / "scores.parquet"

    pd.read_parquet(scores).drop(columns="top1").to_parquet(scores)
    with pytest.raises(ValueError, match=r"scores\.parquet lacks top1"):
        read_contents(folder)
    scores.write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"scores\.parquet cannot be read"):
        read_contents(folder)
    scores.unlink()
    with pytest.raises(ValueError, match=r"has no scores\.parquet"):
        read_contents(folder)


def test_rows_that_nobody_knows_or_scored_are_refused(tmp_path):
    path = write_report(tmp_path) / "report" / "report.json"
    about = json.loads(path.read_text())

    row = {**about["rows"][0], "method": "ABC"}
    path.write_text(json.dumps({**about, "rows": [row]}))
    with pytest.raises(ValueError, match="a row of the method 'ABC'"):
        read_contents(tmp_path)
    row = {**about["rows"][0], "name": "another"}
    path.write_text(json.dumps({**about, "rows": [row]}))
    with pytest.raises(ValueError, match="no scores of its row 'another'"):
        read_contents(tmp_path)

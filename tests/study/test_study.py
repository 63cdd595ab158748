"""A study on disk."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cpaan.study.study import download_study, find_study, read_json, read_study
from helpers.studies import new_study


@pytest.mark.parametrize("methods", [("cCov-GAN",), ("cCov-GAN", "PN")])
def test_a_study_reads_back_from_its_folder(tmp_path, methods):
    study = replace(new_study(tmp_path, methods=methods), shared="mock:///study")

    for name in ("once", "again"):
        replace(study, folder=tmp_path / name, shared=None).write()
        (tmp_path / "config.json").write_bytes((tmp_path / name / "config.json").read_bytes())

    assert read_study(tmp_path) == replace(study, shared=None)
    paths = [study.path_of(row, "best.json") for row in study.rows]
    wanted = ["best.json"] if len(methods) == 1 else ["cCov-GAN/best.json", "PN/best.json"]
    assert paths == wanted


def test_a_folder_that_was_moved_is_the_storage_of_its_study(tmp_path):
    new_study(tmp_path / "before").write()
    (tmp_path / "before").rename(tmp_path / "after")

    assert read_study(tmp_path / "after").storage == str(tmp_path / "after")


def test_every_command_is_in_the_configuration(tmp_path):
    for _ in range(2):
        new_study(tmp_path).write()

    assert len(json.loads((tmp_path / "config.json").read_text())["runs"]) == 2


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("config", {"seed": 1}, "started with seed = 0 and cannot be resumed with 1"),
        ("training", {"num_episodes": 400}, "num_episodes = 200 and cannot be resumed with 400"),
        ("evaluation", {"num_draws": 3}, "num_draws = 5 and cannot be resumed with 3"),
    ],
)
def test_a_row_resumes_with_the_same_settings_only(part, changes, message):
    row = new_study(Path("study")).rows[0]

    with pytest.raises(ValueError, match=message):
        replace(row, **{part: getattr(row, part).with_overrides(changes)}).check_resumes(row)


def test_a_row_resumes_with_more_trials_and_moved_data_but_not_with_other_data():
    row = new_study(Path("study")).rows[0]
    moved = replace(row.data, features=("/moved/features.parquet",))
    more = replace(row, config=row.config.with_overrides({"num_trials": 100}), data=moved)

    more.check_resumes(row)
    with pytest.raises(ValueError, match="its fingerprint is 0123 and that of these features 4567"):
        replace(more, data=replace(moved, fingerprint="4567")).check_resumes(row)


def test_the_newest_study_is_found(tmp_path):
    with pytest.raises(ValueError, match=r"there is no study in .*: python tune/search.py starts"):
        find_study(None, tmp_path)

    for name in ("b", "a"):
        new_study(tmp_path / name).write()

    assert find_study(None, tmp_path) == tmp_path / "a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"config.json cannot be read: "),
        ('{"rows": [{}]}', r"config.json cannot be read: 'config'"),
        ('{"config": {}}', r"was started by an older version.*--redraw"),
        ('{"methods": []}', r"was started by an older version.*--redraw"),
    ],
)
def test_a_folder_of_something_else_or_of_an_older_version_is_refused(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)

    with pytest.raises(ValueError, match=message):
        read_study(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"{tmp_path} has no best.json: it is not a study"):
        read_json(tmp_path, "best.json")


def test_files_are_copied_to_the_storage_and_infinity_is_not_json(tmp_path):
    study = replace(new_study(tmp_path / "study"), shared=str(tmp_path / "shared"))

    study.write_json("best.json", {"score": 50.0})

    for folder in ("study", "shared"):
        assert read_json(tmp_path / folder, "best.json") == {"score": 50.0}
    with pytest.raises(ValueError, match="JSON"):
        study.write_json("best.json", {"score": float("inf")})
    study.delete_file("best.json")
    assert not list(tmp_path.rglob("best.json"))


def test_a_study_is_downloaded_with_the_files_of_its_rows(tmp_path):
    study = replace(new_study(tmp_path / "a", methods=("c-GAN", "PN")), shared=str(tmp_path / "b"))
    study.write()
    study.write_json("PN/best.json", {"score": 1.0})

    download_study(str(tmp_path / "b"), tmp_path / "c")

    found = read_study(tmp_path / "c")
    assert found.rows == study.rows
    assert [found.has_best(row) for row in found.rows] == [False, True]
    with pytest.raises(ValueError, match=r"has no config\.json: it is not a study"):
        download_study(str(tmp_path / "none"), tmp_path / "d")


def test_one_process_at_a_time_works_on_a_study(tmp_path):
    study = new_study(tmp_path)

    with study.locked(), pytest.raises(ValueError, match="another process works on"):
        study.locked().__enter__()
    with study.locked():
        pass

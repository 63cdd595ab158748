"""Test the files of a study."""

import json
from dataclasses import replace

import pytest

from cpaan.study.owner import OWNER
from cpaan.study.study import download_study, find_study, read_json, read_study
from helpers.studies import new_study


@pytest.mark.parametrize("methods", [("cCov-GAN",), ("cCov-GAN", "PN")])
def test_a_study_reads_back_from_its_folder_wherever_that_is(tmp_path, methods):
    study = new_study(tmp_path / "before", methods=methods)
    for _ in range(2):
        study.write()
    (tmp_path / "before").rename(tmp_path / "after")

    again = read_study(tmp_path / "after")

    assert again == replace(study, folder=tmp_path / "after")
    assert again.storage == str(tmp_path / "after")
    assert len(json.loads((tmp_path / "after" / "config.json").read_text())["runs"]) == 2
    paths = [study.path_of(row, "best.json") for row in study.rows]
    wanted = ["best.json"] if len(methods) == 1 else ["cCov-GAN/best.json", "PN/best.json"]
    assert paths == wanted


def test_the_newest_study_is_found(tmp_path):
    with pytest.raises(ValueError, match=r"/ has no study; start one with: python tune/search.py"):
        find_study(None, tmp_path)

    for name in ("b", "a"):
        new_study(tmp_path / name).write()

    assert find_study(None, tmp_path) == tmp_path / "a"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no config.json: it is not a study"),
        ("{", r"config.json cannot be read: "),
        ('{"rows": [{}]}', r"config.json cannot be read: 'config'"),
        ('{"config": {}}', r"was started by an older version.*--redraw"),
    ],
)
def test_a_folder_of_something_else_or_of_an_older_version_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)

    with pytest.raises(ValueError, match=message):
        read_study(tmp_path)


def test_files_are_copied_to_the_storage_and_downloaded_from_there(tmp_path):
    study = replace(new_study(tmp_path / "a", methods=("c-GAN", "PN")), shared=str(tmp_path / "b"))
    study.write()
    study.write_json("PN/best.json", {"score": 1.0})

    download_study(str(tmp_path / "b"), tmp_path / "c")

    downloaded = read_study(tmp_path / "c")
    assert downloaded.rows == study.rows
    assert [downloaded.has_best(row) for row in downloaded.rows] == [False, True]
    for folder in "abc":
        assert read_json(tmp_path / folder, "PN/best.json") == {"score": 1.0}
    with pytest.raises(ValueError, match=r"has no config\.json: it is not a study"):
        download_study(str(tmp_path / "none"), tmp_path / "d")
    with pytest.raises(ValueError, match="JSON"):
        study.write_json("PN/best.json", {"score": float("inf")})
    study.delete_file("PN/best.json")
    assert not list(tmp_path.glob("[ab]/PN/best.json"))


def test_one_process_at_a_time_works_on_a_study_and_owns_its_storage(tmp_path):
    study = replace(new_study(tmp_path / "a"), shared=str(tmp_path / "shared"))

    with study.locked():
        assert (tmp_path / "shared" / OWNER).is_file()
        with pytest.raises(ValueError, match="another process is using the study"):
            study.locked().__enter__()
    for folder in "ab":  # of this machine or of another
        with replace(study, folder=tmp_path / folder).locked():
            pass

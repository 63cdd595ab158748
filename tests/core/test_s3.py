"""Test features, splits and studies on an S3 server."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cpaan.core.remote_paths import join
from cpaan.data.cache import default_cache_folder, open_features
from cpaan.data.parquet import write_features
from cpaan.data.reference import open_data
from cpaan.data.split_files import find_split, read_split
from cpaan.study.records import RowRecords
from cpaan.study.searcher import open_trials
from cpaan.study.study import CONFIG, OPTUNA, TRIALS, download_study, read_json, read_study
from helpers.buckets import Bucket
from helpers.files import room_for
from helpers.studies import new_study
from helpers.tables import assert_same_table, random_table

GROUPS = {
    "validation": {"base": ["class0"], "novel": ["class1"]},
    "test": {"base": ["class2"], "novel": ["class3"]},
}


def put_table(bucket: Bucket, num_rows: int = 40) -> str:
    write_features(Path("made.parquet"), random_table(num_rows))
    return bucket.put("data/features.parquet", Path("made.parquet"))


def downloads() -> list[Path]:
    """Return all complete and partial downloads."""
    return [path for path in (default_cache_folder() / "copies").rglob("*") if path.is_file()]


@contextmanager
def opening(location: str, code: str = "") -> Iterator[subprocess.Popen]:
    """Open features in a separate process, which prints their fingerprint."""
    code += "\nimport sys, cpaan; print(cpaan.open_features(sys.argv[1]).fingerprint)"
    command = [sys.executable, "-c", code, location]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_features_are_downloaded_once_and_again_when_they_change(bucket):
    location = put_table(bucket)
    bucket.put("data/notes.txt", b"not features")
    told = []

    for source in (location, location, join(bucket.location, "data")):
        before = open_features(source, progress=told.append)
        assert_same_table(before, random_table())

    assert bucket.num_downloads("data/features.parquet") == 1
    assert bucket.num_downloads("data/notes.txt") == 0
    (line,) = told
    assert line.startswith(f"copying {location} to ")

    put_table(bucket, num_rows=60)
    assert len(open_features(location).labels) == 60
    assert len(before.labels) == 40
    assert len(downloads()) == 1
    entries = [path for path in default_cache_folder().iterdir() if path.name != "copies"]
    assert len(entries) == 1


@pytest.mark.slow
def test_processes_that_open_features_at_once_download_them_once(bucket):
    location = put_table(bucket, num_rows=30_000)

    with opening(location) as one, opening(location) as other:
        said = [process.communicate(timeout=120)[0].strip() for process in (one, other)]

    assert said == [random_table(30_000).fingerprint] * 2
    assert bucket.num_downloads("data/features.parquet") == 1
    assert len(downloads()) == 1


@pytest.mark.slow
def test_half_a_download_of_a_killed_process_is_not_used(bucket):
    location = put_table(bucket)
    dies = """
import os, signal
from cpaan.core.remote_paths import RemotePath
whole = RemotePath.chunks
def half(self):
    for chunk in whole(self):
        yield chunk[: len(chunk) // 2] + bytes(1 << 20)  # beyond what Python keeps back
        os.kill(os.getpid(), signal.SIGKILL)
RemotePath.chunks = half
"""
    with opening(location, dies) as killed:
        killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path for path in downloads() if path.suffix != ".lock")
    assert left.name.startswith(".features.parquet-")

    assert_same_table(open_features(location), random_table())
    assert [path.name for path in downloads()] == ["features.parquet"]


def test_features_that_change_during_the_download_are_refused(bucket):
    location = put_table(bucket)

    with pytest.raises(OSError, match=r"features\.parquet.* changed during the copy"):
        # Progress is told before the first byte is read.
        open_features(location, progress=lambda message: put_table(bucket, num_rows=60))

    assert not downloads()
    assert len(open_features(location).labels) == 60


def test_a_missing_damaged_or_forbidden_object_is_told_in_a_line(bucket):
    missing = join(bucket.location, "missing.parquet")
    elsewhere = bucket.location.replace(bucket.name, "no-such-bucket")
    damaged = bucket.put("features.parquet", b"PAR1 and no more")
    forbidden = bucket.location.replace(bucket.name, "forbidden/features.parquet")

    for location in (missing, elsewhere, join(elsewhere, "features.parquet")):
        with pytest.raises(FileNotFoundError, match=f"^no such file: {re.escape(location)}$"):
            open_features(location)
    with pytest.raises(ValueError, match=rf"^{re.escape(damaged)} .* truncated or damaged"):
        open_features(damaged)
    for use in (open_features, find_split, read_split):
        with pytest.raises(OSError, match=r"^s3://forbidden.* cannot .*ACCESS_DENIED") as told:
            use(forbidden)
        assert "\n" not in str(told.value)
    with room_for(5_000), pytest.raises(OSError, match="File too large"):
        open_features(bucket.put("large.parquet", bytes(10_000)))
    assert [path.name for path in downloads()] == ["features.parquet"]


def test_an_empty_folder_has_no_features_and_no_split(bucket):
    with pytest.raises(ValueError, match=r"^s3://bucket.* must contain one Parquet file, .* \[]"):
        open_features(bucket.location)
    with pytest.raises(ValueError, match=r"no split\.json or label_idx\.json in s3://bucket"):
        find_split(bucket.location)


@pytest.mark.parametrize("folder", ["", "data/"])
def test_the_split_beside_features_is_found_by_address(bucket, folder):
    put_table(bucket)
    location = bucket.put(f"{folder}features.parquet", Path("made.parquet"))
    split = bucket.put(f"{folder}split.json", json.dumps(GROUPS).encode())

    assert find_split(location) == find_split(join(bucket.location, folder)) == split
    assert open_data([location], None)[1].test.novel == ("class3",)
    compressed = bucket.put("split.json.gz", json.dumps(GROUPS).encode())  # compressed in name only
    assert read_split(compressed).validation.base == ("class0",)


def test_a_study_is_copied_to_its_storage_and_downloaded_from_there(bucket, tmp_path):
    storage = bucket.root / "study"
    study = replace(new_study(tmp_path / "here"), shared=storage.location)
    study.write()
    study.write_json("best.json", {"score": 50.0})
    RowRecords(study, study.rows[0], open_trials(study, study.rows[0])).update(is_last=True)

    assert set(storage.names()) == {CONFIG, OPTUNA, TRIALS, "best.json"}
    download_study(storage.location, tmp_path / "there")

    copy = read_study(tmp_path / "there")
    assert copy.rows == study.rows
    assert read_json(tmp_path / "there", "best.json") == {"score": 50.0}
    assert not open_trials(copy, copy.rows[0]).get_trials()
    with pytest.raises(ValueError, match=f"has no {CONFIG}: it is not a study"):
        download_study(join(bucket.location, "none"), tmp_path / "none")
    assert not (tmp_path / "none").exists()

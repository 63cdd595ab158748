"""Features, splits and studies that are kept on S3, as a server that speaks it has them."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
from cpaan.cli.study_options import search_parser
from cpaan.cli.study_setup import new_study, resumed_study
from cpaan.study.folder import fetch_study

from cpaan.cli import main
from cpaan.cli.options import open_data
from cpaan.core.remote_paths import Place, join
from cpaan.data.cache import default_cache_folder, open_features
from cpaan.data.parquet import write_features
from cpaan.data.splits import find_split, read_split
from cpaan.study.config import DataReference, StudyConfig
from cpaan.study.records import CONFIG, OPTUNA, TRIALS, Records, read_json
from cpaan.study.searcher import open_study
from cpaan.study.storage import Storage
from helpers.buckets import Bucket
from helpers.files import room_for
from helpers.studies import STUDY_SETTINGS
from helpers.tables import LABEL_NAMES, assert_same_table, hdf5_pair, random_table

GROUPS = {
    "validation": {"base": ["class0"], "novel": ["class1"]},
    "test": {"base": ["class2"], "novel": ["class3"]},
}


def put_table(bucket: Bucket, num_rows: int = 40) -> str:
    write_features(Path("made.parquet"), random_table(num_rows))
    return bucket.put("data/features.parquet", Path("made.parquet"))


def copies() -> list[Path]:
    """Return all files that are copies, or would be."""
    return [path for path in (default_cache_folder() / "copies").rglob("*") if path.is_file()]


@contextmanager
def opening(location: str, code: str = "") -> Iterator[subprocess.Popen]:
    """Open features in a process of its own, which prints their fingerprint."""
    code += "\nimport sys, cpaan; print(cpaan.open_features(sys.argv[1]).fingerprint)"
    command = [sys.executable, "-c", code, location]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_features_by_address_are_those_of_the_file(bucket):
    assert_same_table(open_features(put_table(bucket)), random_table())


def test_a_folder_by_address_stands_for_the_only_parquet_file_in_it(bucket):
    put_table(bucket)
    bucket.put("data/notes.txt", b"not features")

    assert_same_table(open_features(join(bucket.location, "data")), random_table())
    assert bucket.num_downloads("data/notes.txt") == 0


def test_an_hdf5_pair_by_address_is_that_of_the_files(bucket, tmp_path):
    here = hdf5_pair(tmp_path / "here")
    for path in here:
        bucket.put(f"ResNet10/{path.name}", path)
    addresses = [join(bucket.location, f"ResNet10/{path.name}") for path in here]

    expected = open_features(*here, label_names=LABEL_NAMES)

    assert_same_table(open_features(*addresses, label_names=LABEL_NAMES), expected)
    folder = join(bucket.location, "ResNet10")
    assert_same_table(open_features(folder, label_names=LABEL_NAMES), expected)
    assert bucket.num_downloads("ResNet10/train.hdf5") == 1


def test_an_address_of_this_machine_needs_no_copy(tmp_path):
    write_features(tmp_path / "features.parquet", random_table())

    assert_same_table(open_features(f"file://{tmp_path}/features.parquet"), random_table())
    assert not copies()


def test_features_are_copied_once_and_that_is_told(bucket):
    location = put_table(bucket)
    told = []

    open_features(location, progress=told.append)
    open_features(location, progress=told.append)

    assert bucket.num_downloads("data/features.parquet") == 1
    (line,) = told
    assert line.startswith(f"copying {location}, 0.0 MB, to ")


def test_changed_features_are_copied_anew_in_the_place_of_the_old(bucket):
    before = open_features(put_table(bucket))

    after = open_features(put_table(bucket, num_rows=60))

    assert len(after.labels) == 60
    assert len(before.labels) == 40
    assert len(copies()) == 1
    entries = [path for path in default_cache_folder().iterdir() if path.name != "copies"]
    assert len(entries) == 1


@pytest.mark.slow
def test_processes_that_open_features_at_once_copy_them_once(bucket):
    location = put_table(bucket, num_rows=30_000)

    with opening(location) as one, opening(location) as other:
        said = [process.communicate(timeout=120)[0].strip() for process in (one, other)]

    assert said == [random_table(30_000).fingerprint] * 2
    assert bucket.num_downloads("data/features.parquet") == 1
    assert len(copies()) == 1


@pytest.mark.slow
def test_half_a_copy_of_a_process_that_was_killed_is_none(bucket):
    location = put_table(bucket)
    dies = """
import os, signal
from cpaan.core.remote_paths import Place
whole = Place.chunks
def half(self):
    for chunk in whole(self):
        yield chunk[: len(chunk) // 2] + bytes(1 << 20)  # beyond what Python keeps back
        os.kill(os.getpid(), signal.SIGKILL)
Place.chunks = half
"""
    with opening(location, dies) as killed:
        killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path for path in copies() if path.suffix != ".lock")
    assert left.name.startswith(".features.parquet-")

    assert_same_table(open_features(location), random_table())
    assert [path.name for path in copies()] == ["features.parquet"]


def test_features_that_change_while_they_are_copied_are_refused(bucket, monkeypatch):
    location = put_table(bucket)
    whole = Place.chunks

    def changed_meanwhile(place):
        put_table(bucket, num_rows=60)
        yield from whole(place)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Place, "chunks", changed_meanwhile)
        with pytest.raises(ValueError, match=r"features\.parquet.* changed while it was copied"):
            open_features(location)

    assert not copies()
    assert len(open_features(location).labels) == 60


def test_where_there_is_no_room_for_a_copy_there_is_none(bucket):
    location = put_table(bucket, num_rows=5_000)

    with room_for(5_000), pytest.raises(OSError, match="File too large"):
        open_features(location)

    assert not copies()


def test_what_a_damaged_object_is_called_is_its_address(bucket):
    location = bucket.put("data/features.parquet", b"PAR1 and no more")

    with pytest.raises(ValueError, match=r"truncated or damaged") as refused:
        open_features(location)

    assert str(refused.value).startswith(f"{location}: {default_cache_folder()}")


def test_what_is_not_there_is_named(bucket):
    missing = join(bucket.location, "missing.parquet")
    elsewhere = bucket.location.replace(bucket.name, "no-such-bucket")

    for location in (missing, elsewhere, join(elsewhere, "features.parquet")):
        with pytest.raises(FileNotFoundError) as refused:
            open_features(location)
        assert str(refused.value) == f"no such file: {location}"
    with pytest.raises(FileNotFoundError, match=r"no such file: s3://.*/split\.json"):
        read_split(join(bucket.location, "split.json"))


def test_an_empty_folder_holds_no_features(bucket):
    with pytest.raises(
        ValueError, match=r"^s3://bucket.* must hold one Parquet file, .* found \[]"
    ):
        open_features(bucket.location)
    with pytest.raises(ValueError, match=r"no split\.json or label_idx\.json in s3://bucket"):
        find_split(bucket.location)


def test_no_access_is_told_in_a_line(bucket):
    location = bucket.location.replace(bucket.name, "forbidden/features.parquet")

    for use in (open_features, find_split, read_split):
        with pytest.raises(ValueError, match=r"^s3://forbidden.* cannot .*ACCESS_DENIED") as told:
            use(location)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("location", ["ftp://host/f.parquet", "nowhere://f.parquet"])
def test_a_scheme_that_nobody_knows_is_refused(location):
    for use in (open_features, find_split, read_split):
        with pytest.raises(ValueError, match=f"^{location} cannot be used: .*{location}"):
            use(location)


def test_the_split_beside_features_is_found_by_address(bucket):
    location = put_table(bucket)
    bucket.put("data/split.json", json.dumps(GROUPS).encode())

    for place in (location, join(bucket.location, "data")):
        assert find_split(place) == join(bucket.location, "data/split.json")
    table, split = open_data([location], None)
    assert_same_table(table, random_table())
    assert split.test.novel == ("class3",)


def test_the_split_of_a_bucket_is_found_at_its_root(bucket):
    bucket.put("features.parquet", b"")
    bucket.put("split.json", json.dumps(GROUPS).encode())

    assert find_split(join(bucket.location, "features.parquet")) == join(
        bucket.location, "split.json"
    )


def test_a_reference_keeps_addresses_and_notices_other_data(bucket):
    location = put_table(bucket)
    bucket.put("data/split.json", json.dumps(GROUPS).encode())
    table, split = open_data([location], None)

    reference = DataReference.from_dict(
        json.loads(json.dumps(DataReference.of(table, split, [location]).to_dict()))
    )

    assert reference.features == (location,)
    assert_same_table(reference.open(), table)
    put_table(bucket, num_rows=60)
    with pytest.raises(ValueError, match=r"features\.parquet.* changed: their fingerprint is"):
        reference.open()


def test_an_evaluation_takes_addresses(bucket, study_features, capsys):
    location = bucket.put("features.parquet", study_features)
    split = bucket.put("groups.json", study_features.with_name("split.json"))
    arguments = ["evaluate", "--methods", "none", "--shots", "1", "--draws", "2"]

    assert main([*arguments, "--features", location, "--split", split]) == 0
    there = capsys.readouterr()
    assert main([*arguments, "--features", str(study_features)]) == 0

    def table(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("none")]

    assert table(there.out) == table(capsys.readouterr().out) != []
    assert f"copying {location}" in there.err


def test_features_of_an_address_are_made_compact(bucket, study_features):
    location = bucket.put("features.parquet", study_features)
    bucket.put("split.json", study_features.with_name("split.json"))

    assert main(["represent", "--features", location, "--compact", "--out", "mine"]) == 0

    table, split = open_data(["mine/compact"], None)
    assert split == read_split(study_features.with_name("split.json"))
    assert len(table.labels) == len(open_features(study_features).labels)


def test_a_name_does_not_say_that_a_file_is_compressed(bucket):
    location = bucket.put("split.json.gz", json.dumps(GROUPS).encode())

    assert read_split(location).validation.base == ("class0",)


def test_a_check_of_the_storage_leaves_nothing_behind(bucket):
    storage = Storage(join(bucket.location, "study"))
    storage.write(CONFIG, b"{}")

    storage.check()

    assert bucket.names() == [f"study/{CONFIG}"]


@pytest.mark.parametrize("name", ["no-such-bucket", "forbidden"])
def test_a_storage_that_cannot_be_written_is_refused_in_one_line(bucket, name):
    location = bucket.location.replace(bucket.name, f"{name}/study")

    with pytest.raises(ValueError, match=f"^storage s3://{name}.* cannot be written: ") as told:
        Storage(location).check()

    assert "\n" not in str(told.value)


def test_a_study_goes_on_from_what_is_in_the_storage(bucket, study_features):
    """Written by one machine, and fetched by another."""
    features = bucket.put("features.parquet", study_features)
    bucket.put("split.json", study_features.with_name("split.json"))
    sets = [part for name, value in STUDY_SETTINGS.items() for part in ("--set", f"{name}={value}")]
    storage = ["--storage", join(bucket.location, "studies")]
    options = ["--features", features, "--study", "mine", "--episodes", "8", *sets, *storage]
    study = new_study(search_parser().parse_args(options), "cCov-GAN", "mine")
    study.write()
    optuna_study = open_study(study.folder / OPTUNA, study.config)
    optuna_study.add_trial(optuna.create_trial(values=[50.0]))

    study.records.update(optuna_study, study.config, is_last=True)

    assert {f"studies/mine/{name}" for name in (CONFIG, OPTUNA, TRIALS)} <= set(bucket.names())
    Path("results").rename("another machine's")
    resumed = search_parser().parse_args(["--resume", "mine", *storage])
    again = resumed_study(resumed, study.folder)
    assert again.data == study.data
    assert again.data.features == (features,)
    assert again.elsewhere == join(bucket.location, "studies/mine")
    (trial,) = open_study(again.folder / OPTUNA, again.config).get_trials()
    assert trial.values == [50.0]


def test_records_are_mirrored(bucket, tmp_path):
    config = StudyConfig()
    study = open_study(tmp_path / OPTUNA, config)
    records = Records(tmp_path, Storage(join(bucket.location, "study")))

    records.update(study, config)
    records.write_json("best.json", {"score": 50.0})

    storage = Storage(join(bucket.location, "study"))
    assert json.loads(storage.read("best.json")) == read_json(tmp_path, "best.json")
    assert storage.read(TRIALS) == (tmp_path / TRIALS).read_bytes()
    (tmp_path / "copy.db").write_bytes(storage.read(OPTUNA))
    assert open_study(tmp_path / "copy.db", config).study_name == study.study_name


def test_where_there_is_no_study_none_is_fetched(bucket):
    location = join(bucket.location, "study")

    with pytest.raises(ValueError, match=f"has no {CONFIG}: it is no study"):
        fetch_study(location, Path("results/study"))

    assert not Path("results/study").exists()

"""Where files are, and copies of those that are elsewhere."""

from datetime import datetime
from pathlib import Path

import pytest
from pyarrow.fs import FileSystem, _MockFileSystem

from cpaan.core.download_cache import copy_here
from cpaan.core.remote_paths import Place, absolute, folder_of, join

QUERY = "?endpoint_override=localhost:9000&scheme=http"


def test_what_an_address_asks_for_stays_at_its_end():
    assert join(f"s3://bucket/studies{QUERY}", "mine") == f"s3://bucket/studies/mine{QUERY}"
    assert folder_of(f"s3://bucket/data/f.parquet{QUERY}") == f"s3://bucket/data{QUERY}"
    assert folder_of(f"s3://bucket/f.parquet{QUERY}") == f"s3://bucket{QUERY}"


def test_a_question_mark_in_a_path_is_a_letter():
    assert join("why?", "f.parquet") == "why?/f.parquet"
    assert folder_of("why?/f.parquet") == "why?"


def test_an_address_means_the_same_everywhere_and_a_path_is_made_to(tmp_path):
    assert absolute("s3://bucket/f.parquet") == "s3://bucket/f.parquet"
    assert absolute("f.parquet") == str(tmp_path / "f.parquet")
    assert absolute(Path("f.parquet")) == str(tmp_path / "f.parquet")


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("gs://bucket/f", "gs://bucket/f?retry_limit_seconds=15"),
        ("gs://bucket/f?scheme=http", "gs://bucket/f?scheme=http&retry_limit_seconds=15"),
        ("gs://bucket/f?retry_limit_seconds=99", "gs://bucket/f?retry_limit_seconds=99"),
        ("mock:///f", "mock:///f"),
    ],
)
def test_nobody_waits_a_quarter_of_an_hour_for_google(monkeypatch, address, asked):
    seen = []

    class Noting:
        @staticmethod
        def from_uri(uri: str):
            seen.append(uri)
            return FileSystem.from_uri("mock:///f")

    monkeypatch.setattr("pyarrow.fs.FileSystem", Noting)

    assert Place.at(address).location == address
    assert seen == [asked]


def place_of(content: bytes, day: int) -> Place:
    """Return a file that was written on that day."""
    files = _MockFileSystem(datetime(2026, 1, day))
    with files.open_output_stream("f.parquet") as file:
        file.write(content)
    return Place("mock:///f.parquet", files, "f.parquet")


def test_a_copy_is_as_old_as_what_it_is_of(tmp_path):
    old, new = place_of(b"old", day=1), place_of(b"new", day=2)

    copy = copy_here(old, tmp_path)
    assert copy.read_bytes() == b"old"
    copy.write_bytes(b"x")  # what was tampered with is no copy
    assert copy_here(old, tmp_path).read_bytes() == b"old"
    assert copy_here(new, tmp_path) == copy
    assert copy.read_bytes() == b"new"
    assert copy_here(old, tmp_path).read_bytes() == b"old"


def test_files_of_one_name_have_copies_of_their_own(tmp_path):
    one = place_of(b"one", day=1)
    other = Place("mock:///other/f.parquet", place_of(b"other", day=1).files, "f.parquet")

    copies = [copy_here(place, tmp_path) for place in (one, other)]

    assert [copy.read_bytes() for copy in copies] == [b"one", b"other"]
    assert [copy.name for copy in copies] == ["f.parquet"] * 2

"""Test files by path and URL: writes are atomic, and downloads happen once."""

import re
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow.fs import _MockFileSystem

from cpaan.core.remote_paths import RemotePath, absolute, download, join, refuse_credentials
from helpers.files import room_for

QUERY = "?endpoint_override=localhost:9000&scheme=http"


def test_the_query_of_an_address_stays_at_its_end():
    assert join(f"s3://bucket/studies{QUERY}", "mine") == f"s3://bucket/studies/mine{QUERY}"
    assert join("s3://bucket/studies/", "mine") == "s3://bucket/studies/mine"
    files = _MockFileSystem()
    for path, folder in (("bucket/data/f.parquet", "bucket/data"), ("bucket/f.parquet", "bucket")):
        parent = RemotePath(f"s3://{path}{QUERY}", files, path).parent
        assert parent == RemotePath(f"s3://{folder}{QUERY}", files, folder)

    assert join("why?", "f.parquet") == "why?/f.parquet"  # a path has no query
    assert RemotePath.at("why?/f.parquet").parent.location == "why?"


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("gs://bucket/f", "gs://bucket/f?retry_limit_seconds=15"),
        ("gs://bucket/f?scheme=http", "gs://bucket/f?scheme=http&retry_limit_seconds=15"),
        ("gs://bucket/f?retry_limit_seconds=99", "gs://bucket/f?retry_limit_seconds=99"),
        ("mock:///f", "mock:///f"),
    ],
)
def test_google_is_not_retried_for_a_quarter_of_an_hour(monkeypatch, address, asked):
    seen = []
    noting = SimpleNamespace(from_uri=lambda uri: (seen.append(uri), "f"))
    monkeypatch.setattr("pyarrow.fs.FileSystem", noting)

    assert RemotePath.at(address).location == address
    assert seen == [asked]


def test_an_unknown_address_is_refused_in_one_line():
    for location in ("ftp://host/study", "nowhere://study", "file://study"):
        with pytest.raises(ValueError, match=f"^{location} cannot be used: .+$") as refused:
            RemotePath.at(location)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "is_secret"),
    [
        ("s3://AKIA:HIDDEN@bucket/f", True),
        ("s3://AKIA:SEC/HIDDEN@bucket/f", True),
        ("s3://bucket/f?region=x&secret_key=HIDDEN", True),
        ("s3://bucket/f?access_key=HIDDEN", True),
        ("abfs://account.dfs.core.windows.net/f?client_secret=HIDDEN", True),
        (f"s3://bucket/f{QUERY}", False),
        ("gs://anonymous@bucket/f", False),
        ("abfss://container@account.dfs.core.windows.net/f", False),
        ("hdfs://user@host:8020/f@1", False),
        ("hdfs://host:8020/f@1", False),
        ("/data/a:b@c?key=1", False),
    ],
)
def test_credentials_are_refused_unprinted_but_not_names_ports_or_other_settings(
    address, is_secret
):
    if not is_secret:
        refuse_credentials(address)
        return
    with pytest.raises(ValueError, match="use environment variables") as refused:
        RemotePath.at(address)
    assert "HIDDEN" not in str(refused.value)


@pytest.fixture(params=["path", "file", "mock", "s3"])
def folder(request, tmp_path) -> RemotePath:
    """Return a local folder by path or URL, or a folder of another file system."""
    if request.param == "s3":
        return RemotePath.at(join(request.getfixturevalue("bucket").location, "study"))
    locations = {
        "path": f"{tmp_path}/study",
        "file": f"file://{tmp_path}/study",
        "mock": "mock:///study",
    }
    return RemotePath.at(locations[request.param])


def test_a_file_reads_back_until_it_is_deleted_and_a_missing_one_is_none(folder):
    path = folder / "trials/0000.pt"
    for content in (b"first", b"2nd", b""):
        path.write(content)
        assert path.is_file()
        assert path.read() == path.read_if_exists() == content
    assert (folder / "trials").is_folder()
    assert not (folder / "trials").is_file()
    assert (folder / "trials").names() == ["0000.pt"]

    for missing in (path, folder / "missing", folder / "no/such/folder/missing"):
        missing.delete()
        assert missing.read_if_exists() is None
        assert not missing.is_file()
        for use in (missing.read, missing.is_folder):
            with pytest.raises(FileNotFoundError) as refused:
                use()
            assert str(refused.value) == f"no such file: {missing.location}"


def test_a_relative_path_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    path = RemotePath.at("study") / "config.json"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")

    path.write(b"{}")

    assert path.local == tmp_path / "study" / "config.json"
    assert path.local.read_bytes() == b"{}"
    assert RemotePath.at("mock:///study").local is None
    assert absolute("s3://bucket/f") == "s3://bucket/f"
    assert absolute("f") == absolute(Path("f")) == str(tmp_path / "other" / "f")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_on_a_full_disk_the_old_file_stays(scheme, tmp_path):
    path = RemotePath.at(f"{scheme}{tmp_path}/study") / "state.pt"
    path.write(b"old")

    with room_for(5_000), pytest.raises(OSError, match="cannot be written: File too large"):
        path.write(bytes(10_000))

    assert path.read() == b"old"
    assert path.parent.names() == ["state.pt"]


def test_a_check_of_a_storage_leaves_nothing_behind(folder):
    (folder / "config.json").write(b"{}")

    folder.check_writable()

    assert folder.names() == ["config.json"]


def test_a_storage_that_cannot_be_written_is_refused_in_one_line(bucket, tmp_path):
    folder = RemotePath.at(tmp_path / "study")
    (folder / "file").write(b"")
    buckets = [bucket.location.replace(bucket.name, name) for name in ("no-bucket", "forbidden")]

    for storage in (folder / "file/study", *map(RemotePath.at, buckets)):
        message = f"^storage {re.escape(storage.location)} cannot be written: .+$"
        with pytest.raises(ValueError, match=message) as told:
            storage.check_writable()
        assert "\n" not in str(told.value)
    with room_for(0), pytest.raises(ValueError, match=r"cannot be written: File too large$"):
        folder.check_writable()
    assert folder.names() == ["file"]


def test_failed_requests_are_repeated_and_an_error_stays_an_os_error(bucket, monkeypatch):
    monkeypatch.setattr("cpaan.core.remote_paths._PAUSES", (0.0,) * 8)
    folder = bucket.root / "study"
    bucket.failures[bucket.name] = 0.1
    for _ in range(3):
        path = RemotePath.at((folder / "state.pt").location)
        path.write(b"state")
        assert path.is_file()
        assert folder.names() == ["state.pt"]
        assert path.read() == b"state"
        path.delete()
        assert path.read_if_exists() is None

    assert bucket.num_failures()
    bucket.failures[bucket.name] = 1.0
    for action in (partial(folder.write, b""), folder.read, folder.names, folder.delete):
        before = bucket.num_failures()
        with pytest.raises(OSError, match=f"{bucket.name}/study.* cannot be .*409") as told:
            action()
        assert type(told.value) is OSError
        assert bucket.num_failures() == before + 9


def test_a_request_that_is_denied_is_not_repeated(bucket, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("repeated"))

    with pytest.raises(OSError, match="ACCESS_DENIED"):
        RemotePath.at(bucket.location.replace(bucket.name, "forbidden/file")).read()


def test_an_address_that_does_not_answer_is_an_os_error_not_a_wrong_one(monkeypatch):
    answers = [OSError("no route to host"), OSError("no route to host"), ("files", "path")]

    def from_uri(uri: str) -> object:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("pyarrow.fs.FileSystem", SimpleNamespace(from_uri=from_uri))
    monkeypatch.setattr("cpaan.core.remote_paths._PAUSES", (0.0,))
    with pytest.raises(OSError, match=r"^s3://bucket cannot be used: no route to host$"):
        RemotePath.at("s3://bucket")
    assert RemotePath.at("s3://bucket").path == "path"


def remote_file(content: bytes, day: int, name: str = "f.parquet") -> RemotePath:
    """Return a file with the given day as its time of modification."""
    files = _MockFileSystem(datetime(2026, 1, day))
    with files.open_output_stream("f.parquet") as file:
        file.write(content)
    return RemotePath(f"mock:///{name}", files, "f.parquet")


def test_a_download_is_repeated_when_size_or_time_differ(tmp_path):
    old, new = remote_file(b"old", day=1), remote_file(b"new", day=2)

    copy = download(old, tmp_path)
    assert copy.read_bytes() == b"old"
    copy.write_bytes(b"x")
    assert download(old, tmp_path).read_bytes() == b"old"
    assert download(new, tmp_path) == copy
    assert copy.read_bytes() == b"new"
    assert download(old, tmp_path).read_bytes() == b"old"
    other = download(remote_file(b"other", day=1, name="other/f.parquet"), tmp_path)
    assert (copy.read_bytes(), other.read_bytes()) == (b"old", b"other")

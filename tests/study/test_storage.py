"""Files that several machines share: whole or not there at all."""

from pathlib import Path

import pytest

from cpaan.core.remote_paths import join
from cpaan.study.machines import MARK, check_this_machine
from cpaan.study.storage import Storage
from helpers.files import room_for


@pytest.fixture(params=["path", "file", "mock", "s3"])
def storage(request, tmp_path) -> Storage:
    """A folder, its address, and two file systems that are not the machine's."""
    if request.param == "s3":
        return Storage(join(request.getfixturevalue("bucket").location, "study"))
    locations = {
        "path": f"{tmp_path}/study",
        "file": f"file://{tmp_path}/study",
        "mock": "mock:///study",
    }
    return Storage(locations[request.param])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_reads_back_until_it_is_deleted(storage):
    storage.write("trials/0000.pt", b"first")
    assert storage.exists("trials/0000.pt")
    assert storage.read("trials/0000.pt") == b"first"

    storage.write("trials/0000.pt", b"2nd")
    assert storage.read("trials/0000.pt") == b"2nd"

    storage.delete("trials/0000.pt")
    assert not storage.exists("trials/0000.pt")
    assert storage.read("trials/0000.pt") is None


def test_what_is_not_there_is_none_and_can_be_deleted(storage):
    assert storage.read("missing") is None
    assert storage.read("no/such/folder/missing") is None
    assert not storage.exists("missing")
    storage.delete("missing")


def test_a_folder_is_no_file(storage):
    storage.write("trials/0000.pt", b"state")

    assert not storage.exists("trials")


def test_an_empty_file_is_a_file(storage):
    storage.write("empty", b"")

    assert storage.exists("empty")
    assert storage.read("empty") == b""


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_path_and_address_name_the_same_folder(scheme, tmp_path):
    storage = Storage(f"{scheme}{tmp_path}/study")

    storage.write("config.json", b"{}")

    assert storage.local == tmp_path / "study"
    assert (tmp_path / "study" / "config.json").read_bytes() == b"{}"


def test_a_relative_path_stays_where_it_was_meant(tmp_path, monkeypatch):
    storage = Storage("study")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    storage.write("config.json", b"{}")

    assert (tmp_path / "study" / "config.json").exists()


def test_another_file_system_is_not_local():
    assert Storage("mock:///study").local is None


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_folder_in_a_storage_is_a_storage_too(ending, tmp_path):
    location = f"file://{tmp_path}/study{ending}"

    Storage(join(location, "trials")).write("0000.pt", b"state")

    assert Storage(location).read("trials/0000.pt") == b"state"


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_where_there_is_no_room_the_old_file_stays(scheme, tmp_path):
    storage = Storage(f"{scheme}{tmp_path}/study")
    storage.write("state.pt", b"old")

    with room_for(5_000), pytest.raises(OSError, match="File too large"):
        storage.write("state.pt", bytes(10_000))

    assert storage.read("state.pt") == b"old"
    assert names_in(tmp_path / "study") == ["state.pt"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_check_leaves_nothing_behind(scheme, tmp_path):
    storage = Storage(f"{scheme}{tmp_path}/study")
    storage.write("config.json", b"{}")

    storage.check()

    assert names_in(tmp_path / "study") == ["config.json"]


def test_a_place_that_is_no_folder_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(ValueError, match=f"^storage {tmp_path}/file/study cannot be written: .+$"):
        Storage(f"{tmp_path}/file/study").check()


def test_a_place_without_room_is_refused_in_one_line(tmp_path):
    storage = Storage(f"{tmp_path}/study")

    with room_for(0), pytest.raises(ValueError, match=r"cannot be written: File too large$"):
        storage.check()

    assert names_in(tmp_path / "study") == []


@pytest.mark.parametrize("location", ["ftp://host/study", "nowhere://study", "file://study"])
def test_an_address_that_leads_nowhere_is_refused_in_one_line(location):
    with pytest.raises(ValueError, match=f"^storage {location} cannot be used: ") as refused:
        Storage(location)

    assert "\n" not in str(refused.value)


def test_a_machine_that_does_not_see_the_study_takes_no_work(tmp_path):
    """As one that comes late may not: its folder of that name is another one."""
    location = str(tmp_path / "shared")

    with pytest.raises(RuntimeError, match=f"does not see the study in {location}"):
        check_this_machine(location)

    Storage(location).write(MARK, b"of the machine that began")
    check_this_machine(location)

"""Test exclusive locks, and files that one of several processes makes."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpaan.core import files
from cpaan.core.files import find_or_make, is_on_network, locked, write_whole


def test_one_at_a_time_holds_a_lock_and_the_last_deletes_it(tmp_path):
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with locked(tmp_path / "deep" / "x.lock") as is_locked:
            assert is_locked
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.001)  # gives the other threads time to try
            inside.remove(number)
            if number % 7 == 0:
                raise ValueError("an error frees the lock")

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(work, number) for number in range(100)]

    assert most == [1] * 100
    assert sum(future.exception() is not None for future in futures) == 15
    assert not list((tmp_path / "deep").iterdir())


def test_without_locks_the_work_is_done_and_that_is_known(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError("no locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)

    with locked(tmp_path / "x.lock") as is_locked:
        assert not is_locked


def test_of_all_that_want_a_file_at_once_one_makes_it(tmp_path):
    path, made = tmp_path / "file", []

    def make(is_locked: bool) -> str:
        made.append(is_locked)
        write_whole(path, "content")
        return "content"

    def read(_number: int) -> str:
        return find_or_make(
            lambda: path.read_text() if path.exists() else None, make, tmp_path / "x.lock"
        )

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(20))) == ["content"] * 20

    assert made == [True]
    assert list(tmp_path.iterdir()) == [path]


def test_network_file_systems_are_known_by_their_mounts(tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "overlay / overlay rw 0 0\n"
        "server:/home /home nfs4 rw,vers=4.2 0 0\n"
        "/dev/sdb1 /home/me/local\\040disk ext4 rw 0 0\n"
        "scratch@tcp:/s /scratch lustre rw 0 0\n"
    )

    for path in ("/home/me/results/optuna.db", "/scratch/x"):
        assert is_on_network(Path(path), mounts)
    for path in ("/homes/x", "/home/me/local disk/results", "/tmp/x"):
        assert not is_on_network(Path(path), mounts)
    assert not is_on_network(tmp_path)

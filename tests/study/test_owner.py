"""Test the record of a study's owner in its storage."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from cpaan.core.remote_paths import RemotePath
from cpaan.study.owner import OWNER, owning
from helpers.waiting import wait_for


@pytest.fixture(params=["path", "s3"])
def storage(request, tmp_path) -> RemotePath:
    if request.param == "path":
        return RemotePath.at(tmp_path / "storage")
    return request.getfixturevalue("bucket").root / "study"


def leave_record(storage: RemotePath, host: str = "other-host", process: int = 7) -> None:
    """Write the record of an owner that does not renew it."""
    record = {"id": "a", "host": host, "process": process, "since": "2026-11-17T12:00:00+00:00"}
    (storage / OWNER).write(json.dumps(record).encode())


@contextmanager
def renewing(storage: RemotePath, **record: object) -> Iterator[None]:
    """Renew the record of another owner until the block ends."""
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(0.1):
            leave_record(storage, **record)

    leave_record(storage, **record)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(renew)
        yield
        is_over.set()
        done.result()


def test_a_second_machine_is_refused_while_the_first_renews_its_record(storage, capsys):
    who = "process 7 on other-host since 2026-11-17T12:00:00+00:00"

    with renewing(storage), pytest.raises(ValueError, match=f"is in use by {re.escape(who)}"):
        owning(storage, beat=1.5).__enter__()

    assert f"was used by {who}; waiting " in capsys.readouterr().err
    with owning(storage, beat=0.1):
        assert json.loads((storage / OWNER).read())["process"] == os.getpid()
    assert storage.names() == []


def test_the_record_of_a_dead_process_of_this_machine_is_taken_over(tmp_path):
    storage = RemotePath.at(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    here, alive = socket.gethostname(), os.getppid()

    leave_record(storage, here, dead.pid)
    with owning(storage):
        pass
    with (
        renewing(storage, host=here, process=alive),
        pytest.raises(ValueError, match=f"in use by process {alive} on {here}"),
    ):
        owning(storage).__enter__()


def test_the_owner_renews_its_record(tmp_path):
    file = RemotePath.at(tmp_path) / OWNER

    with owning(RemotePath.at(tmp_path), beat=0.01):
        first = file.info().mtime_ns
        wait_for(lambda: file.info().mtime_ns > first, 60, lambda: "not renewed")
        file.delete()  # as after a loss of the storage
        wait_for(file.is_file, 60, lambda: "not written again")
    assert not file.is_file()


@pytest.mark.slow
def test_a_process_whose_study_was_taken_over_ends(tmp_path):
    code = """
import sys, time
from cpaan.core.remote_paths import RemotePath
from cpaan.study.owner import owning
with owning(RemotePath.at(sys.argv[1]), beat=0.01):
    print("started", flush=True)
    time.sleep(300)
"""
    storage = RemotePath.at(tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True) as process:
        assert process.stdout.readline() == "started\n"
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            leave_record(storage)  # the process may write its own in between
        said = process.stderr.read()

    assert process.returncode == 1
    assert f"another process has taken over {tmp_path}" in said
    assert json.loads((storage / OWNER).read())["id"] == "a"

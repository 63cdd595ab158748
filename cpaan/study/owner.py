"""The owner of a study: a record in its storage that refuses a second machine at the same time."""

import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from cpaan.core.remote_paths import RemotePath

OWNER = ".owner.json"
_BEATS_UNTIL_STALE = 4
_LOOKS_PER_BEAT = 15


@contextmanager
def owning(storage: RemotePath, beat: float = 15.0) -> Iterator[None]:
    """Own the study in a storage until the block ends; a thread renews the record every ``beat`` s.

    The record of a process that has died here, or that has not renewed it for four beats, is taken
    over; this waits for that minute, because a requeued job starts at once. A process that finds
    another owner in its place ends at once, because both would write.

    Raises:
        ValueError: If another process owns the study.
    """
    file, identity = storage / OWNER, uuid.uuid4().hex
    _refuse_if_owned(storage, beat)
    record = {
        "id": identity,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    content = json.dumps(record).encode()
    is_over = threading.Event()

    def is_ours() -> bool:
        return (_read(file) or record)["id"] == identity  # a lost record is written again

    def renew() -> None:
        while not is_over.wait(beat):
            with suppress(OSError):  # the next beat may succeed
                if not is_ours():
                    sys.stderr.write(f"another process has taken over {storage.location}\n")
                    os._exit(1)
                file.write(content)

    file.write(content)
    if not is_ours():
        raise ValueError(f"another process has just started to use {storage.location}")
    thread = threading.Thread(target=renew, name="owner", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        with suppress(OSError):  # it becomes stale
            if is_ours():
                file.delete()


def _read(file: RemotePath) -> dict[str, Any] | None:
    content = file.read_if_exists()
    with suppress(ValueError):
        return None if content is None else dict(json.loads(content))
    return None


def _refuse_if_owned(storage: RemotePath, beat: float) -> None:
    """Return when no other process owns the study; wait until the record of a dead one is stale."""
    file, owner = storage / OWNER, _read(storage / OWNER)
    if owner is None or (owner["host"] == socket.gethostname() and not _is_other(owner["process"])):
        return
    # Both times are of the storage, because the clocks of two machines may differ.
    probe = storage / f"{OWNER}-{uuid.uuid4().hex}"
    probe.write(b"")
    now, renewed = probe.info().mtime, file.info().mtime
    probe.delete()
    seconds = (now - renewed).total_seconds() if now and renewed else 0.0
    who = f"process {owner['process']} on {owner['host']} since {owner['since']}"
    seconds_until_stale, seconds_between_looks = beat * _BEATS_UNTIL_STALE, beat / _LOOKS_PER_BEAT
    if seconds < seconds_until_stale:
        left = f"{seconds_until_stale - seconds:.0f} s"
        sys.stderr.write(f"{storage.location} was used by {who}; waiting {left} for its end\n")
    while seconds < seconds_until_stale:
        time.sleep(seconds_between_looks)
        seconds += seconds_between_looks
        try:
            is_renewed = file.info().mtime != renewed
        except FileNotFoundError:  # the owner has ended
            return
        if is_renewed:
            raise ValueError(f"{storage.location} is in use by {who}")


def _is_other(process: int) -> bool:
    """Return whether another process of this machine has the number."""
    with suppress(ProcessLookupError):
        with suppress(PermissionError):
            os.kill(process, 0)
        return process != os.getpid()
    return False

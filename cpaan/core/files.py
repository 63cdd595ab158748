"""Atomic writes, locks between processes, and serialised states of runs."""

import fcntl
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import torch

_T = TypeVar("_T")

_NETWORK = re.compile("nfs|cifs|smb|lustre|gpfs|beegfs|ceph|afs|9p|fuse|orangefs")
"""Beginnings of the names of file systems that machines share."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces ``path`` on success; after an error, ``path`` is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock until the block or the process ends; other processes wait.

    Yield False on a file system without locks. The lock file is deleted at the end.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            is_locked = is_current = False
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
                is_locked = True
                # If the previous owner has deleted the file, this lock excludes no process.
                is_current = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            if is_locked and not is_current:
                continue
            try:
                yield is_locked
            finally:
                path.unlink(missing_ok=True)
            return


def is_on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether a path is on a file system that other machines share."""
    if not mounts.exists():  # not on Linux
        return False
    lines = [line.split() for line in mounts.read_text().splitlines()]
    # The last of several mounts at one place counts.
    types = {Path(place.replace(r"\040", " ")): kind for _, place, kind, *_ in lines}
    kind = next(types[folder] for folder in (path, *path.parents) if folder in types)
    return _NETWORK.match(kind) is not None


def find_or_make(find: Callable[[], _T | None], make: Callable[[bool], _T], lock: Path) -> _T:
    """Return the result of ``find``, or of ``make`` in one process while others wait.

    Args:
        find: Returns None if the result has to be made.
        make: Called with whether the lock is held; if so, it may delete files of killed processes.
        lock: Path of the lock file.
    """
    if (result := find()) is not None:
        return result
    with locked(lock) as is_locked:
        result = find()  # another process may have made it in the meantime
        return make(is_locked) if result is None else result


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Serialise the state of a run; torch.save to a full disk would not raise OSError."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpack_state(content: bytes) -> dict[str, Any]:
    """Deserialise a state onto the CPU; refuse content that carries code."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)

"""Files that appear whole, locks between processes, and states of runs."""

import fcntl
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypeVar

import torch

_T = TypeVar("_T")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` when it is complete; on errors the old file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold an exclusive lock until the end or the process exits; other processes block.

    Yields whether the lock is held: some file systems have none. The lock file is deleted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            is_locked = is_current = False
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
                is_locked = True
                # If the previous owner has deleted the file, the lock keeps nobody out.
                is_current = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            if is_locked and not is_current:
                continue
            try:
                yield is_locked
            finally:
                path.unlink(missing_ok=True)
            return


def find_or_make(find: Callable[[], _T | None], make: Callable[[bool], _T], lock: Path) -> _T:
    """Return what ``find`` returns, or make it in one process while others wait.

    Args:
        find: Returns None if it has to be made.
        make: Gets whether the lock is held, so that leftovers of killed processes can be deleted.
        lock: Path of the lock file.
    """
    if (found := find()) is not None:
        return found
    with locked(lock) as is_locked:
        found = find()  # another process may have made it meanwhile
        return make(is_locked) if found is None else found


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a run, whole or not at all."""
    with replacing(path) as file:
        # Given the file, torch.save would not raise OSError when the disk is full.
        file.write(pack_state(state))


def load_state(path: Path) -> dict[str, Any]:
    """Return what `save_state` wrote, on the CPU; ValueError if it cannot be read."""
    try:
        return unpack_state(path.read_bytes())
    except Exception as error:  # unpickling a damaged file can raise anything
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot resume from {path}: {reason}") from error


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Return the state of a run as the content of a file."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpack_state(content: bytes) -> dict[str, Any]:
    """Return what `pack_state` packed, on the CPU; a file that carries code is refused."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state

"""Files that are never seen half-written, and work that one process does for all."""

import fcntl
import io
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when all of it is written, and not before.

    Should writing fail, what was there before stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Keep other processes of this machine out, until the end or our death; they wait.

    Gives whether it could: some file systems have no locks. The file is gone afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            is_alone = False
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
                is_alone = True
            # Whoever was in before us took the file away: who comes next does not meet us there.
            if is_alone and not _is_at(path, file.fileno()):
                continue
            try:
                yield is_alone
            finally:
                path.unlink(missing_ok=True)
            return


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the state of a run, whole or not at all.

    Raises:
        OSError: If it cannot be written; given the file, torch.save would raise something else.
    """
    with replacing(path) as file:
        file.write(pack_state(state))


def load_state(path: Path) -> dict[str, Any]:
    """Return what `save_state` wrote, on the CPU; a file that carries code is refused.

    Raises:
        ValueError: If it cannot be read.
    """
    try:
        return unpack_state(path.read_bytes())
    except Exception as error:  # what unpickling a damaged file raises is anybody's guess
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot go on from {path}: {reason}") from error


def pack_state(state: Mapping[str, Any]) -> bytes:
    """Return the state of a run as the content of a file."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def unpack_state(content: bytes) -> dict[str, Any]:
    """Return what `pack_state` was given, on the CPU; a file that carries code is refused."""
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state

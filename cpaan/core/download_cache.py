"""Files of elsewhere, on this machine: copied once, by one process while the others wait."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cpaan.core.files import locked, replacing
from cpaan.core.remote_paths import Place


def copy_here(place: Place, folder: Path, progress: Callable[[str], None] | None = None) -> Path:
    """Return a copy of a file, made anew where the file's size or time have changed since.

    The copy has the time of what it is a copy of, and takes its place when it is whole: a process
    that dies on the way leaves nothing that another would take for one.

    Args:
        place: Of the file.
        folder: Where copies are kept.
        progress: Is told, in a line, what is copied.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it cannot be read, or changes meanwhile.
    """
    key = hashlib.blake2b(place.location.encode(), digest_size=8).hexdigest()
    copy = folder / key / Path(place.path).name
    if _is_copy(copy, _state_of(place)):
        return copy
    with locked(folder / f".{key}.lock") as is_alone:
        state = _state_of(place)
        if _is_copy(copy, state):
            return copy  # another process was first
        if is_alone:
            for left in set(copy.parent.glob("*")) - {copy}:  # by a process that died
                left.unlink()
        if progress:
            progress(f"copying {place.location}, {state.size / 1e6:.1f} MB, to {folder}")
        with replacing(copy) as file:
            for chunk in place.chunks():
                file.write(chunk)
            file.flush()
            os.utime(file.fileno(), ns=(state.time_ns, state.time_ns))
            # Chunks come one by one: some of them may be of another file than the others.
            if _state_of(place) != state or file.tell() != state.size:
                raise ValueError(f"{place.location} changed while it was copied")
    return copy


@dataclass(frozen=True)
class _State:
    """What changes with a file."""

    size: int
    time_ns: int


def _state_of(place: Place) -> _State:
    info = place.info()
    return _State(info.size, info.mtime_ns or 0)  # not every file system has times


def _is_copy(copy: Path, state: _State) -> bool:
    try:
        found = copy.stat()
    except FileNotFoundError:
        return False
    return _State(found.st_size, found.st_mtime_ns) == state

"""Files that are never seen half-written."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


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


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())

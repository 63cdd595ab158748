"""Files by path or address (``s3://bucket/file``), on any file system that pyarrow supports."""

import hashlib
import os
import re
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import pyarrow as pa
from pyarrow import fs

from cpaan.core.files import find_or_make, replacing

_CHUNK_BYTES = 16 << 20  # of a remote file; a chunk is one request
_MAX_REASON = 400  # characters of a library's error; the one about a missing Java has thousands
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds between attempts; some take seconds themselves
_PERMANENT = re.compile(
    "ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|permission|NO_SUCH|no such|not found"
    "|HTTP status 40[134]|libjvm",
    re.IGNORECASE,
)
"""Errors of file systems that another attempt does not change."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class RemotePath:
    """A local file or folder, given by its path, or a remote one, given by its address.

    Methods raise FileNotFoundError for a missing file, and an OSError of one line for a file that
    cannot be reached. Remote requests are repeated with growing pauses before that.
    """

    location: str
    """Path or address."""
    files: fs.FileSystem
    path: str
    """Path within ``files``."""

    @classmethod
    def at(cls, location: str | Path) -> Self:
        """Create from a path or address.

        Raises:
            ValueError: If an address has credentials in it, or no file system supports it.
            OSError: If the file system cannot be reached.
        """
        uri = location = str(location)
        if not is_address(location):
            return cls(location, fs.LocalFileSystem(), str(Path(location).absolute()))
        refuse_credentials(location)
        if uri.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:
            # By default Arrow retries for 15 minutes; for S3, it retries for six seconds.
            uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds=15"
        try:
            return cls(location, *_repeating(partial(fs.FileSystem.from_uri, uri)))
        except (pa.ArrowException, OSError, ValueError) as error:
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(f"{location} cannot be used: {_reason(error)}") from error

    @property
    def local(self) -> Path | None:
        """Local path, or None for a remote file."""
        return Path(self.path) if isinstance(self.files, fs.LocalFileSystem) else None

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Self:
        """Folder that contains it."""
        if not is_address(self.location):
            return type(self).at(Path(self.location).parent)
        address, mark, query = self.location.partition("?")
        folder = f"{address.rpartition('/')[0]}{mark}{query}"
        return type(self)(folder, self.files, self.path.rpartition("/")[0])

    def __truediv__(self, name: str) -> Self:
        return type(self)(join(self.location, name), self.files, f"{self.path}/{name}")

    def info(self) -> fs.FileInfo:
        """Return the size, modification time and type."""
        info = self._request("reached", lambda: self.files.get_file_info(self.path))
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"no such file: {self.location}")
        return info

    def is_file(self) -> bool:
        """Return whether this exists and is a file."""
        try:
            return bool(self.info().type == fs.FileType.File)
        except FileNotFoundError:
            return False

    def is_folder(self) -> bool:
        """Return whether this is a folder; raise FileNotFoundError if it does not exist."""
        return bool(self.info().type == fs.FileType.Directory)

    def names(self) -> list[str]:
        """Return the sorted names of the files directly in this folder."""
        folder = fs.FileSelector(self.path)
        entries = self._request("listed", lambda: self.files.get_file_info(folder))
        return sorted(entry.base_name for entry in entries if entry.type == fs.FileType.File)

    def chunks(self) -> Iterator[bytes]:
        """Iterate over the content of the file."""
        if self.local is not None:
            yield self._request("read", self.local.read_bytes)  # gives shorter errors than Arrow
            return
        with self._request("read", lambda: self.files.open_input_file(self.path)) as file:
            position = 0
            while chunk := self._request("read", partial(file.read_at, _CHUNK_BYTES, position)):
                yield chunk
                position += len(chunk)

    def read(self) -> bytes:
        """Return the content of the file."""
        return b"".join(self.chunks())

    def read_if_exists(self) -> bytes | None:
        """Return the content of the file, or None if it is missing."""
        try:
            return self.read()
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> None:
        """Replace the file atomically; create its folder if it is missing."""

        def write() -> None:
            if self.local is not None:
                with replacing(self.local) as local_file:
                    local_file.write(content)
                return
            self.files.create_dir(self.path.rpartition("/")[0], recursive=True)
            # The new content appears when the file is closed.
            with self.files.open_output_stream(self.path, compression=None) as file:
                file.write(content)

        self._request("written", write)

    def delete(self) -> None:
        """Delete the file if it exists."""
        with suppress(FileNotFoundError):
            self._request("deleted", lambda: self.files.delete_file(self.path))

    def check_writable(self) -> None:
        """Raise ValueError unless a file in this folder can be written, read and deleted."""
        probe = self / ".written-and-read-back"
        try:
            probe.write(b"x")
            probe.read()
            probe.delete()
        except OSError as error:
            cause = _reason(error.__cause__ or error)
            raise ValueError(f"storage {self.location} cannot be written: {cause}") from error

    def _request(self, action: str, request: Callable[[], _T]) -> _T:
        """Return the result of a request; re-raise its errors in one line with the location."""
        try:
            return request() if self.local is not None else _repeating(request)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"no such file: {self.location}") from error
        except (pa.ArrowException, OSError) as error:
            raise OSError(f"{self.location} cannot be {action}: {_reason(error)}") from error


def _repeating(request: Callable[[], _T]) -> _T:
    """Return the result of a request; repeat it after errors that may pass."""
    for pause in _PAUSES:
        try:
            return request()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError as error:
            if _PERMANENT.search(str(error)):
                raise
        time.sleep(pause)
    return request()


def download(
    source: RemotePath, folder: Path, progress: Callable[[str], None] | None = None
) -> Path:
    """Return a local copy of a remote file in a cache folder; download it again after a change.

    The copy is written atomically and has the size and time of its source. One process downloads
    it; others on this machine wait. Raise OSError if the file changes during the download.
    """
    key = hashlib.blake2b(source.location.encode(), digest_size=8).hexdigest()
    copy = folder / key / Path(source.path).name

    def find() -> Path | None:
        is_same = copy.exists() and _state(RemotePath.at(copy)) == _state(source)
        return copy if is_same else None

    def make(is_locked: bool) -> Path:
        state = size, time_ns = _state(source)
        if is_locked:
            for partial in copy.parent.glob(".*"):  # left by a killed process
                partial.unlink()
        if progress:
            progress(f"copying {source.location} to {folder} ({size / 1e6:.1f} MB)")
        with replacing(copy) as file:
            for chunk in source.chunks():
                file.write(chunk)
            file.flush()
            os.utime(file.fileno(), ns=(time_ns, time_ns))
            # Chunks are separate requests, so they may come from different versions.
            if _state(source) != state or file.tell() != size:
                raise OSError(f"{source.location} changed during the copy; run the command again")
        return copy

    return find_or_make(find, make, folder / f".{key}.lock")


def _state(path: RemotePath) -> tuple[int, int]:
    info = path.info()
    return info.size, info.mtime_ns or 0  # some file systems have no times


def is_address(location: str | Path) -> bool:
    """Return whether a location is an address rather than a path."""
    return "://" in str(location)


def refuse_credentials(text: str) -> None:
    """Raise ValueError, without the secret, if a text has an address with a password or a key.

    Addresses are written to logs, to the records of a study and to the metadata of jobs.
    """
    in_query = r".*[?&]\w*(key|secret|token|password)\w*="
    # A colon before a number is that of a port.
    if re.search(rf"://([^/?:]*:(?!\d+/)[^?]*@|{in_query})", text):
        raise ValueError(
            "an address must not have credentials in it; use environment variables such as "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of the machine"
        )


def absolute(location: str | Path) -> str:
    """Make a location independent of the working directory."""
    return str(location) if is_address(location) else str(Path(location).absolute())


def join(location: str, name: str) -> str:
    """Append a name to the location of a folder; the query of an address stays at its end."""
    if not is_address(location):
        return str(Path(location) / name)
    folder, mark, query = location.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return textwrap.shorten(str(error), _MAX_REASON, placeholder=" ...")

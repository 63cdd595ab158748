"""Files by path or address (``s3://bucket/file``), on any file system that pyarrow knows."""

import hashlib
import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow import fs

from cpaan.core.files import find_or_make, replacing

_CHUNK_BYTES = 16 << 20  # of a remote file, each a request of its own
_MAX_REASON = 400  # characters of an error of others: that of a missing Java has thousands


@dataclass(frozen=True)
class RemotePath:
    """A file or folder: of this machine by its path, of any other place by its address.

    Methods raise FileNotFoundError for a missing file, and OSError with one line where a file
    cannot be reached.
    """

    location: str
    """The path or address."""
    files: fs.FileSystem
    path: str
    """In the file system."""

    @classmethod
    def at(cls, location: str | Path) -> Self:
        """Find the file system of a path or address; ValueError if there is none."""
        uri = location = str(location)
        if not is_address(location):
            return cls(location, fs.LocalFileSystem(), str(Path(location).absolute()))
        if uri.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:
            # By default Arrow retries for a quarter of an hour; of S3, for less than a minute.
            uri += f"{'&' if '?' in uri else '?'}retry_limit_seconds=15"
        try:
            return cls(location, *fs.FileSystem.from_uri(uri))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{location} cannot be used: {_reason(error)}") from error

    @property
    def local(self) -> Path | None:
        """The path, if it is on this machine."""
        return Path(self.path) if isinstance(self.files, fs.LocalFileSystem) else None

    @property
    def parent(self) -> Self:
        """The folder that holds it."""
        if not is_address(self.location):
            return type(self).at(Path(self.location).parent)
        address, mark, query = self.location.partition("?")
        folder = f"{address.rpartition('/')[0]}{mark}{query}"
        return type(self)(folder, self.files, self.path.rpartition("/")[0])

    def __truediv__(self, name: str) -> Self:
        return type(self)(join(self.location, name), self.files, f"{self.path}/{name}")

    def info(self) -> fs.FileInfo:
        """Return size, time and type."""
        with self._naming("reached"):
            info = self.files.get_file_info(self.path)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(f"no such file: {self.location}")
        return info

    def is_file(self) -> bool:
        """Return whether there is a file; a folder is not one."""
        try:
            return bool(self.info().type == fs.FileType.File)
        except FileNotFoundError:
            return False

    def is_folder(self) -> bool:
        """Return whether it is a folder; FileNotFoundError if there is nothing."""
        return bool(self.info().type == fs.FileType.Directory)

    def names(self) -> list[str]:
        """Return the sorted names of a folder's own files."""
        with self._naming("listed"):
            found = self.files.get_file_info(fs.FileSelector(self.path))
        return sorted(each.base_name for each in found if each.type == fs.FileType.File)

    def chunks(self) -> Iterator[bytes]:
        """Iterate over the content of a file."""
        with self._naming("read"):
            if self.local is not None:
                yield self.local.read_bytes()  # its errors are shorter than Arrow's
                return
            # By default Arrow decompresses what a name such as f.gz promises.
            with self.files.open_input_stream(self.path, compression=None) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk

    def read(self) -> bytes:
        """Return the content of a file."""
        return b"".join(self.chunks())

    def read_if_exists(self) -> bytes | None:
        """Return the content of a file, or None if it is missing."""
        try:
            return self.read()
        except FileNotFoundError:
            return None

    def write(self, content: bytes) -> None:
        """Replace a file, whole or not at all; make its folder if it is missing."""
        with self._naming("written"):
            if self.local is not None:
                with replacing(self.local) as local_file:
                    local_file.write(content)
                return
            self.files.create_dir(self.path.rpartition("/")[0], recursive=True)
            # The file appears when it is closed.
            with self.files.open_output_stream(self.path, compression=None) as file:
                file.write(content)

    def delete(self) -> None:
        """Delete a file if it exists."""
        if self.is_file():
            with self._naming("deleted"):
                self.files.delete_file(self.path)

    def check_writable(self) -> None:
        """Write a file into this folder, read it and delete it; ValueError if that fails."""
        probe = self / ".written-and-read-back"
        try:
            probe.write(b"x")
            probe.read()
            probe.delete()
        except OSError as error:
            cause = _reason(error.__cause__ or error)
            raise ValueError(f"storage {self.location} cannot be written: {cause}") from error

    @contextmanager
    def _naming(self, action: str) -> Iterator[None]:
        """Raise errors of file systems with the location and one line."""
        try:
            yield
        except FileNotFoundError as error:
            raise FileNotFoundError(f"no such file: {self.location}") from error
        except (pa.ArrowException, OSError) as error:
            raise OSError(f"{self.location} cannot be {action}: {_reason(error)}") from error


def download(
    source: RemotePath, folder: Path, progress: Callable[[str], None] | None = None
) -> Path:
    """Return a copy of a remote file in a cache folder; download it again when it has changed.

    The copy has the size and time of its source and appears whole. One process downloads it, and
    others on this machine wait. ValueError if the file changes during the download.
    """
    key = hashlib.blake2b(source.location.encode(), digest_size=8).hexdigest()
    copy = folder / key / Path(source.path).name

    def find() -> Path | None:
        is_same = copy.exists() and _state(RemotePath.at(copy)) == _state(source)
        return copy if is_same else None

    def make(is_locked: bool) -> Path:
        state = size, time_ns = _state(source)
        if is_locked:
            for partial in copy.parent.glob(".*"):  # of a process that was killed
                partial.unlink()
        if progress:
            progress(f"copying {source.location}, {size / 1e6:.1f} MB, to {folder}")
        with replacing(copy) as file:
            for chunk in source.chunks():
                file.write(chunk)
            file.flush()
            os.utime(file.fileno(), ns=(time_ns, time_ns))
            # Chunks are separate requests, so they may belong to different files.
            if _state(source) != state or file.tell() != size:
                raise ValueError(f"{source.location} changed while it was copied")
        return copy

    return find_or_make(find, make, folder / f".{key}.lock")


def _state(path: RemotePath) -> tuple[int, int]:
    info = path.info()
    return info.size, info.mtime_ns or 0  # some file systems have no times


def is_address(location: str | Path) -> bool:
    """Return whether a location is an address and not a path."""
    return "://" in str(location)


def absolute(location: str | Path) -> str:
    """Return a location that does not depend on the working directory."""
    return str(location) if is_address(location) else str(Path(location).absolute())


def join(location: str, name: str) -> str:
    """Return the location of a name in a folder; the query of an address stays at its end."""
    if not is_address(location):
        return str(Path(location) / name)
    folder, mark, query = location.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return textwrap.shorten(str(error), _MAX_REASON, placeholder=" ...")

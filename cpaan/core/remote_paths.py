"""Files by path or by address (``s3://bucket/file``): where they are, and what is there."""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.fs

_CHUNK_BYTES = 16 << 20  # of a file elsewhere, each a request of its own
_GOOGLE_LIMIT = "retry_limit_seconds=15"  # by itself Arrow tries for a quarter of an hour
_MOST_LETTERS = 400  # of an error of others: that of a missing Java has thousands


@dataclass(frozen=True)
class Place:
    """A file or a folder: of this machine by its path, of any other place by its address."""

    location: str
    """The path or address."""
    files: pyarrow.fs.FileSystem
    path: str
    """In the file system."""

    @classmethod
    def at(cls, location: str | Path) -> Self:
        """Find the file system of a path, or of an address that pyarrow knows.

        Raises:
            ValueError: If there is none for such an address.
        """
        location = str(location)
        if not is_address(location):
            return cls(location, pyarrow.fs.LocalFileSystem(), str(Path(location).absolute()))
        try:
            return cls(location, *pyarrow.fs.FileSystem.from_uri(_bounded(location)))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"{location} cannot be used: {reason(error)}") from error

    @property
    def local(self) -> Path | None:
        """The path, where it is one of this machine's."""
        is_local = isinstance(self.files, pyarrow.fs.LocalFileSystem)
        return Path(self.path) if is_local else None

    def child(self, name: str) -> Self:
        """Return what has this name in the folder."""
        return type(self)(join(self.location, name), self.files, f"{self.path}/{name}")

    def info(self) -> pyarrow.fs.FileInfo:
        """Return what is there.

        Raises:
            FileNotFoundError: If that is nothing.
            ValueError: If it cannot be found out.
        """
        try:
            info = self.files.get_file_info(self.path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self.location} cannot be reached: {reason(error)}") from error
        if info.type == pyarrow.fs.FileType.NotFound:
            raise FileNotFoundError(f"no such file: {self.location}")
        return info

    def exists(self) -> bool:
        """Return whether there is anything; raises ValueError as `info` does."""
        try:
            return self.info() is not None
        except FileNotFoundError:
            return False

    def is_folder(self) -> bool:
        """Return whether it is a folder; raises what `info` does."""
        return bool(self.info().type == pyarrow.fs.FileType.Directory)

    def names(self) -> list[str]:
        """Return the names of a folder's own files, sorted.

        Raises:
            ValueError: If they cannot be listed.
        """
        try:
            found = self.files.get_file_info(pyarrow.fs.FileSelector(self.path))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self.location} cannot be listed: {reason(error)}") from error
        return sorted(each.base_name for each in found if each.type == pyarrow.fs.FileType.File)

    def read(self) -> bytes:
        """Return the content of a file; raises what `chunks` does."""
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """Go through the content of a file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it cannot be read.
        """
        try:
            if self.local is not None:
                yield self.local.read_bytes()  # says what is wrong in fewer words than Arrow
                return
            # Not decompressed by its name, which is what Arrow does unless told.
            with self.files.open_input_stream(self.path, compression=None) as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise FileNotFoundError(f"no such file: {self.location}") from None
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self.location} cannot be read: {reason(error)}") from error


def is_address(location: str | Path) -> bool:
    """Return whether it is an address and no path."""
    return "://" in str(location)


def absolute(location: str | Path) -> str:
    """Return a location that means the same in every folder."""
    return str(location) if is_address(location) else str(Path(location).absolute())


def join(location: str, name: str) -> str:
    """Return the location of what is in a folder; what an address asks for stays at its end."""
    if not is_address(location):
        return str(Path(location) / name)
    folder, mark, query = location.partition("?")
    return f"{folder.rstrip('/')}/{name}{mark}{query}"


def folder_of(location: str) -> str:
    """Return the location of the folder that a file is in."""
    if not is_address(location):
        return str(Path(location).parent)
    file, mark, query = location.partition("?")
    return f"{file.rpartition('/')[0]}{mark}{query}"


def reason(error: BaseException) -> str:
    """Return what an error says, in one line and no more than a few."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return textwrap.shorten(str(error), _MOST_LETTERS, placeholder=" ...")


def _bounded(address: str) -> str:
    """Return an address that asks for errors within a minute; S3 takes seconds by itself."""
    scheme = address.partition("://")[0]
    if scheme not in ("gs", "gcs") or "retry_limit_seconds" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}{_GOOGLE_LIMIT}"

"""Where a study keeps what its machines share: a folder, or any place that pyarrow can write to."""

from pathlib import Path

import pyarrow.fs

from cpaan.core.files import replacing
from cpaan.core.remote_paths import Place, reason

_CHECK = ".written-and-read-back"


class Storage:
    """A folder by its path or address (``s3://bucket/folder``); its files by their names in it.

    A file is replaced whole or not at all, so that whoever reads finds a complete one.
    """

    def __init__(self, location: str) -> None:
        """Find the file system.

        Raises:
            ValueError: If there is none for such an address.
        """
        self.location = location
        try:
            self._place = Place.at(location)
        except ValueError as error:
            raise ValueError(f"storage {error}") from error
        self._files = self._place.files

    @property
    def local(self) -> Path | None:
        """The folder, where it is one of this machine's."""
        return self._place.local

    def exists(self, name: str) -> bool:
        """Return whether there is such a file."""
        info = self._files.get_file_info(self._path(name))
        return bool(info.type == pyarrow.fs.FileType.File)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is no such file."""
        try:
            with self._files.open_input_stream(self._path(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a file in the place of what is there.

        Raises:
            OSError: If it cannot be written; what was there stays.
        """
        if self.local is not None:
            with replacing(self.local / name) as local_file:
                local_file.write(content)
            return
        path = self._path(name)
        self._files.create_dir(path.rpartition("/")[0], recursive=True)
        with self._files.open_output_stream(path) as file:  # appears when it is closed
            file.write(content)

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""
        if self.exists(name):
            self._files.delete_file(self._path(name))

    def check(self) -> None:
        """Find out whether files can be written and read back, and leave nothing behind.

        Raises:
            ValueError: If they cannot.
        """
        try:
            self.write(_CHECK, b"x")
            is_same = self.read(_CHECK) == b"x"
            self.delete(_CHECK)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"storage {self.location} cannot be written: {reason(error)}"
            ) from error
        if not is_same:
            raise ValueError(f"storage {self.location} does not give back what was written")

    def _path(self, name: str) -> str:
        return f"{self._place.path}/{name}"

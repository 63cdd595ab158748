"""Buckets of the tests' own S3 server."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs

from cpaan.core.remote_paths import Place, join


@dataclass(frozen=True)
class Bucket:
    """A bucket of the tests' own S3."""

    location: str
    requests: list[tuple[str, str]]
    """What the server was asked: method and path, which begins with the bucket's name."""

    @property
    def name(self) -> str:
        return self.place().path

    def place(self, path: str | None = None) -> Place:
        return Place.at(join(self.location, path) if path else self.location)

    def put(self, path: str, content: bytes | Path) -> str:
        """Put an object in the place of what is there, and return its address."""
        place = self.place(path)
        with place.files.open_output_stream(place.path, compression=None) as file:
            file.write(content.read_bytes() if isinstance(content, Path) else content)
        return place.location

    def names(self) -> list[str]:
        """Return the paths of all objects."""
        selector = pyarrow.fs.FileSelector(self.name, recursive=True)
        found = self.place().files.get_file_info(selector)
        return sorted(
            each.path.removeprefix(f"{self.name}/")
            for each in found
            if each.type == pyarrow.fs.FileType.File
        )

    def num_downloads(self, path: str) -> int:
        return self.requests.count(("GET", f"/{self.name}/{path}"))

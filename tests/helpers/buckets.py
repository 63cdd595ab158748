"""Buckets of the S3 server of the tests."""

from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from cpaan.core.remote_paths import RemotePath


@dataclass(frozen=True)
class Bucket:
    """A bucket of the S3 server of the tests."""

    location: str
    requests: list[tuple[str, str]]
    """Requests to the server: method and path, which starts with the name of the bucket."""
    failures: dict[str, float]
    """Share of the requests that fail, by the name of the bucket. They are in ``requests`` twice,
    the second time with "failed" as the method."""

    @property
    def root(self) -> RemotePath:
        return RemotePath.at(self.location)

    @property
    def name(self) -> str:
        return self.root.path

    def put(self, path: str, content: bytes | Path) -> str:
        """Write an object and return its URL."""
        target = self.root / path
        target.write(content.read_bytes() if isinstance(content, Path) else content)
        return target.location

    def names(self) -> list[str]:
        """Return the paths of all objects."""
        infos = self.root.files.get_file_info(fs.FileSelector(self.name, recursive=True))
        paths = [info.path for info in infos if info.type == fs.FileType.File]
        return sorted(path.removeprefix(f"{self.name}/") for path in paths)

    def num_failures(self) -> int:
        paths = [path for method, path in self.requests if method == "failed"]
        return sum(path.startswith(f"/{self.name}") for path in paths)

    def num_downloads(self, path: str) -> int:
        return self.requests.count(("GET", f"/{self.name}/{path}"))

"""A study: a list of rows that are searched and reported together, and their folder.

A single row has its files in the folder itself; several rows have subfolders. ``config.json``
describes all rows.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from cpaan.core.files import is_on_network
from cpaan.core.provenance import describe_run
from cpaan.core.remote_paths import RemotePath, join
from cpaan.evaluation.job import Job
from cpaan.study.config import StudyConfig
from cpaan.study.owner import owning
from cpaan.study.row import Resolved, StudyRow

CONFIG, TRIALS, BEST, OPTUNA = "config.json", "trials.parquet", "best.json", "optuna.db"
TENSORBOARD, LOG = "tensorboard", "study.log"
CLUSTER = "cluster.txt"
"""File on the user's machine with the path of the cluster file with which the study was run."""


@dataclass(frozen=True)
class Study:
    """A list of rows, and the location of their files."""

    rows: tuple[StudyRow, ...]
    folder: Path
    """Folder on this machine."""
    shared: str | None = None
    """Location of a storage that all machines can access; None if that is the folder."""
    has_row_folders: bool = False
    """Whether each row has its own subfolder, as in a study with several rows."""

    @property
    def storage(self) -> str:
        """Location of the trials' checkpoints."""
        return self.shared or str(self.folder.absolute())

    @property
    def config(self) -> StudyConfig:
        """Settings that all rows share: resources, seeds and numbers of trials."""
        return self.rows[0].config

    def path_of(self, row: StudyRow, name: str = "") -> str:
        """Return the path of a row's file in the folder of the study."""
        return f"{row.method}/{name}" if self.has_row_folders else name

    def job(self, row: StudyRow, number: int, resolved: Resolved, seed: int, file: str = "") -> Job:
        """Return the job that trains a trial's settings with a seed, without evaluation steps.

        ``file`` names the checkpoint of a training that is not the trial's own.
        """
        return Job(
            row=row.method,
            method=row.method,
            training=resolved.training,
            embedding=row.embedding,
            evaluation=resolved.evaluation,
            seed=seed,
            data=row.data,
            device="cuda" if row.config.gpus_per_worker else "cpu",
            checkpoint=join(self.storage, self.checkpoint_of(row, number, seed, file)),
            # A machine that was lost before its records were copied may have left a checkpoint of
            # another training under this number.
            replaces_checkpoint=True,
        )

    def checkpoint_of(self, row: StudyRow, number: int, seed: int, file: str = "") -> str:
        """Return the path of a trial's checkpoint in the storage."""
        return self.path_of(row, f"{file or f'trials/{number:04d}'}-seed{seed}.pt")

    def write_file(self, name: str, content: str | bytes) -> None:
        """Write a file to the folder and its copy to the storage, each atomically."""
        data = content.encode() if isinstance(content, str) else content
        for place in self._places():
            (place / name).write(data)

    def delete_file(self, name: str) -> None:
        """Delete a file of the folder and its copy, if they exist."""
        for place in self._places():
            (place / name).delete()

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file."""
        self.write_file(name, json.dumps(content, indent=1, allow_nan=False) + "\n")

    def database_of(self, row: StudyRow) -> Path:
        """Return the path of a row's Optuna study on a local disk.

        SQLite needs locks that do not work on network file systems. If the folder is on one, its
        file is a copy, as in a remote storage, and a search starts from that copy.
        """
        published = (self.folder / self.path_of(row, OPTUNA)).resolve()
        if not is_on_network(published):
            return published
        return Path(tempfile.gettempdir(), f"cpaan-{os.getuid()}", *published.parts[1:])

    def read_best(self, row: StudyRow) -> dict[str, Any]:
        """Return the result of a row's search."""
        return read_json(self.folder, self.path_of(row, BEST))

    def has_best(self, row: StudyRow) -> bool:
        """Return whether the search of a row has a result."""
        return (self.folder / self.path_of(row, BEST)).exists()

    @property
    def copy(self) -> RemotePath | None:
        """Storage that files are copied to; None if it is the folder itself."""
        storage = RemotePath.at(self.storage)
        is_folder = storage.local is not None and storage.local.resolve() == self.folder.resolve()
        return None if is_folder else storage

    def _places(self) -> list[RemotePath]:
        return [RemotePath.at(self.folder), *([] if self.copy is None else [self.copy])]

    def write(self) -> None:
        """Write ``config.json``, with every command that has worked on the study so far."""
        exists = (self.folder / CONFIG).exists()
        runs = [*(read_json(self.folder, CONFIG)["runs"] if exists else []), describe_run()]
        rows = [row.describe() for row in self.rows]
        self.write_json(CONFIG, {"runs": runs, "storage": self.shared, "rows": rows})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold an exclusive lock on the study; refuse if another process or machine does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process dies
            except BlockingIOError:
                raise ValueError(f"another process is using the study {self.folder}") from None
            with owning(RemotePath.at(self.storage)):
                yield

    def with_config(self, **overrides: Any) -> Self:
        """Return a copy of the study with settings changed in all rows."""
        rows = [replace(row, config=row.config.with_overrides(overrides)) for row in self.rows]
        return replace(self, rows=tuple(rows))


def read_study(folder: Path, location: str | None = None) -> Study:
    """Return the study in a folder, or its copy in a storage; refuse one of an older version."""
    place = location or folder
    content = read_json(place, CONFIG)
    if "rows" not in content:
        raise ValueError(
            f"{place} was started by an older version and cannot be resumed or reported; redraw "
            "the page of its report with: python tune/report.py --redraw"
        )
    try:
        rows = tuple(StudyRow.from_dict(row) for row in content["rows"])
        return Study(rows, folder, content["storage"], has_row_folders=len(rows) > 1)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place}/{CONFIG} cannot be read: {error}") from error


def download_study(location: str, folder: Path) -> None:
    """Copy what resuming or reporting needs to this machine; refuse a storage without a study."""
    study = read_study(folder, location)
    storage, here = RemotePath.at(location), RemotePath.at(folder)
    files = [study.path_of(row, name) for row in study.rows for name in (BEST, OPTUNA)]
    for name in (*files, CONFIG):  # config.json last, because it marks the folder as a study
        if (content := (storage / name).read_if_exists()) is not None:
            (here / name).write(content)


def find_study(name: str | None, results: Path) -> Path:
    """Return the folder of a study by its name or path; by default the newest, if there is any."""
    if name is None:
        marks = [*results.glob(f"*/{CONFIG}"), *results.glob(f"*/{CLUSTER}")]
        if not marks:
            raise ValueError(f"{results}/ has no study; start one with: python tune/search.py")
        return max(marks, key=lambda path: path.stat().st_mtime).parent
    folder = Path(name)
    is_name = not folder.is_absolute() and not (folder / CONFIG).exists()
    is_name = is_name and folder.parts[:1] != results.parts[:1]
    return results / folder if is_name else folder


def read_json(folder: Path | str, name: str) -> dict[str, Any]:
    """Return a study's JSON file from its folder or a storage; refuse a missing or damaged one."""
    try:
        content: dict[str, Any] = json.loads((RemotePath.at(folder) / name).read())
        return content
    except FileNotFoundError:
        raise ValueError(
            f"{folder} has no {name}: it is not a study, or its search has not finished"
        ) from None
    except ValueError as error:
        raise ValueError(f"{folder}/{name} cannot be read: {error}") from error

"""What came of the rows of a report so far: kept until it is written, and not measured again."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from cpaan.core.provenance import describe_run
from cpaan.core.remote_paths import RemotePath
from cpaan.data.splits import ShotRows
from cpaan.study.report_rows import Row

_FOLDER = "report-parts"
_RUN = "run"
_NUM_DIGITS = 16


class Piece(NamedTuple):
    """A row with one of its seeds: what is measured at a time."""

    row: Row
    seed: int
    is_illustrated: bool
    """Whether spectra and projections are wanted too."""

    @property
    def key(self) -> tuple[str, int]:
        """Name of the row, and the seed."""
        return self.row.name, self.seed


class RowResult(NamedTuple):
    """What came of a piece."""

    scores: pd.DataFrame
    diversity: pd.DataFrame
    priors: pd.DataFrame
    validation: pd.DataFrame
    """Scores there."""
    spectra: pd.DataFrame
    projections: pd.DataFrame


class Kept(NamedTuple):
    """A result that an earlier command has left."""

    result: RowResult
    run: dict[str, str]
    """That command, its commit and the time, as `describe_run` has them."""


def describe_earlier(kept: Mapping[tuple[str, int], Kept]) -> list[dict[str, Any]]:
    """Return which commands have measured what was kept, with the rows and seeds of each."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for (name, seed), (_, run) in kept.items():
        key = run["command"], run["commit"]
        entry = found.setdefault(key, {**run, "pieces": {}})
        entry["time"] = max(entry["time"], run["time"])
        entry["pieces"].setdefault(name, []).append(seed)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Parts:
    """Results of a report that was stopped, in the storage of each row's study.

    One is found again by all that decides it; with another setting or another draw it is another.
    """

    pieces: tuple[Piece, ...]
    """Of the whole report."""
    heads: tuple[str, ...]
    draws: ShotRows

    def read(self, piece: Piece) -> Kept | None:
        """Return what came of a piece, None if it is not there."""
        content = self._path(piece).read_if_exists()
        if content is None:
            return None
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            frames = (io.BytesIO(archive.read(name)) for name in RowResult._fields)
            result = RowResult(*map(pd.read_parquet, frames))
            return Kept(result, json.loads(archive.read(_RUN)))

    def keep(self, piece: Piece, result: RowResult) -> None:
        """Keep what came of a piece."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, frame in result._asdict().items():
                archive.writestr(name, frame.to_parquet(index=False))
            archive.writestr(_RUN, json.dumps(describe_run()))
        self._path(piece).write(buffer.getvalue())

    def delete(self) -> None:
        """Remove what was kept of all pieces: the report has it now."""
        for piece in self.pieces:
            self._path(piece).delete()

    def _path(self, piece: Piece) -> RemotePath:
        of_row = (piece.row.describe(), piece.row.study.describe())
        files = (*RowResult._fields, _RUN)  # what other versions of this code keep is no part
        deciding = (*of_row, piece.seed, piece.is_illustrated, self.heads, files)
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode())
        digest.update(self.draws.tobytes())
        name = f"{_FOLDER}/{digest.hexdigest()[:_NUM_DIGITS]}.zip"
        return RemotePath.at(piece.row.study.storage) / name

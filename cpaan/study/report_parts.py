"""What came of the rows of a report so far: kept until it is written, and not measured again."""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from cpaan.splits import ShotRows
from cpaan.study.report_rows import Row
from cpaan.study.storage import Storage

_FOLDER = "report-parts"
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


@dataclass(frozen=True, eq=False)
class Parts:
    """Results of a report that was stopped, in the storage of each row's study.

    One is found again by all that decides it; with another setting or another draw it is another.
    """

    pieces: tuple[Piece, ...]
    """Of the whole report."""
    heads: tuple[str, ...]
    draws: ShotRows

    def read(self, piece: Piece) -> RowResult | None:
        """Return what came of a piece, None if it is not there."""
        content = Storage(piece.row.study.storage).read(self._name(piece))
        if content is None:
            return None
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return RowResult(
                *(pd.read_parquet(io.BytesIO(archive.read(name))) for name in RowResult._fields)
            )

    def keep(self, piece: Piece, result: RowResult) -> None:
        """Keep what came of a piece."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, frame in result._asdict().items():
                archive.writestr(name, frame.to_parquet(index=False))
        Storage(piece.row.study.storage).write(self._name(piece), buffer.getvalue())

    def delete(self) -> None:
        """Remove what was kept of all pieces: the report has it now."""
        for piece in self.pieces:
            Storage(piece.row.study.storage).delete(self._name(piece))

    def _name(self, piece: Piece) -> str:
        of_row = (piece.row.describe(), piece.row.study.describe())
        deciding = (*of_row, piece.seed, piece.is_illustrated, self.heads)
        digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode())
        digest.update(self.draws.tobytes())
        return f"{_FOLDER}/{digest.hexdigest()[:_NUM_DIGITS]}.zip"

"""What a study's folder and its report hold, read once."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from cpaan.methods.registry import ROWS

REPORT = "report"
_TRIALS = "trials.parquet"
_NEEDED = ("run", "rows", "settings", "test_reads", "best")
_SCORES = ("method", "head", "column", "shots", "draw", "seed", "top1", "top5")


@dataclass(frozen=True)
class Ablation:
    """What a row is a variant of."""

    of: str
    family: str
    """ "neighbours" or "ideas"."""
    label: str


@dataclass(frozen=True)
class ReportRow:
    """A row that was trained and scored."""

    name: str
    method: str
    """Its key in `cpaan.methods.registry.ROWS`."""
    seeds: tuple[int, ...]
    ablation: Ablation | None
    """None for a row of the table itself."""


@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that the page is made of."""

    name: str
    """Of the study's folder."""
    folder: str
    """Its path, as it was given."""
    about: Mapping[str, Any]
    """The report's own words on itself: ``run``, ``settings``, ``nodes`` and so on."""
    rows: tuple[ReportRow, ...]
    """In the order of the table; variants are among them."""
    scores: pd.DataFrame
    """Columns method (a row's name), head, column, shots, draw, seed, top1, top5."""
    num_fixed: int
    """The first so many draws are the fixed ones, the others are seeded."""
    is_table: bool
    """Whether there is a search for every row, not for one."""
    studies: Mapping[str, Mapping[str, Any]]
    """Settings and data of every search, by name."""
    best: Mapping[str, Mapping[str, Any]]
    """What every search chose, by the same names."""
    trials: Mapping[str, pd.DataFrame]
    """The trials of every search that left a table of them, by the same names."""
    begun: Mapping[str, Mapping[str, Any]]
    """The command that began each search, its commit and time, by the same names."""
    heads: pd.DataFrame | None
    """Columns method, head, score: on the validation phase, best first."""
    diversity: pd.DataFrame | None
    """Columns method, shots, draw, seed, distance, ratio; of the seeded draws, like intervals."""
    spectra: pd.DataFrame | None
    projections: pd.DataFrame | None
    spiral: Mapping[str, Any] | None

    @property
    def table_rows(self) -> tuple[ReportRow, ...]:
        """The rows without their variants."""
        return tuple(row for row in self.rows if row.ablation is None)

    @property
    def methods(self) -> dict[str, str]:
        """Whose row each row of the table is, in the table's order."""
        return {row.name: row.method for row in self.table_rows}

    @property
    def seeded(self) -> pd.DataFrame:
        """The scores of the seeded draws; of all draws, if none is seeded."""
        seeded = self.scores[self.scores["draw"] >= self.num_fixed]
        return self.scores if seeded.empty else seeded

    @property
    def shots(self) -> tuple[int, ...]:
        """The numbers of shots there are."""
        return tuple(sorted(int(k) for k in self.scores["shots"].unique()))


def read_contents(folder: Path) -> Contents:
    """Read the report of a study, of one row or many, and what its searches left.

    Args:
        folder: The study's; the report is in its ``report/``.

    Raises:
        ValueError: If the report is absent, damaged, or about rows that are not known.
    """
    report = folder / REPORT
    about = _read_report(report / "report.json")
    is_table = "studies" in about
    studies, best = about["studies"] if is_table else {}, about["best"]
    if not is_table:
        name = str(best["method"])
        studies, best = ({name: about["study"]} if "study" in about else {}), {name: best}
    places = {name: folder / name if is_table else folder for name in best}
    trials = {name: _read_table(place / _TRIALS) for name, place in places.items()}
    scores = _read_table(report / "scores.parquet")
    if scores is None:
        raise ValueError(f"{report} has no scores.parquet: the report has not been finished")
    if absent := [name for name in _SCORES if name not in scores.columns]:
        raise ValueError(f"{report / 'scores.parquet'} lacks {', '.join(absent)}")
    spiral = report / "spiral.json"
    num_fixed = int(about.get("num_fixed", about["settings"].get("num_fixed_draws", 0)))
    return Contents(
        name=folder.resolve().name,
        folder=str(folder),
        about=about,
        rows=_rows_of(about["rows"], set(scores["method"])),
        scores=scores,
        num_fixed=num_fixed,
        is_table=is_table,
        studies=studies,
        best=best,
        trials={name: table for name, table in trials.items() if table is not None},
        begun=_begun(folder, best),
        heads=_frame_of(about.get("heads")),
        diversity=_seeded(_frame_of(about.get("diversity")), num_fixed),
        spectra=_read_table(report / "spectra.parquet"),
        projections=_read_table(report / "projections.parquet"),
        spiral=_read_json(spiral) if spiral.exists() else None,
    )


def _read_report(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ValueError(f"{path.parent} has no {path.name}: there is no report to draw")
    about = _read_json(path)
    if absent := [name for name in _NEEDED if name not in about]:
        raise ValueError(f"{path} is no report: it lacks {', '.join(absent)}")
    return about


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no JSON object")
    return content


def _read_table(path: Path) -> pd.DataFrame | None:
    if not path.exists():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _begun(folder: Path, best: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the command that began each search: what went on with it does not remake it alone.

    A command that added a row to a table later has named it.
    """
    config = folder / "config.json"
    runs = _read_json(config)["runs"] if config.exists() else []
    return {
        name: next(
            (run for run in runs[1:] if name in re.split(r"[\s,=]", run["command"])),
            runs[0] if runs else each["run"],
        )
        for name, each in best.items()
    }


def _seeded(diversity: pd.DataFrame | None, num_fixed: int) -> pd.DataFrame | None:
    if diversity is None:
        return None
    seeded = diversity[diversity["draw"] >= num_fixed]
    return diversity if seeded.empty else seeded


def _frame_of(records: list[dict[str, Any]] | None) -> pd.DataFrame | None:
    return pd.DataFrame(records) if records else None


def _rows_of(described: list[dict[str, Any]], scored: set[str]) -> tuple[ReportRow, ...]:
    rows = []
    for each in described:
        if each["method"] not in ROWS:
            raise ValueError(f"the report has a row of the method {each['method']!r}: no such one")
        if each["name"] not in scored:
            raise ValueError(f"the report has no scores of its row {each['name']!r}")
        ablation = each.get("ablation")
        rows.append(
            ReportRow(
                name=each["name"],
                method=each["method"],
                seeds=tuple(each["seeds"]),
                ablation=None if ablation is None else Ablation(**ablation),
            )
        )
    return tuple(rows)

"""Read a study's folder and its report once, for everything that the page shows."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
    """A row that is a variant of another; its family is "neighbours" or "ideas"."""

    of: str
    family: str
    label: str


@dataclass(frozen=True)
class ScoredRow:
    """A row that was trained and scored."""

    name: str
    method: str
    """Its key in `cpaan.methods.registry.ROWS`."""
    seeds: tuple[int, ...]
    ablation: Ablation | None
    """None for a row of the table itself."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The files of a study that the page is made of."""

    folder: Path
    """Of the study, as it was given."""
    about: Mapping[str, Any]
    """``report.json``."""
    rows: tuple[ScoredRow, ...]
    """In the order of the table, with variants."""
    scores: pd.DataFrame
    """Columns method (a row's name), head, column, shots, draw, seed, top1, top5."""
    num_fixed: int
    """The first so many draws are the fixed ones, the others are seeded."""
    is_table: bool
    """Whether every row had a search, not one of them alone."""
    studies: Mapping[str, Mapping[str, Any]]
    """Settings and data of every search, by name."""
    best: Mapping[str, Mapping[str, Any]]
    """The winner of every search, by the same names."""
    trials: Mapping[str, pd.DataFrame]
    """The trials of every search that left a table of them, by the same names."""
    started: Mapping[str, Mapping[str, Any]]
    """The command that started each search, its commit and time, by the same names."""
    heads: pd.DataFrame | None
    """Columns method, head, score: on the validation phase, best first."""
    diversity: pd.DataFrame | None
    """Columns method, shots, draw, seed, distance, ratio; of the seeded draws, like intervals."""
    spectra: pd.DataFrame | None
    projections: pd.DataFrame | None
    spiral: Mapping[str, Any] | None

    @property
    def table_rows(self) -> tuple[ScoredRow, ...]:
        """Return the rows without their variants."""
        return tuple(row for row in self.rows if row.ablation is None)

    @property
    def methods(self) -> dict[str, str]:
        """Return the key in `ROWS` of each row of the table, in its order."""
        return {row.name: row.method for row in self.table_rows}

    @cached_property
    def seeded(self) -> pd.DataFrame:
        """Return the scores of the seeded draws; of all draws, if none is seeded."""
        return _seeded(self.scores, self.num_fixed)

    @cached_property
    def scored(self) -> set[tuple[str, str]]:
        """Return the rows' names and heads that have scores of these draws."""
        return set(self.seeded[["method", "head"]].itertuples(index=False, name=None))

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of all trainings, ascending."""
        return sorted({seed for row in self.rows for seed in row.seeds})

    @property
    def shots(self) -> tuple[int, ...]:
        """Return the numbers of shots, ascending."""
        return tuple(sorted(int(k) for k in self.scores["shots"].unique()))


def read_contents(folder: Path) -> Contents:
    """Read the report of a study, of one row or many, and the trials of its searches.

    Raises:
        ValueError: If the report is absent, damaged, or has rows of unknown methods.
    """
    report = folder / REPORT
    path = report / "report.json"
    if not path.exists():
        raise ValueError(f"{report} has no report.json: there is no report to draw")
    about = _read_json(path)
    if absent := [name for name in _NEEDED if name not in about]:
        raise ValueError(f"{path} is not a report: it lacks {', '.join(absent)}")
    is_table = "studies" in about
    studies, best = about["studies"] if is_table else {}, about["best"]
    if not is_table:
        name = str(best["method"])
        studies, best = ({name: about["study"]} if "study" in about else {}), {name: best}
    trials = {name: _read_table(folder / (name if is_table else "") / _TRIALS) for name in best}
    scores = _read_table(report / "scores.parquet")
    if scores is None:
        raise ValueError(f"{report} has no scores.parquet: the report has not been finished")
    if absent := [name for name in _SCORES if name not in scores.columns]:
        raise ValueError(f"{report / 'scores.parquet'} lacks {', '.join(absent)}")
    num_fixed = int(about.get("num_fixed", about["settings"].get("num_fixed_draws", 0)))
    diversity, spiral = about.get("diversity"), report / "spiral.json"
    return Contents(
        folder=folder,
        about=about,
        rows=_rows_of(about["rows"], set(scores["method"])),
        scores=scores,
        num_fixed=num_fixed,
        is_table=is_table,
        studies=studies,
        best=best,
        trials={name: table for name, table in trials.items() if table is not None},
        started=_started(folder, best),
        heads=pd.DataFrame(about["heads"]) if about.get("heads") else None,
        diversity=_seeded(pd.DataFrame(diversity), num_fixed) if diversity else None,
        spectra=_read_table(report / "spectra.parquet"),
        projections=_read_table(report / "projections.parquet"),
        spiral=_read_json(spiral) if spiral.exists() else None,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def _read_table(path: Path) -> pd.DataFrame | None:
    if not path.exists():
        return None
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _seeded(frame: pd.DataFrame, num_fixed: int) -> pd.DataFrame:
    seeded = frame[frame["draw"] >= num_fixed]
    return frame if seeded.empty else seeded


def _started(folder: Path, best: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the command that started each search: one that resumed it cannot repeat it alone.

    A row that was added to a table later has the command that names it.
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


def _rows_of(described: list[dict[str, Any]], scored: set[str]) -> tuple[ScoredRow, ...]:
    rows = []
    for each in described:
        if each["method"] not in ROWS:
            raise ValueError(f"the report has a row for an unknown method: {each['method']!r}")
        if each["name"] not in scored:
            raise ValueError(f"the report has no scores of its row {each['name']!r}")
        ablation = Ablation(**each["ablation"]) if each.get("ablation") else None
        rows.append(ScoredRow(each["name"], each["method"], tuple(each["seeds"]), ablation))
    return tuple(rows)

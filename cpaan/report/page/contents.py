"""Read a study's folder and its report once, for everything that the page shows."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from cpaan.data.builtin import FOLDER
from cpaan.methods.registry import ROWS, num_episodes_of
from cpaan.report.gains import PairedDifference, PairedScores, Scored

REPORT, _TRIALS = "report", "trials.parquet"
_NEEDED = ["run", "rows", "num_fixed", "test_reads", "nodes", "cost", "best", "heads", "diversity"]
_HEADS = ["method", "head", "score"]
_DIVERSITY = ["method", "shots", "draw", "seed", "distance", "ratio"]
_SCORES = ["method", "head", "column", "shots", "draw", "seed", "top1", "top5"]
DEFAULT, PUBLISHED = "default settings", "as published"
"""How names of rows end that have the settings of trial 0, or those of the source."""


@dataclass(frozen=True)
class Ablation:
    """A row that is a variant of another; its family is "neighbours", "ideas" or "terms"."""

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
    studies: Mapping[str, Mapping[str, Any]]
    """Settings and data of every search, by name."""
    best: Mapping[str, Mapping[str, Any]]
    """The winner of every search, by the same names."""
    trials: Mapping[str, pd.DataFrame]
    """The trials of every search that left a table of them, by the same names."""
    started: Mapping[str, Mapping[str, Any]]
    """The command of each search, its commit and time, by the same names."""
    heads: pd.DataFrame
    """Columns method, head, score: on the validation phase, best first."""
    diversity: pd.DataFrame
    """Columns method, shots, draw, seed, distance, ratio; of the seeded draws, like intervals."""
    classes: pd.DataFrame | None
    """Columns method, head, class, top5: LSL at the fewest shots, mean over seeded draws and seeds;
    None in reports that did not keep it."""
    spectra: pd.DataFrame | None
    projections: pd.DataFrame | None
    spiral: Mapping[str, Any] | None
    words: Mapping[str, str]
    """The name in words of each class of Tiny-ImageNet."""

    @property
    def methods(self) -> dict[str, str]:
        """Return the key in `ROWS` of each row but the variants, in the order of the table."""
        return {row.name: row.method for row in self.rows if row.ablation is None}

    @cached_property
    def seeded(self) -> pd.DataFrame:
        """Return the scores of the seeded draws."""
        return self.scores[self.scores["draw"] >= self.num_fixed]

    @cached_property
    def paired(self) -> PairedScores:
        """Return top-5 of the seeded draws, for comparisons of rows."""
        return PairedScores(self.seeded)

    @cached_property
    def trained_once(self) -> set[str]:
        """Return the rows of a single training, whose differences are over draws alone."""
        once = [row for row in self.rows if len(row.seeds) == 1]
        rows = {row.name: ROWS[row.method] for row in once}
        return {name for name, of in rows.items() if of.is_embedded or num_episodes_of(of.config)}

    def compare(self, subject: Scored, other: Scored, column: str, shots: int) -> PairedDifference:
        """Return the subject minus the other; over draws alone if one was trained once."""
        is_once = not self.trained_once.isdisjoint((subject[0], other[0]))
        return self.paired.compare(subject, other, column, shots, same_seeds=is_once)


def read_contents(folder: Path) -> Contents:
    """Read the report of a study, and the trials of its searches.

    Raises:
        ValueError: If the report is absent, damaged, or has rows of unknown methods.
    """
    report = folder / REPORT
    found = {}
    for name, needed in (("report.json", _NEEDED), ("scores.parquet", _SCORES)):
        found[name] = content = _read(report / name)
        if content is None:
            raise ValueError(f"{report} has no {name}: there is no finished report to draw")
        if absent := [each for each in needed if each not in content]:
            raise ValueError(f"{report / name} is not of a report: it lacks {', '.join(absent)}")
    about, scores = found.values()
    scores = _renamed(scores)
    studies, best = about.get("studies", {}), about["best"]
    if not studies:  # reports of one row once had it alone
        studies, best = {best["method"]: about["study"]}, {best["method"]: best}
    num_fixed, known = int(about["num_fixed"]), _read(FOLDER / "split.json")
    diversity = _renamed(pd.DataFrame(about["diversity"], columns=_DIVERSITY))
    # A single row has no folder of its own.
    paths = {name: [folder / name / _TRIALS, folder / _TRIALS] for name in best}
    trials = {name: _read(own if own.exists() else single) for name, (own, single) in paths.items()}
    return Contents(
        folder=folder,
        about=about,
        rows=_rows_of(about["rows"], set(scores["method"])),
        scores=scores,
        num_fixed=num_fixed,
        studies=studies,
        best=best,
        trials={name: table for name, table in trials.items() if table is not None and len(table)},
        started=_started(folder, best),
        heads=_renamed(pd.DataFrame(about["heads"], columns=_HEADS)),
        diversity=diversity[diversity["draw"] >= num_fixed],
        classes=_renamed(_read(report / "classes.parquet")),
        spectra=_renamed(_read(report / "spectra.parquet")),
        projections=_renamed(_read(report / "projections.parquet")),
        spiral=_read(report / "spiral.json"),
        words={name: text.split(",")[0] for name, text in known["classes"].items()},
    )


def _read(path: Path) -> Any:
    """Return the content of a file of JSON or Parquet; None if it is absent."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text()) if path.suffix == ".json" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _renamed(frame: Any) -> Any:
    """Return a table with the names of rows as they are shown; None stays None."""
    return None if frame is None else frame.assign(method=frame["method"].map(_shown))


def _shown(name: str) -> str:
    return name.replace(", trial 0", f", {DEFAULT}")  # the name in older reports


def _started(folder: Path, best: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the first command that names each row, or else the one that chose its winner.

    The first command is preferred, because one that resumes a search cannot repeat it alone.
    """
    runs = (_read(folder / "config.json") or {"runs": []})["runs"]
    return {
        name: next(
            (run for run in runs if name in re.split(r"[\s,=]", run["command"])), each["run"]
        )
        for name, each in best.items()
    }


def _rows_of(described: Sequence[dict[str, Any]], scored: set[str]) -> tuple[ScoredRow, ...]:
    """Return the rows of a report; those as published come last."""
    rows = []
    for each in described:
        if each["method"] not in ROWS:
            raise ValueError(f"the report has a row for an unknown method: {each['method']!r}")
        if (name := _shown(each["name"])) not in scored:
            raise ValueError(f"the report has no scores of its row {name!r}")
        ablation = Ablation(**each["ablation"]) if each.get("ablation") else None
        rows.append(ScoredRow(name, each["method"], tuple(each["seeds"]), ablation))
    return tuple(sorted(rows, key=lambda row: row.name.endswith(PUBLISHED)))

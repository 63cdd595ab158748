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
from cpaan.report.ablations import Ablation
from cpaan.report.gains import PairedScores, Scored
from cpaan.report.page.older import DEFAULT, update_frame, update_report
from cpaan.report.tables import Cell

REPORT = "report"
_LISTS = {
    "heads": ["method", "head", "score"],
    "diversity": ["method", "shots", "draw", "seed", "distance", "ratio"],
}
_NEEDED = {
    "report.json": (
        *("run", "rows", "num_fixed", "test_reads", "nodes", "cost", "studies", "best"),
        *_LISTS,
    ),
    "scores.parquet": ("method", "head", "column", "shots", "draw", "seed", "top1", "top5"),
}
PUBLISHED = "as published"
"""How the name of a row ends that has the settings of its source."""


@dataclass(frozen=True)
class ScoredRow:
    """A row that was trained and scored."""

    name: str
    method: str
    """Its key in `cpaan.methods.registry.ROWS`."""
    seeds: tuple[int, ...]
    ablation: Ablation | None
    """None for a row of the table itself."""
    settings: str = ""
    """`DEFAULT`, `PUBLISHED`, or empty for all others."""


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
    """The commands of the searches, with commit and time, by the same names."""
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
    """The names in words of the classes of Tiny-ImageNet."""

    @property
    def methods(self) -> dict[str, str]:
        """Return the keys in `ROWS` of all rows but variants, in the order of the table."""
        return {row.name: row.method for row in self.rows if row.ablation is None}

    @property
    def searched(self) -> dict[str, str]:
        """Return the same without the rows as published, which are in no claim and no picture."""
        published = {row.name for row in self.rows if row.settings == PUBLISHED}
        return {name: key for name, key in self.methods.items() if name not in published}

    @property
    def study(self) -> Mapping[str, Any]:
        """Return settings and data of the first search; all searches have the same classes."""
        return next(iter(self.studies.values()))

    @property
    def is_tiny_imagenet(self) -> bool:
        """Return whether all test classes are of Tiny-ImageNet."""
        split = self.study["data"]["split"]["test"]
        return {*split["base"], *split["novel"]} <= self.words.keys()

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
        rows = {row.name: ROWS[row.method] for row in self.rows if len(row.seeds) == 1}
        return {
            name
            for name, row in rows.items()
            if row.is_embedded or num_episodes_of(row.method.config)
        }

    def compare(self, subject: Scored, other: Scored, column: str, shots: int) -> Cell:
        """Return the subject minus the other; over draws alone if one was trained once."""
        is_once = not self.trained_once.isdisjoint((subject[0], other[0]))
        return self.paired.compare(subject, other, column, shots, same_seeds=is_once)


def read_contents(folder: Path) -> Contents:
    """Read the report of a study, and the trials of its searches.

    Raises:
        ValueError: If the report is absent, damaged, or has rows of unknown methods.
    """
    report = folder / REPORT
    about, scores = (_read_updated(report / name) for name in _NEEDED)
    for (name, needed), content in zip(_NEEDED.items(), (about, scores), strict=True):
        if content is None:
            raise ValueError(f"{report} has no {name}: there is no finished report to draw")
        if absent := [key for key in needed if key not in content]:
            raise ValueError(f"{report / name} is not of a report: it lacks {', '.join(absent)}")
    best, num_fixed = about["best"], int(about["num_fixed"])
    heads, diversity = (
        update_frame(pd.DataFrame(about[x], columns=names)) for x, names in _LISTS.items()
    )
    # A single row has no folder of its own.
    places = {name: folder / name if (folder / name).exists() else folder for name in best}
    trials = {name: _read(place / "trials.parquet") for name, place in places.items()}
    classes = _read(FOLDER / "split.json")["classes"]
    return Contents(
        folder=folder,
        about=about,
        rows=_rows_of(about["rows"], set(scores["method"])),
        scores=scores,
        num_fixed=num_fixed,
        studies=about["studies"],
        best=best,
        trials={name: table for name, table in trials.items() if table is not None and len(table)},
        started=_started(folder, best),
        heads=heads,
        diversity=diversity[diversity["draw"] >= num_fixed],
        classes=_read_updated(report / "classes.parquet"),
        spectra=_read_updated(report / "spectra.parquet"),
        projections=_read_updated(report / "projections.parquet"),
        spiral=_read(report / "spiral.json"),
        words={name: text.split(",")[0] for name, text in classes.items()},
    )


def _read(path: Path) -> Any:
    """Return the content of a file of JSON or Parquet; None if it is absent."""
    if not path.exists():
        return None
    try:
        is_json = path.suffix == ".json"
        return json.loads(path.read_text()) if is_json else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _read_updated(path: Path) -> Any:
    """Return the content of a file of a report as today's version writes it; None if absent."""
    content = _read(path)
    if isinstance(content, pd.DataFrame):
        return update_frame(content) if "method" in content else content
    return update_report(content) if isinstance(content, dict) else content


def _started(folder: Path, best: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the first command that names a row, or else the one that chose its winner.

    The first command is preferred, because one that resumes a search cannot repeat it alone.
    """
    runs = (_read(folder / "config.json") or {"runs": []})["runs"]
    words = [{*re.split(r"[\s,=]", run["command"])} for run in runs]
    started = {name: winner["run"] for name, winner in best.items()}
    for run, names in zip(reversed(runs), reversed(words), strict=True):
        started |= dict.fromkeys(names & best.keys(), run)
    return started


def _rows_of(described: Sequence[dict[str, Any]], scored: set[str]) -> tuple[ScoredRow, ...]:
    """Return the rows of a report; those as published come last."""
    rows = []
    for row in described:
        name, method, ablation = row["name"], row["method"], None
        if method not in ROWS:
            raise ValueError(f"the report has a row for an unknown method: {method!r}")
        if name not in scored:
            raise ValueError(f"the report has no scores of its row {name!r}")
        if varied := row.get("ablation"):
            ablation = Ablation(varied["of"], varied["family"], varied["key"])
        settings = next((words for words in (DEFAULT, PUBLISHED) if name.endswith(words)), "")
        rows.append(ScoredRow(name, method, tuple(row["seeds"]), ablation, settings))
    return tuple(sorted(rows, key=lambda row: row.settings == PUBLISHED))

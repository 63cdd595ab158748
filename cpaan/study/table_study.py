"""A study of many rows: one folder, and in it a study for each, all with the same budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from cpaan.core.provenance import describe_run
from cpaan.methods.registry import ROWS
from cpaan.study.folder import Study, read_study
from cpaan.study.records import BEST, CONFIG, Records, read_json

_METHODS, _ARGUMENTS = "methods", "arguments"


@dataclass(frozen=True)
class TableStudy:
    """Which rows, and the options of the command that began it."""

    methods: tuple[str, ...]
    arguments: tuple[str, ...]
    """As they were given, for rows that are begun later."""

    def with_rows(self, methods: Sequence[str], cosine_features: Sequence[str] | None) -> Self:
        """Return a table with more rows, which are searched as the others are.

        Args:
            methods: The rows; those that are there already stay as they are.
            cosine_features: For one that wants them; None: as the table has it.
        """
        new = [method for method in methods if method not in self.methods]
        if not new:
            return self
        given = () if cosine_features is None else ("--cosine-features", *cosine_features)
        return replace(self, methods=(*self.methods, *new), arguments=(*self.arguments, *given))

    def write(self, records: Records) -> None:
        """Write ``config.json``, before the first row is begun or where there are more rows."""
        runs: list[dict[str, Any]] = []
        if has_begun(records.folder):
            # Another command may have added rows since this one has read them.
            if set(self.methods) <= set(TableStudy.read(records.folder).methods):
                return
            runs = read_json(records.folder, CONFIG)["runs"]
        content = {_METHODS: list(self.methods), _ARGUMENTS: list(self.arguments)}
        records.write_json(CONFIG, {"runs": [*runs, describe_run()], **content})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the one in a folder; see `is_table`."""
        content = read_json(folder, CONFIG)
        return cls(tuple(content[_METHODS]), tuple(content[_ARGUMENTS]))


def is_table(folder: Path) -> bool:
    """Return whether a folder holds a study of many rows."""
    return has_begun(folder) and _METHODS in read_json(folder, CONFIG)


def has_begun(folder: Path) -> bool:
    """Return whether a folder holds a study."""
    return (folder / CONFIG).exists()


def studies_of(folder: Path, *, may_lack: bool = False) -> list[Study]:
    """Return the study of every row, in the order of the paper's table, however they were searched.

    Args:
        folder: Of the table.
        may_lack: Whether rows that have no winner are left out.

    Raises:
        ValueError: If rows have none and must; or if all have none.
    """
    searched = TableStudy.read(folder).methods
    rows = [folder / method for method in ROWS if method in searched]
    missing = [row.name for row in rows if not (row / BEST).exists()]
    if len(missing) == len(rows) or (missing and not may_lack):
        raise ValueError(
            f"{', '.join(missing)} of {folder} have no winner so far: python tune/search.py "
            f"--resume {folder} goes on (--partial reports the others)"
        )
    return [read_study(row) for row in rows if row.name not in missing]

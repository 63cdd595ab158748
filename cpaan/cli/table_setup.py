"""The studies of a table's rows, as the options of ``tune/search.py`` have them."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cpaan.cli.study_options import search_parser
from cpaan.cli.study_setup import (
    STORAGE,
    elsewhere_of,
    fetch_if_absent,
    new_study,
    resumed_study,
)
from cpaan.core.remote_paths import RemotePath
from cpaan.methods.registry import ROWS
from cpaan.protocol.config import EvaluationConfig
from cpaan.study.config import StudyConfig
from cpaan.study.folder import Study, read_study
from cpaan.study.records import CONFIG
from cpaan.study.table_study import TableStudy, has_begun


def study_of_row(
    options: argparse.Namespace, table: TableStudy, folder: Path, method: str
) -> Study:
    """Return the study of a row: gone on with, or begun as the command that began the table has it.

    Raises:
        ValueError: If it cannot be begun, or goes on with something that cannot change.
    """
    if has_begun(folder / method):
        if options.resume is None:  # begun by another command, after this one had begun the table
            return read_study(folder / method)
        return resumed_study(options, folder / method)
    original = search_parser().parse_args(table.arguments)
    original.set = settings_of_row(original.set, method, table.methods)
    if options.resume is not None and options.trials is not None:
        original.trials = options.trials
    return new_study(original, method, f"{folder.name}/{method}")


def settings_of_row(assignments: Sequence[str], method: str, methods: Sequence[str]) -> list[str]:
    """Return the settings of ``--set`` that are for one of several methods.

    Args:
        assignments: As they were given: NAME=VALUE for all that have it, METHOD.NAME=VALUE for one.
        method: Which.
        methods: All of them.

    Raises:
        ValueError: If a name is none of any method.
    """
    shared = {*StudyConfig().to_dict(), *EvaluationConfig().to_dict()}
    kept = []
    for assignment in assignments:
        name = assignment.partition("=")[0]
        whose, dot, _ = name.partition(".")
        if dot and whose not in methods:
            raise ValueError(f"{whose} of --set {name} is none of {', '.join(methods)}")
        if dot and whose == method:
            kept.append(assignment.removeprefix(f"{whose}."))
        elif not dot and name in (shared | set(ROWS[method].config.to_dict())):
            kept.append(assignment)
        elif not dot and not any(name in ROWS[each].config.to_dict() for each in methods):
            raise ValueError(f"unknown setting {name!r}: no method here has it")
    return kept


def fetch_rows(folder: Path, storage: str | None = None) -> None:
    """Bring the rows of a table that were begun elsewhere, likewise."""
    for method in TableStudy.read(folder).methods:
        elsewhere = elsewhere_of(folder / method, storage or os.environ.get(STORAGE))
        if elsewhere is not None and (RemotePath.at(elsewhere) / CONFIG).is_file():
            fetch_if_absent(folder / method, storage)

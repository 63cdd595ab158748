"""Readers of splits and of draws of shots, in the project's formats and in those of others."""

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpaan.core.remote_paths import RemotePath
from cpaan.data.splits import (
    PHASES,
    TEST_PHASE,
    VALIDATION_PHASE,
    Phase,
    ShotRows,
    Split,
    check_shots,
    class_names,
)
from cpaan.data.table import FeatureTable

_SPLIT_NAMES = ("split.json", "label_idx.json")  # the project's and the benchmark's
_LISTS = {
    "base": ("train.csv", "train.txt", "base.csv", "base.txt"),
    VALIDATION_PHASE: ("val.csv", "val.txt", "validation.csv", "validation.txt"),
    TEST_PHASE: ("test.csv", "test.txt", "novel.csv", "novel.txt"),
}


def read_split(path: str | Path) -> Split:
    """Read the project's ``split.json`` or the benchmark's ``label_idx.json``, by path or address.

    Group 1 of the benchmark is for validation, group 2 for the test. The paper prints their sizes
    in reverse; the benchmark's code and all later work use the order given here.

    A folder contains one of these files or lists of classes, as miniImageNet and its successors
    do: train or base, val or validation (may be missing), and test or novel, each .csv or .txt. The
    classes are in the column ``label`` or ``class``, or in the first column if there is no header.

    Raises:
        ValueError: If the file is neither, or its groups are not valid.
    """
    place = _locate(path)
    if place.is_folder():
        return _from_lists(place)
    content, path = _read_json(place.location), place.location
    try:
        if isinstance(content, dict) and "base_classes_1" in content:
            return _from_label_index(content)
        if isinstance(content, dict) and not {*PHASES}.isdisjoint(content):
            return Split.from_dict(content)
    except (KeyError, TypeError) as error:
        reason = f"a group of classes is missing or not a list ({error})"
        raise ValueError(f"{path}: {reason}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    raise ValueError(
        f"{path} is not a split: it needs 'validation' or 'test', each with 'base' and 'novel', "
        "or the benchmark's 'base_classes_1', 'novel_classes_1', 'base_classes_2', ..."
    )


def _from_label_index(content: dict[str, Any]) -> Split:
    names = class_names(content["label_names"])
    if len(set(names)) < len(names):
        raise ValueError("label_names has duplicate names")

    def group(key: str) -> tuple[str, ...]:
        labels = content[key]
        if not all(isinstance(label, int) and 0 <= label < len(names) for label in labels):
            raise ValueError(f"{key} must contain labels from 0 to {len(names) - 1}")
        return tuple(names[label] for label in labels)

    return Split(
        validation=Phase(base=group("base_classes_1"), novel=group("novel_classes_1")),
        test=Phase(base=group("base_classes_2"), novel=group("novel_classes_2")),
        label_names=names,
    )


def _from_lists(folder: RemotePath) -> Split:
    files, groups = folder.names(), {}
    try:
        for group, names in _LISTS.items():
            lists = [name for name in names if name in files]
            if len(lists) > 1 or not (lists or group == VALIDATION_PHASE):
                raise ValueError(f"it needs one list of {group} classes, found {lists}")
            groups[group] = _read_list(folder / lists[0]) if lists else []
        return Split.from_classes(**groups)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{folder.location}: {error}") from error


def _read_list(file: RemotePath) -> list[str]:
    """Return the distinct class names of a list in the order of their first appearance."""
    lines = file.read().decode("utf-8-sig").splitlines()
    table = csv.reader(lines) if file.path.endswith(".csv") else ([line] for line in lines)
    rows = [cells for row in table if any(cells := [cell.strip() for cell in row])]
    header = [cell.lower() in ("label", "class") for cell in rows[0]] if rows else []
    column = header.index(True) if any(header) else 0
    names = [row[column] if len(row) > column else "" for row in rows[any(header) :]] or [""]
    if "" in names:
        raise ValueError(f"{Path(file.path).name} has no class name in row {names.index('') + 1}")
    return list(dict.fromkeys(names))


def find_split(data: str) -> str:
    """Find the split file, or the folder with lists of classes, beside a file or in a folder."""
    path = RemotePath.at(data)
    folder = path if path.is_folder() else path.parent
    for name in _SPLIT_NAMES:
        if (folder / name).is_file():
            return (folder / name).location
    if not set(folder.names()).isdisjoint(_LISTS["base"]):
        return folder.location
    raise ValueError(
        f"no {' or '.join(_SPLIT_NAMES)} in {folder.location}, and no lists of classes "
        "(train.csv, val.csv, test.csv); give one with --split"
    )


def _locate(path: str | Path) -> RemotePath:
    place = RemotePath.at(path)
    return RemotePath.at(find_split(place.location)) if place.is_folder() else place


def copy_split(location: str, folder: Path) -> None:
    """Copy a split into a folder as one file, under the name that `find_split` expects."""
    split, place = read_split(location), _locate(location)
    content = json.dumps(asdict(split)).encode() if place.is_folder() else place.read()
    RemotePath.at(folder / _SPLIT_NAMES[split.label_names is not None]).write(content)


def read_draws(
    paths: Sequence[str | Path],
    table: FeatureTable,
    split: Split,
    phase_name: str,
    max_shots: int,
) -> ShotRows:
    """Read draws of shots from files.

    A file is either ``{"phase": ..., "draws": [{class: [row, ...]}, ...]}`` with row numbers of
    the table, or an index file of the benchmark. The latter is a matrix with one row per label and
    the numbers of rows in the file of train features, as the benchmark's code reads it.

    Raises:
        ValueError: If a file is neither, lacks a class or shots, or has rows that are not distinct
            train rows of their class.
    """
    phase, draws = split.phase(phase_name), []
    for path in paths:
        for where, draw in _draws_in(path, table, split, phase_name):
            shots = []
            for class_name in phase.novel:
                given = draw.get(class_name, "none")
                rows = _whole_numbers(given)
                if rows is None or rows.ndim != 1 or len(rows) < max_shots:
                    raise ValueError(
                        f"{where}: class {class_name} needs {max_shots} row numbers, got {given}"
                    )
                shots.append(rows[:max_shots])
            draws.append(np.stack(shots))
            check_shots(draws[-1][None], table, phase, max_shots, where=f"{where}: ")
    return np.stack(draws)


def _draws_in(
    path: str | Path, table: FeatureTable, split: Split, phase_name: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return the draws of a file: a name for messages, and a dict from class to rows."""
    content = _read_json(path)
    draws = content.get("draws") if isinstance(content, dict) else None
    if isinstance(draws, list) and draws and all(isinstance(draw, dict) for draw in draws):
        if content.get("phase", phase_name) != phase_name:
            raise ValueError(
                f"{path} has draws of the {content['phase']} phase, not of {phase_name}"
            )
        return [(f"{path}, draw {number}", draw) for number, draw in enumerate(draws)]
    if isinstance(content, list) and content and isinstance(content[0], list):
        if split.label_names is None or len(content) != len(split.label_names):
            raise ValueError(
                f"{path} is an index file for {len(content)} classes, but the split has "
                f"{len(split.label_names or ())} label names; the two numbers must be equal"
            )
        train_list = np.flatnonzero(table.is_train)
        positions = _whole_numbers(content)
        if positions is None or positions.ndim != 2 or positions.size == 0:
            raise ValueError(f"{path} must be a matrix of whole numbers")
        if positions.min() < 0 or positions.max() >= len(train_list):
            raise ValueError(
                f"{path} has positions from {positions.min()} to {positions.max()}, "
                f"but the features have {len(train_list)} train rows"
            )
        return [(str(path), dict(zip(split.label_names, train_list[positions], strict=True)))]
    raise ValueError(f"{path} has no draws: it needs row numbers by class, or an index matrix")


def _whole_numbers(values: Any) -> NDArray[np.int64] | None:
    """Convert nested lists of whole numbers to an array; return None for other content."""
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        return None
    return array.astype(np.int64) if array.dtype.kind in "iu" else None


def _read_json(path: str | Path) -> Any:
    try:
        return json.loads(RemotePath.at(path).read())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error

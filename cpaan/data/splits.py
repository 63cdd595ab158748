"""Base and novel classes of the two phases, and draws of shots."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cpaan.core.randomness import word_of
from cpaan.core.remote_paths import RemotePath
from cpaan.data.table import TRAIN, FeatureTable, counted, name_some

PHASES = VALIDATION_PHASE, TEST_PHASE = "validation", "test"
_SPLIT_NAMES = ("split.json", "label_idx.json")  # the project's and the benchmark's
_LISTS = {
    "base": ("train.csv", "train.txt", "base.csv", "base.txt"),
    VALIDATION_PHASE: ("val.csv", "val.txt", "validation.csv", "validation.txt"),
    TEST_PHASE: ("test.csv", "test.txt", "novel.csv", "novel.txt"),
}

ShotRows = NDArray[np.int64]
"""Row numbers of the shots, shape (draws, novel classes, shots); K shots are the first K."""


@dataclass(frozen=True)
class Phase:
    """The classes of one phase."""

    base: tuple[str, ...]
    novel: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """Base and novel classes of the validation phase and of the test phase; one may be missing.

    The phases may share base classes, as in miniImageNet, or not, as in the low-shot benchmark.

    Raises:
        ValueError: If a group is empty, or a novel class is also in another group.
    """

    validation: Phase | None
    test: Phase | None
    label_names: tuple[str, ...] | None = None
    """Class name of each integer label, if the data set numbers its classes."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("the split has neither a validation phase nor a test phase")
        group_of_class: dict[str, str] = {}
        for name, phase in self.phases.items():
            for kind, classes in (("base", phase.base), ("novel", phase.novel)):
                if not classes:
                    raise ValueError(f"the {name} phase has no {kind} classes")
                group = f"{kind} classes of {name}"
                for each in classes:
                    other = group_of_class.setdefault(each, group)
                    is_shared = kind == "base" and other.startswith("base") and other != group
                    if (other != group and not is_shared) or classes.count(each) > 1:
                        raise ValueError(f"class {each} is in the {other} and in the {group}")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Create a split from JSON content; raise KeyError or TypeError if it is not a split."""
        validation, test = (
            Phase(*(_strings(content[name][kind]) for kind in ("base", "novel")))
            if content.get(name) is not None
            else None
            for name in PHASES
        )
        names = content.get("label_names")
        return cls(validation, test, None if names is None else _strings(names))

    @classmethod
    def from_classes(
        cls,
        base: Sequence[str],
        validation: Sequence[str] = (),
        test: Sequence[str] = (),
    ) -> Self:
        """Create a split whose phases share their base classes, from lists of class names.

        Without novel classes of a phase, the split has only the other phase. miniImageNet has 64,
        16 and 20 classes in the three lists.
        """
        groups = {VALIDATION_PHASE: validation, TEST_PHASE: test}
        phases = {name: {"base": base, "novel": novel} for name, novel in groups.items() if novel}
        return cls.from_dict(phases)

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases that the split has, by name."""
        both = zip(PHASES, (self.validation, self.test), strict=True)
        return {name: phase for name, phase in both if phase is not None}

    def phase(self, name: str) -> Phase:
        """Return the phase called "validation" or "test"; raise ValueError if it is missing."""
        if name not in PHASES:
            raise ValueError(f"phase must be {VALIDATION_PHASE} or {TEST_PHASE}, got {name!r}")
        if name not in self.phases:
            raise ValueError(f"the split has no {name} phase")
        return self.phases[name]

    def base_classes(self, phase: str | None = None) -> tuple[str, ...]:
        """Return the base classes of all phases, those of ``phase`` first.

        Generators train on all of them and translate examples of all of them. The classifier and
        its score use only those of ``phase``.
        """
        first = self.phase(phase).base if phase else ()
        others = [name for each in self.phases.values() for name in each.base]
        return tuple(dict.fromkeys((*first, *others)))


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
    names = _strings(content["label_names"])
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
            found = [name for name in names if name in files]
            if len(found) > 1 or not (found or group == VALIDATION_PHASE):
                raise ValueError(f"it needs one list of {group} classes, found {found}")
            groups[group] = _read_list(folder / found[0]) if found else []
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


def _strings(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise TypeError("class names must be a list of strings")
    return tuple(values)


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


def draw_shots(
    table: FeatureTable, phase: Phase, *, num_draws: int, max_shots: int, seed: int
) -> ShotRows:
    """Draw the shots of every novel class from its train rows, without replacement.

    A draw depends only on the seed, its index, the class name and its number of train rows. More
    draws, fewer shots or other classes do not change it. Random bits come directly from PCG64,
    whose stream is the same in all versions of NumPy.
    """
    train_rows = {name: table.rows_of(name, TRAIN) for name in phase.novel}
    for class_name, rows in train_rows.items():
        if len(rows) < max_shots:
            raise ValueError(
                f"class {class_name} has {counted(len(rows), 'train row')}, but {max_shots} shots "
                f"are requested; use --shots with numbers up to {len(rows)}"
            )
    shots = np.empty((num_draws, len(phase.novel), max_shots), dtype=np.int64)
    for position, (class_name, rows) in enumerate(train_rows.items()):
        word = word_of(class_name)
        for draw in range(num_draws):
            shots[draw, position] = rows[shuffled(len(rows), seed, draw, word)[:max_shots]]
    return shots


def shuffled(count: int, *words: int) -> NDArray[np.int64]:
    """Return the numbers below ``count`` in a random order that the words determine."""
    return np.argsort(np.random.PCG64(list(words)).random_raw(count), kind="stable")


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


def check_shots(
    shot_rows: ShotRows, table: FeatureTable, phase: Phase, max_shots: int, where: str = ""
) -> None:
    """Raise ValueError if shots are too few, or not distinct train rows of their novel class."""
    if shot_rows.ndim != 3 or shot_rows.shape[1] != len(phase.novel) or len(shot_rows) == 0:
        raise ValueError(
            f"{where}shots must have the shape (draws, {len(phase.novel)} novel classes, shots), "
            f"got {shot_rows.shape}"
        )
    if shot_rows.shape[2] < max_shots:
        given = shot_rows.shape[2]
        raise ValueError(f"{where}{max_shots} shots are requested, but {given} are given")
    for class_name, draws in zip(phase.novel, shot_rows.swapaxes(0, 1), strict=True):
        foreign = np.setdiff1d(draws, table.rows_of(class_name, TRAIN))
        if len(foreign):
            problem = f"{name_some('row', foreign.tolist())} cannot be used"
        elif any(len(np.unique(rows)) < len(rows) for rows in draws):
            problem = "a row is repeated"
        else:
            continue
        raise ValueError(
            f"{where}shots of class {class_name} must be distinct train rows of this "
            f"class: {problem}"
        )


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

"""Base and novel classes of the two phases, and draws of shots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cpaan.core.randomness import word_of
from cpaan.data.table import TRAIN, FeatureTable, counted, name_some

PHASES = VALIDATION_PHASE, TEST_PHASE = "validation", "test"

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
    """Class names of the integer labels, if the data set numbers its classes."""

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("the split has neither a validation phase nor a test phase")
        group_of_class: dict[str, str] = {}
        for name, phase in self.phases.items():
            for kind, classes in (("base", phase.base), ("novel", phase.novel)):
                if not classes:
                    raise ValueError(f"the {name} phase has no {kind} classes")
                group = f"{kind} classes of {name}"
                for class_name in classes:
                    other = group_of_class.setdefault(class_name, group)
                    is_shared = kind == "base" and other.startswith("base") and other != group
                    if (other != group and not is_shared) or classes.count(class_name) > 1:
                        raise ValueError(f"class {class_name} is in the {other} and in the {group}")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Create a split from JSON content; raise KeyError or TypeError if it is not a split."""
        validation, test = (
            Phase(*(class_names(content[name][kind]) for kind in ("base", "novel")))
            if content.get(name) is not None
            else None
            for name in PHASES
        )
        names = content.get("label_names")
        return cls(validation, test, None if names is None else class_names(names))

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
        others = [name for other in self.phases.values() for name in other.base]
        return tuple(dict.fromkeys((*first, *others)))


def class_names(values: Any) -> tuple[str, ...]:
    """Return names as a tuple; raise TypeError unless they are a list of strings."""
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise TypeError("class names must be a list of strings")
    return tuple(values)


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

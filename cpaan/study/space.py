"""What a search proposes: the parameters, their ranges, and the points that it begins with."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from cpaan.core.settings import Choice, Range, Settings
from cpaan.methods.registry import ROWS, num_episodes_of
from cpaan.protocol.config import EvaluationConfig

RECOMMENDED, AS_PRINTED = "recommended", "as_printed"
"""Whose settings hold where a proposal is silent: ours, or those of the method's source."""


_SIZES = ("num_ways", "episode_shots", "num_queries", "hidden_dim")


class Suggests(Protocol):
    """What the space needs of an Optuna trial."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Return a number of a range."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Return a whole number of a range, ends included."""

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of the choices."""


@dataclass(frozen=True)
class Settled:
    """All settings of one trial."""

    training: Settings
    evaluation: EvaluationConfig

    @classmethod
    def of(cls, method: str, training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Self:
        """Return settings of a method as they were written down."""
        return cls(ROWS[method].config.from_dict(training), EvaluationConfig(**evaluation))


class Space(ABC):
    """The parameters of one method, on one data set, around the settings of a preset."""

    training: Settings
    evaluation: EvaluationConfig

    @property
    def num_episodes(self) -> int:
        """Of a trial that is not stopped."""
        return num_episodes_of(self.training)

    @property
    @abstractmethod
    def points(self) -> tuple[str, ...]:
        """Whose settings the first trials have."""

    @property
    @abstractmethod
    def searched(self) -> Collection[str]:
        """Names of all parameters that any trial has."""

    @abstractmethod
    def around(self, whose: str) -> Settled:
        """Return the settings that a proposal changes: ours, or the source's at the same sizes."""

    @abstractmethod
    def propose(self, trial: Suggests, whose: str = RECOMMENDED) -> Settled:
        """Return the settings of one trial; parameters that would change nothing are not asked for.

        Args:
            trial: Gives the values.
            whose: RECOMMENDED or AS_PRINTED. What the source does without, a perplexity say, is
                not asked for in its own point.
        """

    def point(self, whose: str) -> dict[str, Any]:
        """Return the parameters of a trial that the study begins with.

        Raises:
            ValueError: If one of them is outside its range.
        """
        own = _OwnValues(self._values_of_point(whose))
        self.propose(own, whose)
        return own.asked

    def _values_of_point(self, whose: str) -> dict[str, Any]:
        around = self.around(whose)
        return {**around.evaluation.to_dict(), **around.training.to_dict()}

    def check_point(self, point: Mapping[str, Any]) -> None:
        """Refuse parameters that are none here, or whose values are outside their ranges.

        Raises:
            ValueError: With the parameter.
        """
        values = {**self.evaluation.to_dict(), **self.training.to_dict(), **point}
        own = _OwnValues(values)
        self.propose(own)
        unknown = sorted(set(point) - set(own.asked))
        if unknown:
            raise ValueError(f"no parameters of such a point: {', '.join(unknown)}")

    def check_fixed(self, names: Collection[str]) -> None:
        """Refuse to fix what is searched.

        Raises:
            ValueError: With the parameter.
        """
        for name in names:
            if name in self.searched:
                raise ValueError(f"{name} is searched: --points has values of it to be tried")


@dataclass(frozen=True)
class RowSpace(Space):
    """What the row of a baseline says is to be searched."""

    method: str
    training: Settings
    evaluation: EvaluationConfig
    num_base: int

    @property
    def points(self) -> tuple[str, ...]:
        """The recommended settings, and those of the source where they are others."""
        has_source = ROWS[self.method].published is not None
        return (RECOMMENDED, AS_PRINTED) if has_source else (RECOMMENDED,)

    @property
    def searched(self) -> Collection[str]:
        """Names of all parameters."""
        return ROWS[self.method].space

    def around(self, whose: str) -> Settled:
        """Return the settings that a proposal changes: ours, or the source's at the same sizes."""
        row = ROWS[self.method]
        if whose == RECOMMENDED or row.published is None:
            return Settled(self.training, self.evaluation)
        ours, default = self.training.to_dict(), row.config.to_dict()
        # Sizes of this study, by its preset or by whoever set them, for this data.
        sizes = {*_SIZES, *row.quick} & set(ours)
        changed = {name: ours[name] for name in sizes if ours[name] != default[name]}
        if self.num_episodes:
            changed["num_episodes"] = self.num_episodes
        return Settled(row.published.with_overrides(changed), self.evaluation)

    def propose(self, trial: Suggests, whose: str = RECOMMENDED) -> Settled:
        """Return the settings of one trial; those of the source are taken as they are."""
        around = self.around(whose)
        if whose == AS_PRINTED:
            return around
        found = {name: self._suggest(trial, name) for name in self.searched}
        of_training = {name: found[name] for name in around.training.to_dict() if name in found}
        others = {name: value for name, value in found.items() if name not in of_training}
        return Settled(
            around.training.with_overrides(of_training), around.evaluation.with_overrides(others)
        )

    def _suggest(self, trial: Suggests, name: str) -> Any:
        values = ROWS[self.method].space[name]
        if name == "perplexity" and isinstance(values, Range):
            # More base classes than there are is no choice.
            recommended = self.evaluation.perplexity or values.low
            values = replace(values, high=max(recommended, min(values.high, self.num_base / 2)))
        return suggest(trial, name, values)


def suggest(trial: Suggests, name: str, values: Range | Choice) -> Any:
    """Return the value that a trial gives to a parameter: of a range, or one of some choices."""
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, list(values))
    low, high = values.low, values.high
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=values.log)
    return trial.suggest_float(name, low, high, log=values.log)


class _OwnValues:
    """Answers like an Optuna trial, with values that are given already."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.asked: dict[str, Any] = {}

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        value = self._values[name]
        if not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(f"{name} is {value}, but the search goes from {low} to {high}")
        self.asked[name] = value
        return float(value)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        return int(self.suggest_float(name, low, high))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        value = self._values[name]
        value = text_of(value) if isinstance(value, tuple) else value
        self.asked[name] = value
        if value not in choices:
            known = ", ".join(map(str, choices))
            raise ValueError(f"{name} is {value}, but the search knows {known}")
        return value


def text_of(shots: Sequence[int]) -> str:
    """Return numbers as one choice, of a kind that Optuna keeps."""
    return ",".join(map(str, shots))

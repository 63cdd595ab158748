"""Search spaces: the parameters of a row, and the first points of its search."""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from optuna.trial import BaseTrial, FixedTrial

from cpaan.core.settings import Settings
from cpaan.methods.registry import ROWS, num_episodes_of, with_episodes
from cpaan.methods.table_row import Range, SearchSpace
from cpaan.protocol.config import EvaluationConfig

RECOMMENDED, AS_PRINTED = "recommended", "as_printed"
"""Whose settings apply where a proposal sets none: ours, or those of the method's source."""


@dataclass(frozen=True)
class Resolved:
    """All settings of one trial."""

    training: Settings
    evaluation: EvaluationConfig

    @classmethod
    def of(cls, method: str, recorded: Mapping[str, Any]) -> Self:
        """Return the recorded "training" and "evaluation" settings of a method."""
        training = ROWS[method].config.from_dict(recorded["training"])
        return cls(training, EvaluationConfig(**recorded["evaluation"]))

    def with_overrides(self, overrides: Mapping[str, Any]) -> "Resolved":
        """Return a copy with overrides of training; other names are overrides of evaluation."""
        known = self.training.to_dict()
        of_training = {name: value for name, value in overrides.items() if name in known}
        others = {name: value for name, value in overrides.items() if name not in known}
        return Resolved(
            self.training.with_overrides(of_training), self.evaluation.with_overrides(others)
        )

    def times_as_long(self, factor: int) -> "Resolved":
        """Return a copy with ``factor`` times the episodes, if there are any."""
        num_episodes = num_episodes_of(self.training) * factor
        return replace(self, training=with_episodes(self.training, num_episodes))


@dataclass(frozen=True)
class Space:
    """Search space of one method on one data set, around the settings of a preset."""

    method: str
    training: Settings
    evaluation: EvaluationConfig
    num_dims: int
    num_base: int

    @property
    def points(self) -> tuple[str, ...]:
        """Whose settings the first trials use: ours, and those of the source if there are any."""
        has_source = ROWS[self.method].published is not None
        return (RECOMMENDED, AS_PRINTED) if has_source else (RECOMMENDED,)

    @property
    def searched(self) -> SearchSpace:
        """Searched parameters by name."""
        row = ROWS[self.method]
        return row.space_for(self.training, self.evaluation, self.num_dims, self.num_base)

    def around(self, whose: str) -> Resolved:
        """Return the settings that a proposal changes: ours, or the source's at the same sizes."""
        row = ROWS[self.method]
        published = row.published_for(self.training) if whose == AS_PRINTED else None
        if published is None:
            return Resolved(self.training, self.evaluation)
        return Resolved(published, self.evaluation.with_overrides(row.published_evaluation))

    def propose(self, trial: BaseTrial, whose: str = RECOMMENDED) -> Resolved:
        """Return the settings of one trial; parameters without effect are not sampled.

        The source's settings are used unchanged, without parameters for the sampler. They differ
        from ours in other settings, too, so their score would mislead the sampler.
        """
        found: dict[str, Any] = {}
        if whose == RECOMMENDED:
            for name, values in self.searched.items():
                when = values.when if isinstance(values, Range) else None
                if when is None or found[when[0]] == when[1]:
                    found[name] = suggest(trial, name, values)
        return self.around(whose).with_overrides(found)

    def point(self, whose: str) -> dict[str, Any]:
        """Return the parameters of one of the first trials.

        Raises:
            ValueError: If a parameter is outside its range.
        """
        around = self.around(whose)
        given = FixedTrial({**around.evaluation.to_dict(), **around.training.to_dict()})
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Optuna warns about a value outside its range
            try:
                self.propose(given, whose)
            except UserWarning as warning:
                raise ValueError(f"{self.method} cannot be searched: {warning}") from warning
        return given.params

    def check_fixed(self, names: Collection[str]) -> None:
        """Refuse to set a parameter that is searched.

        Raises:
            ValueError: If a name is searched; the message has the name.
        """
        for name in names:
            if name in self.searched:
                raise ValueError(f"{name} is searched, so it cannot be set")


def suggest(trial: BaseTrial, name: str, values: Range | tuple[Any, ...]) -> Any:
    """Return the value that a trial suggests for a parameter, from a range or from choices."""
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, list(values))
    low, high = values.low, values.high
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=values.log)
    return trial.suggest_float(name, low, high, log=values.log)

"""One row of a study: its settings, its search space, and the first points of its search."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Self

from optuna.trial import BaseTrial, FixedTrial

from cpaan.core.settings import Settings
from cpaan.data.reference import DataReference
from cpaan.methods.registry import METHODS, num_episodes_of, with_episodes
from cpaan.methods.table_row import Range, SearchSpace
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig
from cpaan.study.config import StudyConfig

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
        training = METHODS[method].config.from_dict(recorded["training"])
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
class StudyRow:
    """One row of a study, with everything that determines its search."""

    config: StudyConfig
    training: Settings
    """Recommended settings of the method at the size of the study."""
    evaluation: EvaluationConfig
    """Settings for the validation phase; all trials use the same draws."""
    data: DataReference
    num_dims: int
    embedding: EmbeddingConfig | None = None
    """Settings of the method's embedding; None if it uses none."""

    @property
    def method(self) -> str:
        """Name of the row in the registry."""
        return self.config.method

    @property
    def num_episodes(self) -> int:
        """Episodes of a trial that is not stopped early."""
        return num_episodes_of(self.training)

    @property
    def points(self) -> tuple[str, ...]:
        """Whose settings the first trials use: ours, and those of the source if there are any."""
        has_source = METHODS[self.method].published is not None
        return (RECOMMENDED, AS_PRINTED) if has_source else (RECOMMENDED,)

    @property
    def searched(self) -> SearchSpace:
        """Search space around the recommended settings: parameters by name."""
        num_base = len(self.data.split.base_classes())
        method = METHODS[self.method]
        return method.space_for(self.training, self.evaluation, self.num_dims, num_base)

    def settings_of(self, whose: str) -> Resolved:
        """Return the settings that a proposal changes: ours, or the source's at the same sizes."""
        method = METHODS[self.method]
        published = method.published_for(self.training) if whose == AS_PRINTED else None
        if published is None:
            return Resolved(self.training, self.evaluation)
        return Resolved(published, self.evaluation.with_overrides(method.published_evaluation))

    def propose(self, trial: BaseTrial, whose: str = RECOMMENDED) -> Resolved:
        """Return the settings of one trial.

        The source's settings are used unchanged, without parameters for the sampler. They differ
        from ours in other settings, too, so their score would mislead the sampler.
        """
        space = self.searched if whose == RECOMMENDED else {}
        parameters = {name: _suggest(trial, name, values) for name, values in space.items()}
        return self.settings_of(whose).with_overrides(parameters)

    def point(self, whose: str) -> dict[str, Any]:
        """Return the parameters of one of the first trials.

        Raises:
            ValueError: If a parameter is outside its range.
        """
        settings = self.settings_of(whose)
        given = FixedTrial({**settings.evaluation.to_dict(), **settings.training.to_dict()})
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Optuna warns about a value outside its range
            try:
                self.propose(given, whose)
            except UserWarning as warning:
                raise ValueError(f"{self.method} cannot be searched: {warning}") from warning
        return given.params

    def for_score(self, resolved: Resolved, **others: Any) -> Resolved:
        """Return settings whose evaluation computes only the head that scores the search."""
        return resolved.with_overrides({"heads": (self.config.head,), **others})

    def sweep(self, resolved: Resolved) -> list[dict[str, Any]]:
        """Return the overrides to score a trained finalist with; its own settings come first."""
        swept = dict(METHODS[self.method].sweep)
        if resolved.evaluation.mixing_weight is not None:  # it overrides mixing_shots
            swept.pop("mixing_shots", None)
        known = {**resolved.evaluation.to_dict(), **resolved.training.to_dict()}
        trained_with = {name: known[name] for name in swept}
        grid = (dict(zip(swept, values, strict=True)) for values in product(*swept.values()))
        return [trained_with, *(settings for settings in grid if settings != trained_with)]

    def describe(self) -> dict[str, Any]:
        """Return the row as JSON-compatible data."""
        content = asdict(self)
        num_dims = content.pop("num_dims")
        return {**content, "dimensions": num_dims}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the row that `describe` was called on."""
        config, embedding = StudyConfig(**content["config"]), content["embedding"]
        resolved = Resolved.of(config.method, content)
        return cls(
            config,
            resolved.training,
            resolved.evaluation,
            DataReference.from_dict(content["data"]),
            content["dimensions"],
            None if embedding is None else EmbeddingConfig(**embedding),
        )


def _suggest(trial: BaseTrial, name: str, values: Range | tuple[Any, ...]) -> Any:
    if not isinstance(values, Range):
        return trial.suggest_categorical(name, list(values))
    low, high = values.low, values.high
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(name, low, high, log=values.log)
    return trial.suggest_float(name, low, high, log=values.log)

"""What a search proposes: the parameters, their ranges, and the paper's own points."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cpaan.config import META_TESTING_AS_PRINTED, EvaluationConfig, TrainConfig
from cpaan.gans import GANS

RECOMMENDED, AS_PRINTED = "recommended", "as_printed"
"""Whose settings hold where a proposal is silent."""

_PRINTED = (
    "cycle_weight",
    "covariance_weight",
    "ky_fan_order",
    "neighbours",
    "noise_dim",
    "num_components",
    "noise_spread",
)
"""Parameters that the paper gives a value for."""
_SEARCHED = (*_PRINTED, "perplexity", "num_neighbours", "noise")
_SEARCHED_WIDE = (
    "generator_learning_rate",
    "discriminator_learning_rate",
    "episode_shots",
    "residual",
    "mixing_shots",
    "num_synthetic",
)


class Suggests(Protocol):
    """What the space needs of an Optuna trial."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Return a number of a range."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        """Return a whole number of a range, ends included."""

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any:
        """Return one of the choices."""


@dataclass(frozen=True)
class Settled:
    """All settings of one trial."""

    training: TrainConfig
    evaluation: EvaluationConfig


@dataclass(frozen=True)
class Space:
    """The parameters of one method, on one data set, around the settings of a preset."""

    method: str
    training: TrainConfig
    evaluation: EvaluationConfig
    num_dims: int
    num_base: int
    wide: bool

    def around(self, whose: str) -> Settled:
        """Return the settings that a proposal changes: ours, or the paper's at the same sizes."""
        if whose == RECOMMENDED:
            return Settled(self.training, self.evaluation)
        sizes = ("num_episodes", "num_ways", "batch_size", "hidden_dim")
        shots = (max(self.training.episode_shots),)  # the paper draws one number only
        overrides = {name: getattr(self.training, name) for name in sizes}
        return Settled(
            TrainConfig.as_printed().with_overrides({**overrides, "episode_shots": shots}),
            self.evaluation.with_overrides(META_TESTING_AS_PRINTED),
        )

    def propose(self, trial: Suggests, whose: str = RECOMMENDED) -> Settled:
        """Return the settings of one trial; parameters that would change nothing are not asked for.

        Args:
            trial: Gives the values.
            whose: RECOMMENDED or AS_PRINTED. What the paper does without, a perplexity say, is
                not asked for in its own point.
        """
        around = self.around(whose)
        training = self._propose_training(trial, around.training)
        evaluation: dict[str, Any] = {}
        if self.wide:
            training |= self._propose_more_training(trial)
            if around.evaluation.mixing_shots is not None and self.evaluation.mixing_weight is None:
                evaluation["mixing_shots"] = trial.suggest_float("mixing_shots", 0.2, 20, log=True)
            if not around.evaluation.fill_to_capacity:
                evaluation["num_synthetic"] = trial.suggest_int("num_synthetic", 10, 500, log=True)
        return Settled(
            around.training.with_overrides(training),
            around.evaluation.with_overrides(evaluation),
        )

    def _propose_training(self, trial: Suggests, around: TrainConfig) -> dict[str, Any]:
        gan = GANS[self.method]
        num_meta_base = self.num_base - around.num_ways
        found: dict[str, Any] = {}
        if gan.has_cycle:
            found["cycle_weight"] = trial.suggest_float("cycle_weight", 0.05, 50, log=True)
        if gan.has_covariance:
            found["covariance_weight"] = trial.suggest_float(
                "covariance_weight", 0.01, 10, log=True
            )
            most = min(20, self.num_dims)
            found["ky_fan_order"] = trial.suggest_int("ky_fan_order", 1, most, log=True)
        found["neighbours"] = trial.suggest_categorical("neighbours", ["soft", "hard"])
        if found["neighbours"] == "hard":
            most = min(50, num_meta_base)
            found["num_neighbours"] = trial.suggest_int("num_neighbours", 1, most, log=True)
        elif around.perplexity is not None:
            largest = max(around.perplexity, min(50, num_meta_base / 2))
            found["perplexity"] = trial.suggest_float("perplexity", 1.5, largest, log=True)
        if gan.has_cycle:  # noise is a matter of the way back
            kind = gan.noise
            if kind is None:
                kind = trial.suggest_categorical("noise", ["gaussian", "mixture"])
                found["noise"] = kind
            found["noise_dim"] = trial.suggest_int("noise_dim", 5, 200, log=True)
            if kind == "mixture":
                found["num_components"] = trial.suggest_int("num_components", 2, 200, log=True)
                found["noise_spread"] = trial.suggest_float("noise_spread", 0.02, 2, log=True)
        return found

    def _propose_more_training(self, trial: Suggests) -> dict[str, Any]:
        rates = ("generator_learning_rate", "discriminator_learning_rate")
        found: dict[str, Any] = {
            name: trial.suggest_float(name, 1e-5, 1e-2, log=True) for name in rates
        }
        shots = self.training.episode_shots  # of all trials: Optuna wants the same choices
        choices = list(dict.fromkeys([shots, (min(shots),), (max(shots),)]))
        chosen = trial.suggest_categorical("episode_shots", [_text(choice) for choice in choices])
        found["episode_shots"] = tuple(int(part) for part in chosen.split(","))
        found["residual"] = trial.suggest_categorical(
            "residual", ["none", "identity", "mean-shift"]
        )
        return found

    def point(self, whose: str) -> dict[str, Any]:
        """Return the paper's parameters: with our settings elsewhere, or with its own.

        Raises:
            ValueError: If one of them is outside its range.
        """
        around = self.around(whose)
        values = {**around.evaluation.to_dict(), **around.training.to_dict()}
        if whose == RECOMMENDED:
            printed = TrainConfig.as_printed().to_dict()
            values |= {name: printed[name] for name in _PRINTED}
        own = _OwnValues(values)
        self.propose(own, whose)
        return own.asked

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
        searched = (*_SEARCHED, *(_SEARCHED_WIDE if self.wide else ()))
        for name in names:
            if name in searched:
                raise ValueError(f"{name} is searched: --points has values of it to be tried")


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

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        value = self._values[name]
        self.asked[name] = text = value if isinstance(value, str) else _text(value)
        if text not in choices:
            raise ValueError(f"{name} is {text}, but the search knows {', '.join(choices)}")
        return text


def _text(shots: Sequence[int]) -> str:
    return ",".join(map(str, shots))

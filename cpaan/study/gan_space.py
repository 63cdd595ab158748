"""What a search of one of the four GANs proposes, with the paper's own points."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.gan.gans import GANS
from cpaan.methods.registry import ROWS
from cpaan.protocol.config import EvaluationConfig
from cpaan.study.space import (
    AS_PRINTED,
    RECOMMENDED,
    Settled,
    Space,
    Suggests,
    suggest,
    text_of,
)

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
    "num_synthetic",
)


@dataclass(frozen=True)
class SettledGan(Settled):
    """All settings of one trial of a GAN."""

    training: TrainConfig


@dataclass(frozen=True)
class GanSpace(Space):
    """The parameters of one of the four GANs, in which some matter only beside others."""

    method: str
    training: TrainConfig
    evaluation: EvaluationConfig
    num_dims: int
    num_base: int
    wide: bool

    @property
    def points(self) -> tuple[str, ...]:
        """The paper's weights with our settings elsewhere; and the paper to the letter."""
        return (RECOMMENDED, AS_PRINTED)

    @property
    def searched(self) -> Collection[str]:
        """Names of all parameters that any trial has."""
        wide = _SEARCHED_WIDE if self.wide else ()
        return dict.fromkeys((*_SEARCHED, *wide, *ROWS[self.method].space))

    def around(self, whose: str) -> "SettledGan":
        """Return the settings that a proposal changes: ours, or the paper's at the same sizes."""
        if whose == RECOMMENDED:
            return SettledGan(self.training, self.evaluation)
        sizes = ("num_episodes", "num_ways", "batch_size", "hidden_dim")
        printed = TrainConfig.as_printed()
        # The paper draws one number only, which small episodes have no room for.
        shots = (min(printed.max_shots, self.training.max_shots),)
        overrides = {name: getattr(self.training, name) for name in sizes}
        return SettledGan(
            printed.with_overrides({**overrides, "episode_shots": shots}),
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
            if not around.evaluation.fill_to_capacity:
                evaluation["num_synthetic"] = trial.suggest_int("num_synthetic", 10, 500, log=True)
        if whose == RECOMMENDED:
            of_row = self._propose_of_row(trial)
            known = around.training.to_dict()
            training |= {name: value for name, value in of_row.items() if name in known}
            evaluation |= {name: value for name, value in of_row.items() if name not in known}
        return Settled(
            around.training.with_overrides(training),
            around.evaluation.with_overrides(evaluation),
        )

    def _propose_training(self, trial: Suggests, around: TrainConfig) -> dict[str, Any]:
        gan = GANS[ROWS[self.method].generation]
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
        chosen = trial.suggest_categorical("episode_shots", [text_of(choice) for choice in choices])
        found["episode_shots"] = tuple(int(part) for part in chosen.split(","))
        if "residual" not in ROWS[self.method].space:
            found["residual"] = trial.suggest_categorical(
                "residual", ["none", "identity", "mean-shift"]
            )
        return found

    def _propose_of_row(self, trial: Suggests) -> dict[str, Any]:
        """Propose what the row has beside the paper's parameters."""
        has_weight = self.evaluation.mixing_weight is not None  # which leaves nothing to shots
        return {
            name: suggest(trial, name, values)
            for name, values in ROWS[self.method].space.items()
            if name != "mixing_shots" or not has_weight
        }

    def _values_of_point(self, whose: str) -> dict[str, Any]:
        values = super()._values_of_point(whose)
        if whose == RECOMMENDED:
            printed = TrainConfig.as_printed().to_dict()
            values |= {name: printed[name] for name in _PRINTED}
        return values

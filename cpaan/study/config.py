"""What a study is: its settings, its presets, and the data it is about."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpaan.core.settings import Settings
from cpaan.methods.registry import ROWS
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig

DEFAULT_METHOD = "CP-AAN+"


@dataclass(frozen=True, kw_only=True)
class StudyConfig(Settings):
    """Everything that decides the outcome of a search, apart from the data.

    Raises:
        ValueError: If a value makes no sense.
    """

    method: str = DEFAULT_METHOD
    """Which row of the table."""
    seed: int = 0
    """Decides proposals, and the training of every trial; the finalists' further seeds follow."""
    num_trials: int = 12
    """How many proposals are tried; the first two are the paper's."""
    workers_per_trial: int = 1
    """Processes that train one trial together, each on its own episodes."""
    gpus_per_worker: float = 0.0
    """GPUs of each of them, fractions too; zero: each has a CPU core instead."""
    ray_train: bool = True
    """Whether trials are runs of Ray Train; one worker can do without, and starts sooner."""

    head: str = "cosine"
    """The classifier that trials are scored with; "own" where the method has none but its own."""
    novel_weight: float = 1.0
    """Weight of LSL top-5, mean over shots, in the score."""
    all_weight: float = 1.0
    """Weight of GLSL top-5, likewise."""

    early_stopping: bool = True
    """Whether ASHA stops trials that are behind at a rung."""
    num_rungs: int = 2
    """Evaluations before the last one, each with ``reduction_factor`` times the episodes."""
    reduction_factor: int = 2
    """Of so many trials that reach a rung, one goes on."""

    num_finalists: int = 5
    """Trials that are scored again at the end, of those that were not stopped; at most."""
    final_length: int = 1
    """How many times as long as a trial the finalists are trained, and what the report is of."""
    num_final_draws: int = 20
    """Draws of that, which no trial has met."""
    num_final_seeds: int = 3
    """Training seeds of that, the trial's own first."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_trials", "workers_per_trial", "num_finalists")
        self._refuse_unless_positive("final_length", "num_final_draws", "num_final_seeds")
        self._refuse_negative("seed", "gpus_per_worker", "novel_weight", "all_weight", "num_rungs")
        self._refuse(["method"], lambda name: name in ROWS, f"one of {', '.join(ROWS)}")
        heads = ROWS[self.method].heads
        self._refuse(["head"], lambda name: name in heads, f"one of {', '.join(heads)}")
        self._refuse(["reduction_factor"], lambda factor: factor >= 2, "2 or more")
        is_whole = "a whole number or a fraction below one"
        self._refuse(["gpus_per_worker"], lambda count: count <= 1 or count % 1 == 0, is_whole)
        if not self.novel_weight + self.all_weight:
            raise ValueError("novel_weight and all_weight are both zero: nothing to search for")
        if not self.ray_train and self.workers_per_trial > 1:
            raise ValueError(
                f"ray_train is needed by workers that train together, got {self.workers_per_trial}"
            )

    def score(self, novel_top5: float, all_top5: float) -> float:
        """Return the weighted mean of the two."""
        weighted = self.novel_weight * novel_top5 + self.all_weight * all_top5
        return weighted / (self.novel_weight + self.all_weight)

    def eval_steps(self, num_episodes: int) -> tuple[int, ...]:
        """Return after how many episodes a trial is evaluated: at the rungs, and at its end.

        Every step is a multiple of the number of workers, as ``num_episodes`` must be.
        """
        first = num_episodes / self.reduction_factor**self.num_rungs
        grace = max(1, round(first / self.workers_per_trial)) * self.workers_per_trial
        rungs = [grace * self.reduction_factor**rung for rung in range(self.num_rungs)]
        return (*(rung for rung in rungs if rung < num_episodes), num_episodes)


@dataclass(frozen=True)
class Preset:
    """A size of study: what differs there from the defaults."""

    study: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    is_quick: bool
    """Whether methods have the quick sizes of their rows, or those at the paper's scale."""

    def recommended(self, method: str = DEFAULT_METHOD) -> tuple[Settings, EvaluationConfig]:
        """Return our settings of a method at this size."""
        evaluation = EvaluationConfig().with_overrides(self.evaluation)
        row = ROWS[method]
        return row.config.with_overrides(row.quick if self.is_quick else row.full), evaluation

    def embedding(self, method: str) -> EmbeddingConfig | None:
        """Return the settings of the embedding that a method works in, if it does."""
        if not ROWS[method].is_embedded:
            return None
        return EmbeddingConfig().with_overrides(ROWS["PN"].quick if self.is_quick else {})

    def study_of(self, method: str) -> StudyConfig:
        """Return the settings of a study of a method."""
        row = ROWS[method]
        head = (row.quick_head if self.is_quick else None) or row.head
        return StudyConfig().with_overrides({**self.study, "method": method, "head": head})


PRESETS = {
    # Two CPU cores, minutes.
    "quick": Preset(
        study={"num_trials": 12, "num_rungs": 2}, evaluation={"num_synthetic": 40}, is_quick=True
    ),
    # The paper's scale, for GPUs.
    "paper": Preset(study={"num_trials": 40, "num_rungs": 3}, evaluation={}, is_quick=False),
}

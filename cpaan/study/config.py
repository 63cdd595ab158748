"""Settings and presets of a study."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpaan.core.settings import Settings
from cpaan.evaluation.scoring import CALIBRATED_TOP5, NOVEL_TOP5
from cpaan.methods.registry import METHODS, ROWS, num_episodes_of
from cpaan.protocol.config import EvaluationConfig
from cpaan.representation.config import EmbeddingConfig

DEFAULT_METHOD = "CP-AAN+"


@dataclass(frozen=True, kw_only=True)
class StudyConfig(Settings):
    """Settings of a search. Together with the data, they determine its outcome.

    Raises:
        ValueError: If a value is invalid.
    """

    method: str = DEFAULT_METHOD
    """Method to search: the name of a row of the table."""
    seed: int = 0
    """Seed of the proposals and of each trial's training. Finalists also use the seeds after it."""
    num_trials: int = 12
    """Number of trials. One uses the recommended settings, and one the published settings."""
    workers_per_trial: int = 1
    """Number of processes that train one trial together, each on its own episodes."""
    gpus_per_worker: float = 0.0
    """GPUs per worker: a whole number, a fraction below one, or zero to train on one CPU core."""
    ray_train: bool | None = None
    """Whether trials use Ray Train. None: if they have a GPU or several workers; a single process
    starts faster without, and its scores are equal."""

    head: str = "cosine"
    """Classifier that scores the trials; "own" for a method that has only its own classifier."""
    novel_weight: float = 1.0
    """Weight of LSL top-5 accuracy (mean over shots) in the score."""
    all_weight: float = 1.0
    """Weight of calibrated GLSL top-5 accuracy (mean over shots) in the score."""

    early_stopping: bool = True
    """Whether ASHA stops trials that fall behind at a rung."""
    num_rungs: int = 2
    """Evaluation steps before the last; the episodes grow by ``reduction_factor`` at each step."""
    reduction_factor: int = 2
    """ASHA continues one in this many trials at each rung."""

    num_finalists: int = 5
    """Maximum number of completed trials that are scored again at the end."""
    report_length: int = 1
    """Episodes of report rows, as a multiple of the episodes of trials and finalists."""
    num_final_draws: int = 20
    """Number of draws that score each finalist; trials do not use these draws."""
    num_final_seeds: int = 3
    """Number of training seeds of each finalist; the first is the seed of its trial."""
    num_report_draws: int = 50
    """Number of seeded draws of the report, unless its command sets another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_unless_positive("num_trials", "workers_per_trial", "num_finalists")
        self._refuse_unless_positive("report_length", "num_final_draws", "num_final_seeds")
        self._refuse(["num_report_draws"], lambda count: count >= 2, "2 or more")
        self._refuse_negative("seed", "gpus_per_worker", "novel_weight", "all_weight", "num_rungs")
        self._refuse(["method"], lambda name: name in ROWS, f"one of {', '.join(ROWS)}")
        heads = ROWS[self.method].heads
        self._refuse(["head"], lambda name: name in heads, f"one of {', '.join(heads)}")
        self._refuse(["reduction_factor"], lambda factor: factor >= 2, "2 or more")
        is_whole = "a whole number or a fraction below one"
        self._refuse(["gpus_per_worker"], lambda count: count <= 1 or count % 1 == 0, is_whole)
        if not self.novel_weight + self.all_weight:
            raise ValueError("novel_weight and all_weight are both zero; set at least one above 0")
        if self.ray_train is False and self.workers_per_trial > 1:
            raise ValueError(
                f"workers_per_trial={self.workers_per_trial} needs ray_train=true; otherwise use 1"
            )

    @property
    def uses_ray_train(self) -> bool:
        """Whether trials use Ray Train: as set, or else if they have a GPU or several workers."""
        if self.ray_train is None:
            return self.workers_per_trial > 1 or self.gpus_per_worker > 0
        return self.ray_train

    def score(self, top5: Mapping[str, Any]) -> float:
        """Return the weighted mean of LSL and calibrated GLSL; see `scoring.mean_top5`."""
        weighted = self.novel_weight * top5[NOVEL_TOP5] + self.all_weight * top5[CALIBRATED_TOP5]
        return weighted / (self.novel_weight + self.all_weight)

    def eval_steps(self, num_episodes: int) -> tuple[int, ...]:
        """Return the numbers of episodes at which a trial is evaluated: the rungs and the end.

        Every step is a multiple of the number of workers. ``num_episodes`` must be one, too.
        """
        first = num_episodes / self.reduction_factor**self.num_rungs
        grace = max(1, round(first / self.workers_per_trial)) * self.workers_per_trial
        rungs = [grace * self.reduction_factor**rung for rung in range(self.num_rungs)]
        return (*(rung for rung in rungs if rung < num_episodes), num_episodes)


@dataclass(frozen=True)
class Preset:
    """A size of study: the settings that differ from the defaults."""

    study: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    is_quick: bool
    """Whether methods use the quick sizes of their rows, or those at the paper's scale."""

    def recommended(self, method: str = DEFAULT_METHOD) -> tuple[Settings, EvaluationConfig]:
        """Return the recommended settings of a method at this size."""
        chosen = METHODS[method]
        training = chosen.at_size(is_quick=True) if self.is_quick else chosen.config
        return training, EvaluationConfig().with_overrides(self.evaluation)

    def embedding(self, method: str) -> EmbeddingConfig | None:
        """Return the settings of a method's embedding; None if it uses none."""
        if not ROWS[method].is_embedded:
            return None
        return EmbeddingConfig().with_overrides(METHODS["PN"].quick if self.is_quick else {})

    def study_of(self, method: str) -> StudyConfig:
        """Return the settings of a study of a method, whose report has the full length of its row.

        At the paper's scale, this is 100,000 episodes for GANs, ten times those of a trial. Other
        methods have one length.
        """
        row, (training, _) = ROWS[method], self.recommended(method)
        head = (row.quick_head if self.is_quick else None) or row.head
        of_row: dict[str, Any] = {"method": method, "head": head}
        if num_episodes := num_episodes_of(training):
            full = num_episodes_of(row.method.at_size(is_quick=self.is_quick))
            of_row["report_length"] = full // num_episodes
        return StudyConfig().with_overrides({**self.study, **of_row})


PRESETS = {
    # Takes minutes on two CPU cores.
    "quick": Preset(
        # The sweep scores a finalist with up to 13 combinations of settings.
        study={
            "num_finalists": 3,
            "num_final_draws": 5,
            "num_final_seeds": 1,
            "num_report_draws": 20,
        },
        evaluation={"num_synthetic": 40},
        is_quick=True,
    ),
    # The paper's scale, for GPUs: a trial of a GAN has 10,000 episodes and a rung at 5,000.
    "paper": Preset(study={"num_rungs": 1}, evaluation={}, is_quick=False),
}

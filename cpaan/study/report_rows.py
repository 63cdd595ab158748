"""The rows of a report: whose settings, and which seeds that no search has seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpaan.methods.controls import CONTROLS
from cpaan.methods.registry import ROWS, num_episodes_of
from cpaan.methods.table_row import IN_PN
from cpaan.report.page.contents import Ablation
from cpaan.study.finals import in_full
from cpaan.study.folder import Study
from cpaan.study.records import BEST, OPTUNA, read_json
from cpaan.study.searcher import open_study, settled_of
from cpaan.study.space import Settled

_FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Row:
    """A row of the table: a method, its settings, and the seeds that it is trained with."""

    name: str
    method: str
    settled: Settled
    seeds: tuple[int, ...]
    study: Study
    """Where its training is kept, and whose data it is about."""
    trial: int | None = None
    """Whose settings these are; None where it took no part in a search."""
    ablation: Ablation | None = None
    """None: a row of the table itself."""
    same_as: str | None = None
    """Name of a row that has the same settings, and therefore the same scores."""

    @property
    def is_trained(self) -> bool:
        """Whether anything is trained."""
        return num_episodes_of(self.settled.training) > 0

    def describe(self) -> dict[str, Any]:
        """Return it for JSON."""
        training = None if self.trial is None else self.settled.training.to_dict()
        return {
            "name": self.name,
            "method": self.method,
            "trial": self.trial,
            "seeds": list(self.seeds),
            "training": training,
            "evaluation": self.settled.evaluation.to_dict(),
            "ablation": None if self.ablation is None else vars(self.ablation),
        }


@dataclass(frozen=True)
class ReportSettings:
    """What a report does beyond the study's own settings."""

    num_seeds: int = 3
    """Trainings of a configuration, none of which the search has seen."""
    num_fixed_draws: int = 5
    num_seeded_draws: int = 50
    heads: tuple[str, ...] = ()
    """Classifiers; none: the one of the search."""
    num_ablation_seeds: int = 1
    """The same for ablations, of which there are many; no more than ``num_seeds``."""
    is_table_only: bool = False
    """Whether ablations, illustrations and the spiral are left out."""

    def __post_init__(self) -> None:
        if self.num_seeds < _FEWEST_SEEDS:
            raise ValueError(f"a report needs {_FEWEST_SEEDS} seeds at least, got {self.num_seeds}")
        if self.num_seeded_draws < 2:
            raise ValueError(
                f"intervals need two seeded draws at least, got {self.num_seeded_draws}"
            )
        if not 1 <= self.num_ablation_seeds <= self.num_seeds:
            raise ValueError(
                f"ablations have one to {self.num_seeds} seeds, as the rows do, "
                f"got {self.num_ablation_seeds}"
            )


def rows_of(study: Study, best: dict[str, Any], settings: ReportSettings) -> list[Row]:
    """Return what the report compares: the controls, the first point of the search, the best."""
    config = study.config
    seeds = _new_seeds(study, settings)
    suffix = IN_PN if ROWS[config.method].is_embedded else ""  # controls in the same space
    rows = [
        Row(name, name, Settled(ROWS[name].config, study.evaluation), seeds[:1], study)
        for name in (f"{control}{suffix}" for control in CONTROLS)
        if name != config.method
    ]
    if best["trial"] != 0:
        trials = open_study(study.folder / OPTUNA).get_trials(deepcopy=False)
        first = in_full(settled_of(trials[0], config), config)
        rows.append(Row(f"{config.method}, trial 0", config.method, first, seeds, study, 0))
    return [*rows, _best_row(f"{config.method}, best", study, best, settings)]


def rows_of_table(studies: Sequence[Study], settings: ReportSettings) -> list[Row]:
    """Return the best of every study, by the names of the methods."""
    return [
        _best_row(study.config.method, study, read_json(study.folder, BEST), settings)
        for study in studies
    ]


def _best_row(name: str, study: Study, best: dict[str, Any], settings: ReportSettings) -> Row:
    method, seeds = study.config.method, _new_seeds(study, settings)
    chosen = Settled.of(method, best["training"], best["evaluation"])
    return Row(name, method, chosen, seeds, study, best["trial"])


def _new_seeds(study: Study, settings: ReportSettings) -> tuple[int, ...]:
    first = study.config.seed + study.config.num_final_seeds  # after those that chose the best
    return tuple(range(first, first + settings.num_seeds))

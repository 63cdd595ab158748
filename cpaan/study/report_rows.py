"""The rows of a report: their settings and their training seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cpaan.methods.controls import CONTROLS
from cpaan.methods.registry import ROWS
from cpaan.methods.table_row import IN_PN
from cpaan.report.page.contents import DEFAULT, Ablation
from cpaan.study.searcher import open_trials
from cpaan.study.space import Resolved
from cpaan.study.study import Study, StudyRow

_FEWEST_SEEDS = 3


@dataclass(frozen=True)
class MeasuredRow:
    """A row of the table: a method, its settings, and the seeds that it is trained with."""

    name: str
    method: str
    resolved: Resolved
    seeds: tuple[int, ...]
    source: StudyRow
    """Row of the study that provides the data and the resources."""
    trial: int | None = None
    """Trial that provides the settings; None if they were not searched."""
    ablation: Ablation | None = None
    """None for a row of the table itself."""
    same_as: str | None = None
    """Name of a row with the same settings, and therefore the same scores."""

    @property
    def measured_as(self) -> str:
        """Name of the row that is measured: this row, or an equal one."""
        return self.same_as or self.name

    def describe(self) -> dict[str, Any]:
        """Return the row as JSON-compatible data."""
        return {
            "name": self.name,
            "method": self.method,
            "trial": self.trial,
            "seeds": list(self.seeds),
            "training": None if self.trial is None else self.resolved.training.to_dict(),
            "evaluation": self.resolved.evaluation.to_dict(),
            "ablation": None if self.ablation is None else vars(self.ablation),
        }

    def changed(self, family: str, label: str, overrides: Mapping[str, Any]) -> "MeasuredRow":
        """Return an ablation of this row: the same row with some settings changed."""
        resolved = self.resolved.with_overrides(overrides)
        return replace(
            self,
            name=f"{self.name}: {label}",
            resolved=resolved,
            ablation=Ablation(self.name, family, label),
            same_as=self.name if resolved == self.resolved else None,
        )


@dataclass(frozen=True)
class ReportSettings:
    """The size of a report."""

    num_seeds: int = 3
    """Number of training seeds of each configuration; the search has not used them."""
    num_fixed_draws: int = 5
    num_seeded_draws: int = 50
    heads: tuple[str, ...] = ()
    """Classifiers. If empty: the head of the search, or all heads for a study of several rows."""
    num_ablation_seeds: int = 1
    """Number of training seeds of each ablation; at most ``num_seeds``."""
    is_table_only: bool = False
    """Whether to leave out ablations, illustrations and the spiral."""

    def __post_init__(self) -> None:
        if self.num_seeds < _FEWEST_SEEDS:
            raise ValueError(f"a report needs at least {_FEWEST_SEEDS} seeds, got {self.num_seeds}")
        if self.num_seeded_draws < 2:
            raise ValueError(f"intervals need at least 2 seeded draws, got {self.num_seeded_draws}")
        if not 1 <= self.num_ablation_seeds <= self.num_seeds:
            raise ValueError(
                f"--ablation-seeds must be from 1 to {self.num_seeds}, the number of --seeds, "
                f"got {self.num_ablation_seeds}"
            )


def rows_of(study: Study, settings: ReportSettings) -> list[MeasuredRow]:
    """Return the best configuration of every row of a study.

    A single row has others before it to compare it with: the controls, and its first trial.
    """
    if len(study.rows) > 1:
        return [_best_row(study, row, row.method, settings) for row in study.rows]
    (row,) = study.rows
    best = _best_row(study, row, f"{row.method}, best", settings)
    suffix = IN_PN if ROWS[row.method].is_embedded else ""  # controls in the same feature space
    rows = [
        MeasuredRow(name, name, Resolved(ROWS[name].config, row.evaluation), best.seeds[:1], row)
        for name in (f"{control}{suffix}" for control in CONTROLS)
        if name != row.method
    ]
    if best.trial != 0:
        first = open_trials(study, row).get_trials(deepcopy=False)[0]
        resolved = Resolved.of(row.method, first.user_attrs).times_as_long(row.config.final_length)
        rows.append(replace(best, name=f"{row.method}, {DEFAULT}", resolved=resolved, trial=0))
    return [*rows, best]


def _best_row(study: Study, row: StudyRow, name: str, settings: ReportSettings) -> MeasuredRow:
    best = study.read_best(row)
    resolved = Resolved.of(row.method, best)
    first = row.config.seed + row.config.num_final_seeds  # after the seeds that chose the best
    seeds = tuple(range(first, first + settings.num_seeds))
    return MeasuredRow(name, row.method, resolved, seeds, row, best["trial"])

"""The rows of a report: their settings and their training seeds.

Ablations are the best configuration of a row with one design choice changed at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.methods.controls import CONTROLS
from cpaan.methods.registry import METHODS, ROWS, num_episodes_of, with_episodes
from cpaan.methods.table_row import IN_PN
from cpaan.report.ablations import (
    IDEAS,
    NEIGHBOURS,
    NUMBERS_OF_NEIGHBOURS,
    TERMS,
    WHOLE,
    Ablation,
)
from cpaan.report.page.contents import PUBLISHED
from cpaan.report.page.older import DEFAULT
from cpaan.study.row import RECOMMENDED, Resolved, StudyRow
from cpaan.study.searcher import open_trials
from cpaan.study.study import Study

_TERMS: Mapping[str, tuple[str, str, Mapping[str, float]]] = {
    "cCyc-GAN-PN": ("without-cycle", "cCyc-GAN-PN", {"cycle_weight": 0.0}),
    # The noise is no setting but belongs to the method: cCyc-GAN has the plain one.
    "cDeLi-GAN-PN": ("without-mixture", "cCyc-GAN-PN", {}),
    "cCov-GAN-PN": ("without-covariance", "cCov-GAN-PN", {"covariance_weight": 0.0}),
}
"""The ablation without the term that the paper adds in a row: its key, method and overrides."""
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
            **asdict(self.resolved),
            "ablation": None if self.ablation is None else vars(self.ablation),
        }


@dataclass(frozen=True)
class ReportSettings:
    """The size of a report."""

    num_seeds: int = 3
    """Number of training seeds of each configuration; the search has not used them."""
    num_fixed_draws: int = 5
    num_seeded_draws: int = 50
    heads: tuple[str, ...] = ()
    """Classifiers. If empty: the head of the search, or all heads for a study of several rows."""
    num_ablation_seeds: int = 0
    """Number of training seeds of each ablation; at most ``num_seeds``, and 0 for no ablations."""
    num_published_seeds: int = 0
    """Number of training seeds of rows with their sources' settings, at the sources' length; at
    most ``num_seeds``, and 0 for no such rows."""
    is_table_only: bool = False
    """Whether to leave out illustrations and the spiral."""

    def __post_init__(self) -> None:
        if self.num_seeds < _FEWEST_SEEDS:
            raise ValueError(f"a report needs at least {_FEWEST_SEEDS} seeds, got {self.num_seeds}")
        if self.num_seeded_draws < 2:
            raise ValueError(f"intervals need at least 2 seeded draws, got {self.num_seeded_draws}")
        for kind in ("ablation", "published"):
            if not 0 <= (count := getattr(self, f"num_{kind}_seeds")) <= self.num_seeds:
                raise ValueError(
                    f"--{kind}-seeds must be from 0 to {self.num_seeds}, the number of --seeds, "
                    f"got {count}"
                )


def rows_of(study: Study, settings: ReportSettings) -> list[MeasuredRow]:
    """Return the best configuration of every row of a study, after those of the sources if wanted.

    A single row has others before it to compare it with: the controls, and its first trial.
    """
    if len(study.rows) > 1:
        best_rows = [_best_row(study, row, row.method, settings) for row in study.rows]
        return [*as_published(best_rows, settings.num_published_seeds), *best_rows]
    (row,) = study.rows
    best = _best_row(study, row, f"{row.method}, best", settings)
    suffix = IN_PN if ROWS[row.method].is_embedded else ""  # controls in the same feature space
    # Controls use synthetic examples as the best configuration does, with the same weight.
    evaluation = best.resolved.evaluation
    rows = [
        MeasuredRow(name, name, Resolved(METHODS[name].config, evaluation), best.seeds[:1], row)
        for name in (f"{control}{suffix}" for control in CONTROLS)
        if name != row.method
    ]
    if best.trial == 0:  # it may have won with other settings of the sweep
        resolved = best.resolved.with_overrides(row.sweep(row.settings_of(RECOMMENDED))[0])
    else:
        first = open_trials(study, row).get_trials(deepcopy=False)[0]
        resolved = Resolved.of(row.method, first.user_attrs).times_as_long(row.config.report_length)
    if resolved != best.resolved:
        rows.append(replace(best, name=f"{row.method}, {DEFAULT}", resolved=resolved, trial=0))
    return [*rows, *as_published([best], settings.num_published_seeds), best]


def _best_row(study: Study, row: StudyRow, name: str, settings: ReportSettings) -> MeasuredRow:
    best = study.read_best(row)
    resolved = Resolved.of(row.method, best)
    first = row.config.seed + row.config.num_final_seeds  # after the seeds that chose the best
    seeds = tuple(range(first, first + settings.num_seeds))
    return MeasuredRow(name, row.method, resolved, seeds, row, best["trial"])


def as_published(rows: Sequence[MeasuredRow], num_seeds: int) -> list[MeasuredRow]:
    """Return rows with the settings and the training length of their sources, if these are known.

    A search compares them at its own length; here they are trained as their authors did.
    """
    published = list[MeasuredRow]()
    for row in rows if num_seeds else ():
        settings = METHODS[row.method].as_published(row.source.evaluation)
        if settings is not None and ROWS[row.method].group != "CP-AAN+":  # its source is cCov-GAN's
            training, evaluation = settings
            share = row.source.config.workers_per_trial  # all workers train on equally many
            training = with_episodes(training, num_episodes_of(training) // share * share)
            name, resolved = f"{row.method}, {PUBLISHED}", Resolved(training, evaluation)
            seeds = row.seeds[:num_seeds]
            published.append(replace(row, name=name, resolved=resolved, seeds=seeds, trial=None))
    return published


def ablations_of(rows: Sequence[MeasuredRow], num_seeds: int) -> list[MeasuredRow]:
    """Return the ablations of searched rows, with the first ``num_seeds`` seeds of each row.

    Those that claims about a single term need are always there, with all seeds of the row.
    """
    by_method = {row.method: row for row in rows}
    ablations = [
        row
        for method in _TERMS
        if method in by_method
        for row in _with_and_without_term(by_method[method])
    ]
    for family, (methods, changes_of) in _ABLATED.items() if num_seeds else ():
        for row in [by_method[method] for method in methods if method in by_method][:1]:
            few = replace(row, seeds=row.seeds[:num_seeds])
            training = cast(TrainConfig, row.resolved.training)  # only GANs have ablations
            changes = changes_of(few, training).items()
            ablations += [_ablation(few, family, key, overrides) for key, overrides in changes]
    return ablations


def _with_and_without_term(row: MeasuredRow) -> tuple[MeasuredRow, MeasuredRow]:
    """Return the row with and without the term that the paper adds in it; nothing else differs.

    Both use synthetic examples as recommended, because no term has an effect on accuracy if the
    search has given them hardly any weight. The first has the training of the row itself.
    """
    usual = row.source.sweep(row.source.settings_of(RECOMMENDED))[0]
    key, method, without = _TERMS[row.method]
    part = _ablation(row, TERMS, key, {**usual, **without})
    if method != row.method:
        part = replace(part, method=method, same_as=None)
    return _ablation(row, TERMS, WHOLE, usual), part


def _ablation(row: MeasuredRow, family: str, key: str, overrides: Mapping[str, Any]) -> MeasuredRow:
    resolved = row.resolved.with_overrides(overrides)
    return replace(
        row,
        name=f"{row.name}: {key}",
        resolved=resolved,
        ablation=Ablation(row.name, family, key),
        same_as=row.name if resolved == row.resolved else None,
    )


def _neighbours(row: MeasuredRow, training: TrainConfig) -> dict[str, Mapping[str, Any]]:
    """Return overrides by key: every kind of neighbours, and every number of hard neighbours."""
    num_meta_base = len(row.source.data.split.base_classes()) - training.num_ways
    searched = training if training.neighbours == "soft" else TrainConfig()
    hard = {
        f"hard-{count}": {"neighbours": "hard", "num_neighbours": count}
        for count in NUMBERS_OF_NEIGHBOURS
        if count <= num_meta_base
    }
    soft = {"neighbours": "soft", "perplexity": searched.perplexity}
    return {"all": {"neighbours": "none"}, "soft": soft, **hard}


def _ideas(row: MeasuredRow, training: TrainConfig) -> dict[str, Mapping[str, Any]]:
    """Return overrides by key: one idea is reverted to the paper, or one term removed."""
    faithful = TrainConfig.faithful()
    share = row.source.config.workers_per_trial  # all workers train on equally many episodes
    num_episodes = max(1, training.num_episodes // 2 // share) * share
    ideas: dict[str, Mapping[str, Any]] = {
        "without-prototype": {"prototype_weight": 0.0},
        "real-shots": {"real_examples": faithful.real_examples},
        "no-residual": {"residual": faithful.residual},
        "one-number-of-shots": {"episode_shots": (min(faithful.max_shots, training.max_shots),)},
        "as-if-real": META_TESTING_AS_PRINTED,
        "fewer-examples": {"num_synthetic": max(1, row.resolved.evaluation.num_synthetic // 5)},
        "half-training": {"num_episodes": num_episodes},
        "without-adversary": {"adversarial_weight": 0.0},
    }
    gan = METHODS[row.method].gan
    if gan and gan.has_cycle:
        ideas["without-cycle"] = {"cycle_weight": 0.0}
    if gan and gan.has_covariance:
        ideas["without-covariance"] = {"covariance_weight": 0.0}
    return ideas


_ABLATED = {
    # Figure 5a of the paper varies the related base classes.
    NEIGHBOURS: (
        ("cCov-GAN-PN", "cCov-GAN", *(name for name, method in METHODS.items() if method.gan)),
        _neighbours,
    ),
    IDEAS: (("CP-AAN+-PN", "CP-AAN+"), _ideas),
}
"""Methods to ablate, by family: the first of them that a study has searched; and their changes."""

"""Turn a request into a study: resolve all settings and check them before any work starts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpaan.core.remote_paths import absolute, join
from cpaan.core.settings import Settings, assignments_for, parse_settings
from cpaan.data.cache import open_features
from cpaan.data.reference import DataReference, open_data
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.data.table import TRAIN, FeatureTable, align_rows
from cpaan.methods.registry import METHODS, ROWS, SETTINGS, num_episodes_of, with_episodes
from cpaan.methods.table_row import COSINE_FEATURES
from cpaan.protocol.tasks import check_phase
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.row import StudyRow
from cpaan.study.study import Study, read_study
from cpaan.training.workers import Workers


@dataclass(frozen=True)
class StudyRequest:
    """Options of a command; None for an option that is not given."""

    methods: tuple[str, ...] | None = None
    preset: str | None = None
    features: list[str] | None = None
    cosine_features: list[str] | None = None
    split: str | None = None
    settings: tuple[str, ...] = ()
    """Assignments NAME=VALUE or METHOD.NAME=VALUE."""
    episodes: int | None = None
    short: int | None = None
    """Divisor of the episodes of trials; the report trains on all episodes."""
    overrides: tuple[tuple[str, Any], ...] = ()
    """Settings of `StudyConfig` by name."""


def new_study(request: StudyRequest, folder: Path, storage: str | None) -> Study:
    """Return the study that a request describes, in a storage or else in the folder.

    Raises:
        ValueError: If a setting is unknown or invalid, or does not suit the data.
    """
    methods = request.methods or (StudyConfig().method,)
    rows = tuple(_resolve_row(request, method, methods) for method in methods)
    shared = None if storage is None else join(absolute(storage), folder.name)
    return Study(rows, folder, shared, has_row_folders=len(rows) > 1)


def _resolve_row(request: StudyRequest, method: str, methods: Sequence[str]) -> StudyRow:
    """Resolve the settings of a row from the preset, options, assignments and training length."""
    preset = PRESETS[request.preset or "quick"]
    training, evaluation = preset.recommended(method)
    config = preset.study_of(method)
    if len(methods) > 1:  # search each row of a table with the head that the table uses
        config = config.with_overrides({"head": ROWS[method].head})
    config = config.with_overrides(dict(request.overrides))
    shared = {*config.to_dict(), *evaluation.to_dict()}
    known = {name: shared | set(METHODS[name].config.to_dict()) for name in methods}
    given = assignments_for(method, request.settings, known, SETTINGS)
    of_config, of_training, of_evaluation = parse_settings(given, config, training, evaluation)
    config, evaluation = config.with_overrides(of_config), evaluation.with_overrides(of_evaluation)
    training = training.with_overrides(of_training)
    if request.episodes is not None and "num_episodes" not in of_training:
        training = with_episodes(training, request.episodes)
    if request.short is not None:
        training, config = _shortened(training, config, request.short)
    table, data = _open(request, method)
    check_phase(table, data.split, VALIDATION_PHASE)
    embedding = preset.embedding(method)
    row = StudyRow(config, training, evaluation, data, table.num_dims, embedding)
    for name in [*of_training, *of_evaluation]:
        if name in row.searched:
            raise ValueError(f"{name} is searched, so it cannot be set")
    if not row.searched:  # further trials would repeat the same settings
        config = config.with_overrides({"num_trials": len(row.points)})
        row = replace(row, config=config)
    _check_row(row, table)
    return row


def _check_row(row: StudyRow, table: FeatureTable) -> None:
    """Refuse first points outside the search space, and settings that do not suit the data."""
    base_classes = row.data.split.base_classes()
    num_examples = {name: len(table.rows_of(name, TRAIN)) for name in base_classes}
    for whose in row.points:
        row.point(whose)
        first = row.settings_of(whose)
        ROWS[row.method].check(
            first.training, first.evaluation, num_examples, table.num_dims, row.embedding
        )
    Workers(count=row.config.workers_per_trial).check_shares(row.num_episodes)


def _shortened(training: Settings, config: StudyConfig, short: int) -> tuple[Settings, StudyConfig]:
    """Divide the episodes of trials by ``short``; the report keeps its length."""
    num_episodes = num_episodes_of(training)
    if num_episodes and num_episodes % short:
        raise ValueError(
            f"--short {short}: the {num_episodes} episodes of {config.method} are not a multiple "
            f"of {short}"
        )
    if num_episodes:
        config = config.with_overrides({"report_length": config.report_length * short})
    return with_episodes(training, num_episodes // short), config


def _open(request: StudyRequest, method: str) -> tuple[FeatureTable, DataReference]:
    """Return the features of a method, and a reference to them for other processes.

    Raises:
        ValueError: If cosine-trained features are missing or have other rows. A draw selects
            rows, and all methods must get the same examples.
    """
    table, split = open_data(request.features, request.split)
    features, in_order_of = request.features, None
    if ROWS[method].features == COSINE_FEATURES:
        features = request.cosine_features
        if features is None:
            raise ValueError(f"{method} needs --cosine-features in addition to --features")
        cosine = open_features(*features, label_names=split.label_names)
        try:
            table = align_rows(cosine, table)
        except ValueError as error:
            raise ValueError(f"--cosine-features have different rows: {error}") from error
        if table is not cosine:
            in_order_of = request.features
            if in_order_of is None:
                raise ValueError(
                    "--cosine-features have a different row order than the built-in features"
                )
    return table, DataReference.of(table, split, features, in_order_of)


def resumed_study(folder: Path, request: StudyRequest) -> Study:
    """Return the study in a folder, with more trials if the request asks for them.

    Raises:
        ValueError: If there is no study, its data has changed, or the request changes a setting.
    """
    fixed = {
        "--method": request.methods,
        "--preset": request.preset,
        "--set": request.settings,
        "--episodes": request.episodes,
        "--short": request.short,
    }
    given = [name for name, value in fixed.items() if value]
    if given:
        raise ValueError(f"a resumed study keeps its settings; remove {', '.join(given)}")
    study = read_study(folder)
    return replace(study, rows=tuple(_resumed_row(row, request) for row in study.rows))


def _resumed_row(row: StudyRow, request: StudyRequest) -> StudyRow:
    config, data = row.config, row.data
    for name, value in request.overrides:
        known = getattr(config, name)
        if name == "num_trials":
            # Further trials of a row without a search space would repeat the same settings.
            config = config.with_overrides({name: value if row.searched else known})
        elif value != known:
            raise ValueError(
                f"the study was started with {name} = {known} and cannot be resumed with {value}"
            )
    if request.features is not None:  # the files may have moved
        _, data = _open(request, row.method)
        if (data.fingerprint, data.split) != (row.data.fingerprint, row.data.split):
            raise ValueError(
                f"the study uses different data: fingerprint {row.data.fingerprint}, but these "
                f"features have {data.fingerprint}, or the split differs"
            )
    data.open()
    return replace(row, config=config, data=data)

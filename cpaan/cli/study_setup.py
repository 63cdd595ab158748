"""The study that the options of ``tune/search.py`` describe, checked before anything is begun."""

import argparse
import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cpaan.cli.options import check_writable, names, open_data
from cpaan.cli.remote import check_name
from cpaan.cli.study_options import PROGRAM, RESULTS
from cpaan.core.remote_paths import absolute, join
from cpaan.core.settings import Settings, parse_settings
from cpaan.data.cache import open_features
from cpaan.data.splits import VALIDATION_PHASE
from cpaan.data.table import TRAIN, FeatureTable, align_rows
from cpaan.methods.registry import (
    ROWS,
    check_method,
    expand_methods,
    num_episodes_of,
    with_episodes,
)
from cpaan.protocol.tasks import check_phase
from cpaan.study.config import PRESETS, DataReference, StudyConfig
from cpaan.study.folder import Study, fetch_study, read_study
from cpaan.study.records import CONFIG
from cpaan.training.workers import Workers

STORAGE = "CPAAN_STORAGE"
"""Environment variable of a cluster's head: where studies keep what their machines share."""


def study_name(options: argparse.Namespace) -> str:
    """Return the name of a new study.

    Raises:
        ValueError: If the given one is none for a folder.
    """
    method = (options.method or StudyConfig().method).replace(",", "-")
    name: str = options.study or f"{method}-{datetime.now():%Y%m%d-%H%M%S}"
    check_name(name)
    return name


def wanted_methods(options: argparse.Namespace) -> list[str]:
    """Return the rows that are to be searched.

    Raises:
        ValueError: If a name is none.
    """
    has_cosine = options.cosine_features is not None
    return expand_methods(names(options.method or StudyConfig().method), has_cosine=has_cosine)


def _open(options: argparse.Namespace, method: str) -> tuple[FeatureTable, DataReference]:
    """Return the features that a method wants, and how other processes find them.

    Raises:
        ValueError: If cosine-trained ones are not of the same rows: a draw is a choice of rows, and
            all methods are to meet the same examples. Beside the built-in ones, which have no
            name, they must have the same order too.
    """
    table, split = open_data(options.features, options.split)
    features, in_order_of = options.features, None
    if ROWS[method].wants_cosine:
        features = options.cosine_features
        if features is None:
            raise ValueError(f"{method} wants --cosine-features beside --features")
        cosine = open_features(*features, label_names=split.label_names)
        try:
            table = align_rows(cosine, table)
        except ValueError as error:
            raise ValueError(f"--cosine-features are of other rows: {error}") from error
        if table is not cosine:
            in_order_of = options.features
            if in_order_of is None:
                raise ValueError(
                    "--cosine-features have their rows in another order than the built-in ones"
                )
    return table, DataReference.of(table, split, features, in_order_of)


def new_study(options: argparse.Namespace, method: str, name: str) -> Study:
    """Return the study that the options describe, checked as far as it can be without Ray.

    Args:
        options: Of the command.
        method: Which row is searched.
        name: Of the study; with that of a table before it, where it is a row of one.
    """
    preset = PRESETS[options.preset or "quick"]
    training, evaluation = preset.recommended(method)
    config = preset.study_of(method)
    if "/" in name:  # a row of a table is searched with the head that the table has for it
        config = config.with_overrides({"head": ROWS[method].head})
    config = config.with_overrides(_given(options))
    of_config, of_training, of_evaluation = parse_settings(
        options.set, config, training, evaluation
    )
    config = config.with_overrides(of_config)
    training = training.with_overrides(of_training)
    if options.episodes is not None and "num_episodes" not in of_training:
        training = with_episodes(training, options.episodes)
    if options.short is not None:
        training, config = _shortened(training, config, options.short)
    evaluation = evaluation.with_overrides(of_evaluation)
    table, data = _open(options, method)
    split = data.split
    check_phase(table, split, VALIDATION_PHASE)
    study = Study(
        config=config,
        training=training,
        evaluation=evaluation,
        data=data,
        num_dims=table.num_dims,
        folder=RESULTS / name,
        elsewhere=_elsewhere(options.storage or os.environ.get(STORAGE), name),
        embedding=preset.embedding(method),
    )
    if (study.folder / CONFIG).exists():
        raise ValueError(f"{study.folder} exists: {PROGRAM} --resume {name} goes on with it")
    study.space.check_fixed([*of_training, *of_evaluation])
    base_classes = split.base_classes(VALIDATION_PHASE)
    num_rows = {each: len(table.rows_of(each, TRAIN)) for each in base_classes}
    for whose in study.space.points:
        study.space.point(whose)
        tried = study.space.around(whose)
        check_method(
            method, tried.training, tried.evaluation, num_rows, table.num_dims, study.embedding
        )
    Workers(count=config.workers_per_trial).check_shares(study.num_episodes)
    check_writable(study.folder)
    return _with_enough_trials(study)


def _shortened(training: Settings, config: StudyConfig, short: int) -> tuple[Settings, StudyConfig]:
    """Return settings of trials that are so many times shorter than what is proven at the end."""
    num_episodes = num_episodes_of(training)
    if num_episodes and num_episodes % short:
        raise ValueError(
            f"{num_episodes} episodes of {config.method} cannot be shortened to one in {short}: "
            "they are no multiple of it"
        )
    config = config.with_overrides({"final_length": short if num_episodes else 1})
    return with_episodes(training, num_episodes // short), config


def _with_enough_trials(study: Study) -> Study:
    """Return a study with as many trials as there are points, where nothing is searched.

    To try the same again would tell nothing.
    """
    if study.space.searched:
        return study
    num_trials = len(study.space.points)
    return replace(study, config=study.config.with_overrides({"num_trials": num_trials}))


def resumed_study(options: argparse.Namespace, folder: Path) -> Study:
    """Return the study to go on with, with what the options may change of it."""
    if options.study is not None or options.preset is not None or options.points is not None:
        raise ValueError("--resume has its study, its preset and its points: none can be given")
    if options.short is not None:
        raise ValueError("--resume has the length of its trials: --short cannot be given")
    elsewhere = elsewhere_of(folder, options.storage)
    fetch_if_absent(folder, options.storage)
    earlier = read_study(folder)
    if elsewhere not in (None, earlier.elsewhere):
        raise ValueError(f"{folder} has its storage in {earlier.storage}, not in {elsewhere}")
    of_config, of_training, of_evaluation = parse_settings(
        options.set, earlier.config, earlier.training, earlier.evaluation
    )
    training = earlier.training.with_overrides(of_training)
    if options.episodes is not None and "num_episodes" not in of_training:
        training = with_episodes(training, options.episodes)
    data = earlier.data
    if options.features is not None:
        _, data = _open(options, earlier.config.method)
    study = replace(
        earlier,
        config=earlier.config.with_overrides({**_given(options), **of_config}),
        training=training,
        evaluation=earlier.evaluation.with_overrides(of_evaluation),
        data=data,
    )
    study = _with_enough_trials(study)
    study.check_goes_on_from(earlier)
    study.data.open()
    check_writable(folder)
    return study


def fetch_if_absent(folder: Path, storage: str | None = None) -> None:
    """Bring a study from the storage, named or of this cluster, where its folder is not here.

    Raises:
        ValueError: If the storage has no such study.
    """
    elsewhere = elsewhere_of(folder, storage or os.environ.get(STORAGE))
    if elsewhere is not None and not (folder / CONFIG).exists():
        fetch_study(elsewhere, folder)


def elsewhere_of(folder: Path, storage: str | None) -> str | None:
    """Return where in a named storage the study of a folder is; a row's is in that of its table."""
    is_here = folder.is_relative_to(RESULTS)
    return _elsewhere(storage, str(folder.relative_to(RESULTS)) if is_here else folder.name)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the study that were given as options."""
    novel_weight, all_weight = options.weights or (None, None)
    given = {
        "seed": options.seed,
        "num_trials": options.trials,
        "workers_per_trial": options.workers_per_trial,
        "gpus_per_worker": options.gpus_per_worker,
        "wide": options.wide,
        "head": options.head,
        "novel_weight": novel_weight,
        "all_weight": all_weight,
        "pareto": options.pareto,
        "early_stopping": False if options.no_early_stopping else None,
        "ray_train": False if options.no_ray_train else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def describe_study(study: Study) -> str:
    """Return what a dry run prints: all settings, the paper's points, and the size of it."""
    eval_steps = study.config.eval_steps(study.num_episodes)
    points = {
        f"trial {number}": study.space.point(whose)
        for number, whose in enumerate(study.space.points)
    }
    return json.dumps(
        {
            "folder": str(study.folder),
            **study.describe(),
            "evaluated after episodes": eval_steps,
            **points,
            "all settings of these": {
                f"trial {number}": study.space.around(whose).training.to_dict()
                for number, whose in enumerate(study.space.points)
            },
        },
        indent=1,
    )


def read_points(path: str | None, study: Study) -> list[dict[str, Any]]:
    """Return the points of a file, if one is named, as far as the study can try them all.

    Raises:
        ValueError: If one is none of the study's space.
    """
    if path is None:
        return []
    try:
        points = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError(f"{path} is no list of parameters by name")
    num_free = study.config.num_trials - len(study.space.points)
    if len(points) > num_free:
        raise ValueError(f"{path} has {len(points)} points, and --trials room for {num_free}")
    for number, point in enumerate(points):
        try:
            study.space.check_point(point)
        except ValueError as error:
            raise ValueError(f"point {number} of {path}: {error}") from error
    return points


def _elsewhere(storage: str | None, name: str) -> str | None:
    """Return where in a named storage a study is."""
    if storage is None:
        return None
    return join(absolute(storage), name)

"""The study that the options of ``tune/search.py`` describe, checked before anything is begun."""

import argparse
import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from cpaan.cli.options import check_writable, open_data
from cpaan.cli.remote import check_name
from cpaan.cli.study_options import PROGRAM, RESULTS
from cpaan.features import TRAIN
from cpaan.gans import GANS, check_objective
from cpaan.places import absolute, join
from cpaan.settings import parse_settings
from cpaan.splits import VALIDATION_PHASE
from cpaan.study.config import PRESETS, DataReference, StudyConfig
from cpaan.study.folder import Study, fetch_study, find_study, read_study
from cpaan.study.records import CONFIG
from cpaan.study.space import AS_PRINTED, RECOMMENDED
from cpaan.tasks import check_phase
from cpaan.training_data import check_training

STORAGE = "CPAAN_STORAGE"
"""Environment variable of a cluster's head: where studies keep what their machines share."""


def study_name(options: argparse.Namespace) -> str:
    """Return the name of a new study.

    Raises:
        ValueError: If the given one is none for a folder.
    """
    method = options.method or StudyConfig().method
    name: str = options.study or f"{method}-{datetime.now():%Y%m%d-%H%M%S}"
    check_name(name)
    return name


def new_study(options: argparse.Namespace) -> Study:
    """Return the study that the options describe, checked as far as it can be without Ray."""
    preset = PRESETS[options.preset or "quick"]
    training, evaluation = preset.recommended()
    config = StudyConfig().with_overrides({**preset.study, **_given(options)})
    of_config, of_training, of_evaluation = parse_settings(
        options.set, config, training, evaluation
    )
    config = config.with_overrides(of_config)
    if options.episodes is not None:
        of_training = {"num_episodes": options.episodes, **of_training}
    training = training.with_overrides(of_training)
    evaluation = evaluation.with_overrides(of_evaluation)
    table, split = open_data(options.features, options.split)
    check_phase(table, split, VALIDATION_PHASE)
    name = study_name(options)
    study = Study(
        config=config,
        training=training,
        evaluation=evaluation,
        data=DataReference.of(table, split, options.features),
        num_dims=table.num_dims,
        folder=RESULTS / name,
        elsewhere=_elsewhere(options.storage or os.environ.get(STORAGE), name),
    )
    if (study.folder / CONFIG).exists():
        raise ValueError(f"{study.folder} exists: {PROGRAM} --resume {name} goes on with it")
    study.space.check_fixed([*of_training, *of_evaluation])
    base_classes = split.base_classes(VALIDATION_PHASE)
    counts = torch.tensor([len(table.rows_of(each, TRAIN)) for each in base_classes])
    gan = GANS[config.method]
    for whose in (RECOMMENDED, AS_PRINTED):
        study.space.point(whose)
        tried = study.space.around(whose).training
        check_training(tried, counts, table.num_dims, with_covariances=gan.has_covariance)
        check_objective(gan, tried)
    if training.num_episodes % config.workers_per_trial:
        raise ValueError(
            f"{training.num_episodes} episodes cannot be shared by {config.workers_per_trial} "
            f"workers: take a multiple of {config.workers_per_trial}"
        )
    check_writable(study.folder)
    return study


def resumed_study(options: argparse.Namespace) -> Study:
    """Return the study to go on with, with what the options may change of it."""
    if options.study is not None or options.preset is not None or options.points is not None:
        raise ValueError("--resume has its study, its preset and its points: none can be given")
    folder = find_study(options.resume or None, RESULTS)
    elsewhere = _elsewhere(options.storage, folder.name)
    fetch_if_absent(folder, options.storage)
    earlier = read_study(folder)
    if elsewhere not in (None, earlier.elsewhere):
        raise ValueError(f"{folder} has its storage in {earlier.storage}, not in {elsewhere}")
    of_config, of_training, of_evaluation = parse_settings(
        options.set, earlier.config, earlier.training, earlier.evaluation
    )
    if options.episodes is not None:
        of_training = {"num_episodes": options.episodes, **of_training}
    data = earlier.data
    if options.features is not None:
        data = DataReference.of(*open_data(options.features, options.split), options.features)
    study = replace(
        earlier,
        config=earlier.config.with_overrides({**_given(options), **of_config}),
        training=earlier.training.with_overrides(of_training),
        evaluation=earlier.evaluation.with_overrides(of_evaluation),
        data=data,
    )
    study.check_goes_on_from(earlier)
    study.data.open()
    check_writable(folder)
    return study


def fetch_if_absent(folder: Path, storage: str | None = None) -> None:
    """Bring a study from the storage, named or of this cluster, where its folder is not here.

    Raises:
        ValueError: If the storage has no such study.
    """
    elsewhere = _elsewhere(storage or os.environ.get(STORAGE), folder.name)
    if elsewhere is not None and not (folder / CONFIG).exists():
        fetch_study(elsewhere, folder)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the study that were given as options."""
    novel_weight, all_weight = options.weights or (None, None)
    given = {
        "method": options.method,
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
    }
    return {name: value for name, value in given.items() if value is not None}


def describe_study(study: Study) -> str:
    """Return what a dry run prints: all settings, the paper's points, and the size of it."""
    marks = study.config.marks(study.training.num_episodes)
    points = {whose: study.space.point(whose) for whose in (RECOMMENDED, AS_PRINTED)}
    return json.dumps(
        {
            "folder": str(study.folder),
            **study.describe(),
            "evaluated after episodes": marks,
            "trial 0": points[RECOMMENDED],
            "trial 1": points[AS_PRINTED],
            "trial 1, all settings": study.space.around(AS_PRINTED).training.to_dict(),
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
    num_free = study.config.num_trials - 2  # the first two are the paper's
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

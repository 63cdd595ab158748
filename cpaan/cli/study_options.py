"""The options of ``tune/search.py``, and the study that they describe."""

import argparse
import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from cpaan.cli.options import (
    Parser,
    add_traceback,
    check_writable,
    open_data,
    positive_number,
)
from cpaan.config import HEADS
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

PROGRAM = "python tune/search.py"
RESULTS = Path("results")
INCOMPLETE = 1

_HELP = """\
Search the hyper-parameters of one of the four GANs, on Ray.

Each trial meta-trains a GAN with Ray Train and is scored on the validation phase: the mean of LSL
and GLSL top-5 over all numbers of shots, on the same draws for every trial. Optuna proposes, ASHA
stops what is behind, and the best that ran to their end, five at most, are scored again on fresh
draws and more seeds; best.json has the winner. Trials 0 and 1 are the paper's own points: its
printed weights with our settings, and its settings to the letter. Test classes are never read here:
python tune/report.py does that.

Without arguments this is a study of cCov-GAN on the built-in features that takes minutes on two
CPU cores. The same command runs on a GPU (which is found) and on a Ray cluster (--address).
"""

_EXAMPLES = """\
examples:
  a first study, and its report:
    python tune/search.py
    python tune/report.py
  your own features, at the paper's scale, four trials on each GPU:
    python tune/search.py --features features.parquet --split split.json --preset paper \\
      --gpus-per-worker 0.25
  on a cluster, two GPUs a trial, with features and states on S3:
    python tune/search.py --address auto --workers-per-trial 2 --gpus-per-worker 1 \\
      --features s3://bucket/features.parquet --storage s3://bucket/studies
  stop after ten minutes, and go on later, with more trials:
    python tune/search.py --study mine --timeout 10m
    python tune/search.py --resume mine --trials 40
  what would be done:
    python tune/search.py --preset paper --dry-run

A study is a folder results/STUDY: config.json, trials.parquet, best.json, optuna.db (for
optuna-dashboard), tensorboard/, study.log. It can be read at any time, and be gone on with after
anything: Ctrl-C, a dead machine, a full disk.

exit status: 0 if the study is complete; 1 if trials failed or are left; 2 for bad input and for
what cannot be had or written; 130 after Ctrl-C.
"""


def search_parser() -> Parser:
    """Return the parser."""
    quick, paper = (PRESETS[name] for name in ("quick", "paper"))
    parser = Parser(
        prog=PROGRAM,
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to search")
    what.add_argument(
        "--preset",
        choices=list(PRESETS),
        help=f"quick: {quick.sizes['num_episodes']} small episodes, {quick.study['num_trials']} "
        f"trials; paper: {paper.sizes['num_episodes']} episodes of B = "
        f"{paper.sizes['batch_size']}, N_b = {paper.sizes['num_ways']}, K_b = "
        f"{paper.sizes['episode_shots'][0]}, {paper.study['num_trials']} trials (default: quick)",
    )
    what.add_argument(
        "--method", metavar="M", help=f"of {', '.join(GANS)} (default: {StudyConfig().method})"
    )
    what.add_argument(
        "--features",
        nargs="+",
        metavar="F",
        help="as of `python -m cpaan evaluate`; by an address, every machine has its own copy",
    )
    what.add_argument("--split", metavar="S", help="by default the one beside the features")
    what.add_argument("--trials", type=positive_number, metavar="N", help="how many there are")
    what.add_argument(
        "--episodes",
        type=positive_number,
        metavar="N",
        help="of a trial's meta-training, over all of its workers",
    )
    what.add_argument(
        "--seed", type=int, metavar="N", help="of proposals and training (default: 0)"
    )
    what.add_argument(
        "--wide",
        action="store_true",
        default=None,
        help="search learning rates, mixing of real and synthetic, their number, episode shots and "
        "the residual start too",
    )
    what.add_argument("--head", choices=HEADS, help="the classifier that trials are scored with")
    what.add_argument(
        "--weights",
        type=_weights,
        metavar="LSL,GLSL",
        help="of the two in the score (default: 1,1)",
    )
    what.add_argument(
        "--pareto",
        action="store_true",
        default=None,
        help="two objectives instead, LSL and GLSL; nothing is stopped early",
    )
    what.add_argument(
        "--no-early-stopping", action="store_true", default=None, help="train all to the end"
    )
    what.add_argument(
        "--points",
        metavar="J",
        help="a JSON list of parameters by name, tried after the paper's two points",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting that is not searched, of meta-training and evaluation (`python -m cpaan "
        "settings` lists them) or of the study; the paper's own point, trial 1, keeps its own",
    )
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--workers-per-trial",
        type=positive_number,
        metavar="N",
        help="processes that train one GAN together (default: 1)",
    )
    where.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="X",
        help="fractions too; 0: a CPU core (default: 1 where there is a GPU)",
    )
    where.add_argument(
        "--concurrent", type=positive_number, metavar="N", help="trials at a time (default: all)"
    )
    where.add_argument(
        "--address", metavar="A", help="of a running Ray, host:port or auto (default: a new one)"
    )
    where.add_argument(
        "--storage",
        metavar="P",
        help="a folder or s3://... that all machines reach (default: the study's folder)",
    )
    where.add_argument(
        "--timeout", type=_duration, metavar="T", help="90, 10m or 2h; the rest can be resumed"
    )
    keep = parser.add_argument_group("what is kept")
    keep.add_argument(
        "--study", metavar="NAME", help=f"a new folder in {RESULTS}/ (default: method and time)"
    )
    keep.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="STUDY",
        help="go on with a study: its name or folder (default: the newest); --trials may be more",
    )
    keep.add_argument("--dry-run", action="store_true", help="show what would be done, and end")
    add_traceback(parser)
    return parser


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
    name = options.study or f"{config.method}-{datetime.now():%Y%m%d-%H%M%S}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"a study's name has letters, digits, '.', '_' and '-', got {name!r}")
    study = Study(
        config=config,
        training=training,
        evaluation=evaluation,
        data=DataReference.of(table, split, options.features),
        num_dims=table.num_dims,
        folder=RESULTS / name,
        elsewhere=_elsewhere(options.storage, name),
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
    if elsewhere is not None and not (folder / CONFIG).exists():
        fetch_study(elsewhere, folder)
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


def _weights(text: str) -> tuple[float, float]:
    try:
        novel, everything = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers with a comma") from None
    return novel, everything


def _duration(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 90, 10m or 2h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]

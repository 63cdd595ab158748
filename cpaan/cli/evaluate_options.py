"""The options of ``evaluate``, and the settings that they make."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpaan.cli.options import add_device, add_traceback, names, positive_number, positive_numbers
from cpaan.core.provenance import TEST_READS
from cpaan.core.settings import Settings, assignments_for, parse_settings
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE
from cpaan.gan.config import META_TESTING_AS_PRINTED, TrainConfig
from cpaan.methods.controls import CONTROLS
from cpaan.methods.registry import METHODS, ROWS, TABLE_1, with_episodes
from cpaan.methods.table_row import PN
from cpaan.protocol.accuracy import COLUMNS
from cpaan.protocol.config import LINEAR_AS_IN_BENCHMARK, EvaluationConfig

_SHARED = ""  # stands for the evaluation among the methods

_HELP = """\
Score low-shot methods on novel classes, and print the table.

Without --features this runs on the data set inside the project: ResNet-10 features of
Tiny-ImageNet's 200 classes. On your own features:

  python -m cpaan evaluate --features features.parquet --split split.json

The table's columns, each as top-1 and top-5 accuracy in percent, for every number of shots:

{columns}

Choose everything on the validation phase. Each read of the test phase is noted in {log}.
"""

_EXAMPLES = """\
examples:
  every control, all five numbers of shots, five draws:
    python -m cpaan evaluate --features F.parquet --split split.json --out results/mine
  one shot only, 50 draws for narrow intervals, compared with the plain cosine head:
    python -m cpaan evaluate ... --shots 1 --draws 50 --against none/cosine
  the benchmark's own HDF5 files, splits and draws:
    python -m cpaan evaluate --features features/ResNet10 --split label_idx.json \\
      --draws-file splitfile_1.json splitfile_2.json splitfile_3.json \\
      splitfile_4.json splitfile_5.json
  features in a bucket, copied to this machine once:
    python -m cpaan evaluate --features s3://bucket/features.parquet
  less weight for the real shots:
    python -m cpaan evaluate ... --set mixing_weight=0.2
  a GAN beside the controls, kept so that a stopped run goes on, and one setting changed:
    python -m cpaan evaluate ... --methods none,copy,cCov-GAN --episodes 10000 \\
      --checkpoints results/mine --set covariance_weight=1
  every row of the paper's table, eight at a time on one GPU; the same command goes on:
    python -m cpaan evaluate ... --methods table-1 --jobs 8 --out results/table
"""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command with all of its options; return its parser."""
    columns = "\n".join(f"  {name:12} {meaning}" for name, meaning in COLUMNS.items())
    parser: argparse.ArgumentParser = commands.add_parser(
        "evaluate",
        help="score low-shot methods on a feature table",
        description=_HELP.format(columns=columns, log=TEST_READS),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = EvaluationConfig()
    data = parser.add_argument_group("data")
    data.add_argument(
        "--features",
        nargs="+",
        metavar="F",
        help="a Parquet file; or the train and the test file of an HDF5 pair; or a folder of "
        "either; by path or by address (s3://bucket/features.parquet)",
    )
    data.add_argument(
        "--cosine-features",
        nargs="+",
        metavar="F",
        help="the same rows by a backbone that was trained with `represent --loss cosine`, for the "
        "row AWG-cosine",
    )
    data.add_argument(
        "--split",
        metavar="S",
        help="split.json or the benchmark's label_idx.json, by path or address; by default the one "
        "beside the features",
    )
    data.add_argument(
        "--phase",
        choices=[VALIDATION_PHASE, TEST_PHASE],
        default=VALIDATION_PHASE,
        help="which classes to score (default: %(default)s)",
    )
    data.add_argument(
        "--allow-trained-novel",
        action="store_true",
        help="go on although the backbone was trained on novel classes",
    )
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--methods",
        type=names,
        default=list(CONTROLS),
        metavar="M,M,...",
        help=f"of {', '.join(METHODS)} (default: the first {len(CONTROLS)}, which learn nothing); "
        f"{TABLE_1}: every row of the paper's table, and those beside it",
    )
    what.add_argument(
        "--heads", type=names, metavar="H,H,...", help=f"of {', '.join(defaults.heads)}"
    )
    what.add_argument(
        "--shots",
        type=positive_numbers,
        metavar="K,K,...",
        help=f"default: {','.join(map(str, defaults.shots))}",
    )
    draws = what.add_mutually_exclusive_group()
    draws.add_argument(
        "--draws",
        type=positive_number,
        metavar="N",
        help=f"how many seeded draws of the shots (default: {defaults.num_draws})",
    )
    draws.add_argument(
        "--draws-file",
        nargs="+",
        metavar="J",
        help="draws as JSON: rows by class, or the benchmark's index files",
    )
    what.add_argument(
        "--seeds", type=positive_number, metavar="N", help="how many training seeds (default: 1)"
    )
    what.add_argument("--seed", type=int, metavar="N", help="the first training seed (default: 0)")
    what.add_argument("--draw-seed", type=int, metavar="N", help="seed of the draws (default: 0)")
    what.add_argument(
        "--episodes",
        type=positive_number,
        metavar="N",
        help="of training, for all methods that are trained (default: each has its own; GANs "
        f"{TrainConfig().num_episodes}, as printed {TrainConfig.as_printed().num_episodes})",
    )
    what.add_argument(
        "--as-printed",
        action="store_true",
        help="settings of the paper to the letter, not those we recommend: how GANs are trained, "
        "and how synthetic examples are used, also those of controls; of other methods, those of "
        "their sources",
    )
    what.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="keep trainings here every half minute; what is already there is used, and trained "
        "further if it has fewer episodes",
    )
    what.add_argument(
        "--jobs",
        type=positive_number,
        default=1,
        metavar="N",
        help="methods at a time, each in a process of its own; on a GPU they share the card. What "
        "is done is kept in --out, where there is one, and the same command goes on",
    )
    what.add_argument(
        "--linear",
        choices=["quick", "benchmark"],
        default="quick",
        help="train the linear head by 200 decaying steps, or by the benchmark's own 10,000",
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting of evaluation or training, as often as needed, of all methods that "
        "have it; METHOD.NAME=VALUE of one of them. `python -m cpaan settings` lists them all with "
        "their meanings",
    )
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--against",
        metavar="METHOD[/HEAD]",
        help="the row that others are compared with, draw by draw (default: none, same head)",
    )
    show.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write results.csv, results.json and accuracy.svg (default: nothing; for "
        f"{TABLE_1}, results/{TABLE_1})",
    )
    add_device(parser)
    add_traceback(parser)
    return parser


def configs_from(
    options: argparse.Namespace, methods: Sequence[str]
) -> tuple[EvaluationConfig, dict[str, Settings]]:
    """Return the settings of the evaluation, and those of every method."""
    config = EvaluationConfig()
    if options.as_printed:
        config = config.with_overrides(META_TESTING_AS_PRINTED)
    if options.linear == "benchmark":
        config = config.with_overrides(LINEAR_AS_IN_BENCHMARK)
    given = {
        "shots": options.shots,
        "heads": None if options.heads is None else tuple(options.heads),
        "num_draws": options.draws,
        "num_seeds": options.seeds,
        "seed": options.seed,
        "draw_seed": options.draw_seed,
    }
    overrides = {name: value for name, value in given.items() if value is not None}
    used = list(methods)
    if PN not in used and any(ROWS[name].is_embedded for name in methods):
        used.append(PN)  # its settings are those of the embedding
    start = {
        name: row.published if options.as_printed and row.published else row.config
        for name, row in ((name, ROWS[name]) for name in used)
    }
    if options.episodes is not None:
        start = {name: with_episodes(each, options.episodes) for name, each in start.items()}
    known = {name: set(each.to_dict()) - {"shots"} for name, each in start.items()}
    known[_SHARED] = set(config.to_dict())
    (of_config,) = parse_settings(assignments_for(_SHARED, options.set, known), config)
    settings: dict[str, Settings] = {}
    for name, each in start.items():
        (of_method,) = parse_settings(assignments_for(name, options.set, known), each)
        settings[name] = each.with_overrides(of_method)
    return config.with_overrides({**overrides, **of_config}), settings

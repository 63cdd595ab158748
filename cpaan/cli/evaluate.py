"""``evaluate``: score low-shot methods on a feature table."""

import argparse
from pathlib import Path
from typing import Any

from cpaan.benchmark import Results, evaluate
from cpaan.cli.options import (
    add_device,
    add_traceback,
    check_writable,
    choose_device,
    names,
    new_progress,
    open_data,
    positive_number,
    positive_numbers,
)
from cpaan.config import (
    LINEAR_AS_IN_BENCHMARK,
    META_TESTING_AS_PRINTED,
    EvaluationConfig,
    TrainConfig,
)
from cpaan.evaluation import COLUMNS
from cpaan.methods import CONTROLS, METHODS, check_methods
from cpaan.provenance import TEST_READS
from cpaan.settings import parse_settings
from cpaan.splits import (
    TEST_PHASE,
    VALIDATION_PHASE,
    read_draws,
)
from cpaan.summary import check_row, is_only_row
from cpaan.tables import accuracy_table, difference_table, diversity_table
from cpaan.tasks import check_phase

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
"""


def add_command(commands: Any) -> None:
    """Add the command and its options."""
    columns = "\n".join(f"  {name:12} {meaning}" for name, meaning in COLUMNS.items())
    parser = commands.add_parser(
        "evaluate",
        help="score low-shot methods on a feature table",
        description=_HELP.format(columns=columns, log=TEST_READS),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_evaluate)
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
        help=f"of {', '.join(METHODS)} (default: the first {len(CONTROLS)}, which learn nothing)",
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
        help=f"of meta-training, for GANs (default: {TrainConfig().num_episodes}; "
        f"as printed {TrainConfig.as_printed().num_episodes})",
    )
    what.add_argument(
        "--as-printed",
        action="store_true",
        help="settings of the paper to the letter, not those we recommend: how GANs are trained, "
        "and how synthetic examples are used, also those of controls",
    )
    what.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="keep GANs here every half minute; what is already there is used, and trained "
        "further if it has fewer episodes",
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
        help="any other setting of evaluation or meta-training, as often as needed; "
        "`python -m cpaan settings` lists them all with their meanings",
    )
    show = parser.add_argument_group("what to show")
    show.add_argument(
        "--against",
        metavar="METHOD[/HEAD]",
        help="the row that others are compared with, draw by draw (default: none, same head)",
    )
    show.add_argument(
        "--out", type=Path, metavar="DIR", help="write results.csv, results.json and accuracy.svg"
    )
    add_device(parser)
    add_traceback(parser)


def _evaluate(options: argparse.Namespace) -> int:
    config, training = _configs_from(options)
    device = choose_device(options.device)
    check_methods(options.methods)
    table, split = open_data(options.features, options.split)
    check_phase(table, split, options.phase, allow_trained_novel=options.allow_trained_novel)
    shot_rows = None
    if options.draws_file:
        shot_rows = read_draws(
            options.draws_file, table, split, options.phase, max_shots=max(config.shots)
        )
    against = options.against or ("none" if "none" in options.methods else None)
    if against:
        check_row(against, [(method, head) for method in options.methods for head in config.heads])
    for folder in (options.out, options.checkpoints):
        if folder:
            check_writable(folder)

    progress = new_progress()
    results = evaluate(
        table,
        split,
        phase=options.phase,
        methods=options.methods,
        config=config,
        training=training,
        checkpoints=options.checkpoints,
        shot_rows=shot_rows,
        device=device,
        allow_trained_novel=options.allow_trained_novel,
        progress=progress,
    )
    progress("done")
    if options.out:  # before any printing, which a closed pipe can end
        try:
            results.write(options.out)
        except OSError:
            _print_results(results, against)  # nothing is lost to a full disk
            raise
    _print_results(results, against)
    if options.out:
        print(f"\nWritten: {options.out}/results.csv, results.json, accuracy.svg")
    return 0


def _print_results(results: Results, against: str | None) -> None:
    print(_describe(results))
    print(f"\n{accuracy_table(results.scores)}")
    if not results.diversity.empty:
        print(f"\n{diversity_table(results.diversity)}")
    if against and not is_only_row(against, results.scores):
        print(f"\n{difference_table(results.scores, against)}")
    if results.about["phase"] == TEST_PHASE:
        reads = results.about["test_reads"]
        print(f"\nThe test phase of these features was read {reads} times so far ({TEST_READS}).")


def _configs_from(options: argparse.Namespace) -> tuple[EvaluationConfig, TrainConfig]:
    config, training = EvaluationConfig(), TrainConfig()
    if options.as_printed:
        config = config.with_overrides(META_TESTING_AS_PRINTED)
        training = TrainConfig.as_printed()
    if options.episodes is not None:
        training = training.with_overrides({"num_episodes": options.episodes})
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
    of_config, of_training = parse_settings(options.set, config, training)
    return (
        config.with_overrides({**overrides, **of_config}),
        training.with_overrides(of_training),
    )


def _describe(results: Results) -> str:
    about = results.about
    draws = results.scores["draw"].nunique()
    return (
        f"\n{about['phase'].capitalize()} phase: {about['classes']['base']} base and "
        f"{about['classes']['novel']} novel classes, {about['queries']} queries, {draws} draws, "
        f"{results.scores['seed'].nunique()} training seeds."
    )

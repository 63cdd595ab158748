"""The options of every command, and its help."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cpaan import __version__
from cpaan.cli.command import Parser, add_traceback
from cpaan.cli.options import Option, Options
from cpaan.protocol.config import COLUMNS, HEADS, OWN

CPAAN = "cpaan" if Path(sys.argv[0]).name == "cpaan" else "python -m cpaan"
SEARCH, REPORT = "python tune/search.py", "python tune/report.py"
RESULTS = Path("results")
STORAGE = "CPAAN_STORAGE"
"""Environment variable of a cluster's head: the storage that its machines share."""

_EVALUATE = f"""\
Score low-shot methods on novel classes, and print the table.

Without --features, the data are ResNet-10 features of Tiny-ImageNet's 200 classes. The columns
are top-1 and top-5 accuracy in percent, for each number of shots:

{chr(10).join(f"  {name:14} {meaning}" for name, meaning in COLUMNS.items())}

Make all choices on the validation phase. Each read of the test phase is recorded.

examples:
  the controls on your own features, one shot, 50 draws:
    {CPAAN} evaluate --features F.parquet --split split.json --shots 1 --draws 50
  a GAN, with checkpoints and one changed setting:
    {CPAAN} evaluate ... --methods none,copy,cCov-GAN --episodes 10000 \\
      --checkpoints results/mine --set covariance_weight=1
  all rows of the paper's table, eight at a time; the same command resumes it:
    {CPAAN} evaluate ... --methods table-1 --jobs 8 --out results/table
  N-way K-shot tasks, as on miniImageNet: 600 tasks of five novel classes:
    {CPAAN} evaluate ... --protocol episodes --ways 5 --shots 1,5
"""

_REPRESENT = f"""\
Train a ResNet-10 on the base classes of a split, and compute features of all its classes.

Images are Parquet files with the columns wnid, partition (train, test) and jpeg, or the folders
of ImageNet or Tiny-ImageNet: train/<wnid>/*.JPEG and val/. The backbone is not trained on a share
of each base class (--holdout). Only these images become train rows, because features of images
that the backbone was trained on lie much closer together. The same command resumes a stopped run.

examples:
  {CPAAN} represent --images tiny-imagenet/ --split split.json --out results/mine
  {CPAAN} represent --images /data/imagenet --split label_idx.json --as-in-benchmark \\
    --workers 4 --out results/imagenet
  {CPAAN} represent --features features.parquet --embed pn --out results/mine
"""

_SPIRAL = """\
Train the four GANs on a spiral in the plane, and draw their translations (Figure 3 of the paper).

Two base arms, top and bottom, are translated into two novel arms, left and right, with four known
points each (crosses). The picture shows the first seed, the table shows medians over all seeds:

  diversity   mean distance of two translated points, divided by that of two true ones; ideally 1
  |log|       absolute logarithm of the diversity; ideally 0
  covariance  error of the translated points' covariance, relative to the true one
"""

_SETTINGS = """\
List all settings: name, value, the paper's or the benchmark's value where it differs, and meaning.

  evaluate --set NAME=VALUE         evaluation and training
  evaluate --set ROW.NAME=VALUE     one row of the table
  represent --set NAME=VALUE        the backbone
  represent --embed-set NAME=VALUE  the embedding
"""

_SEARCH = f"""\
Search the hyperparameters of one or several rows of the table, on Ray.

The score of a trial is the mean of LSL and calibrated GLSL top-5 over all numbers of shots, on the
validation phase. Calibration adds one bias to the scores of novel classes. All trials use the same
draws. Optuna proposes trials, and ASHA stops some of them early. The best are scored again on new
draws; best.json has the winner. With --preset paper, a GAN has 10,000 episodes in a trial and
100,000 in the report. All other rows train equally long in both.

Trial 0 uses the recommended settings of the row. One trial, after the random ones, uses the
settings that the source of the method published.

A study is a folder results/STUDY. It can be read at any time. It can be resumed after Ctrl-C, a
lost machine or a full disk.

examples:
  CP-AAN+ on the built-in features, in minutes on two CPU cores:
    {SEARCH}
  your own features, at the paper's scale:
    {SEARCH} --features F.parquet --split split.json --preset paper
  all rows of the paper's table, twelve trials each, on a cluster that `ray up` has started:
    {SEARCH} --method table-1 --trials 12 --study table --cluster cluster/gpu.yaml
  fewer trials than GPUs, on machines with four GPUs each:
    {SEARCH} --preset paper --trials 2 --workers-per-trial 4
  stop after ten minutes; resume with more trials:
    {SEARCH} --study mine --timeout 10m
    {SEARCH} --resume mine --trials 40

exit status: 0 if the study is complete; 1 if trials failed or are left; 2 for bad input and for
files or machines that cannot be reached; 130 after Ctrl-C.
"""

_REPORT = f"""\
Evaluate the best configuration of each row of a study on the test phase, and write the report.

Each configuration is trained with new seeds. A study of one row also has the controls and the
default settings. All rows are scored on the same draws of test classes: five fixed draws, as in the
paper's table, and seeded draws for intervals and comparisons. A study of several rows gives the
paper's table twice: with the paper's final classifiers, and with those that were best on the
validation phase.

Open report/index.html in a browser; report/findings.md has its text. Report a study once, because
repeated evaluation on the test phase biases the result. If the command is stopped, run it again to
resume. results/test-reads.jsonl records each run.

examples:
  report the newest study:
    {REPORT}
  draw the page again from the files of the report:
    {REPORT} results/mine --redraw
  report a study that was searched on a cluster, on the same cluster:
    {REPORT} mine
"""


_FEATURES: list[Option] = [
    (
        "--features",
        "FILE",
        "Parquet, HDF5 pair, .npz files or folder (default: the built-in features)",
    ),
    ("--cosine-features", "FILE", "the same rows of `represent --loss cosine`, for AWG-cosine"),
]
_SPLIT = ("--split", "S", "split.json, label_idx.json or folder (default: the one beside the data)")
_DRAWS_FILE = ("--draws-file", "FILE", "fixed draws: JSON, or index files of the benchmark")
_SET = ("--set", "NAME=VALUE", "setting, METHOD.NAME for one row; see `cpaan settings`; repeatable")
_HEADS = f"among {', '.join(HEADS)}"
_DEVICE = ("--device", "D", "cpu or cuda (default: cuda if there is a GPU)")
_RAY: list[Option] = [
    (
        "--address",
        "A",
        "host:port, or local for a new Ray (default: $RAY_ADDRESS, a Ray that runs here, local)",
    ),
    ("--cluster", "YAML", "`ray up` file of a cluster to run on (default: that of the study)"),
    ("--stop", None, "with --cluster: stop the job; finished work is saved"),
]


def _declare_evaluate(parser: Parser) -> None:
    data = Options(parser, "data", *_FEATURES, _SPLIT)
    data.add("--phase", ["validation", "test"], "default: validation", default="validation")
    data.add("--allow-trained-novel", None, "accept a backbone that was trained on novel classes")
    what = Options(parser, "what to run")
    help_ = (
        "rows, or table-1 for the paper's table; `cpaan methods` lists them (default: the controls)"
    )
    what.add("--methods", "NAME,...", help_)
    what.add("--heads", "NAME,...", f"{_HEADS} (default: all)")
    what.add("--shots", "K,...", "numbers of shots (default: 1,2,5,10,20; for episodes 1,5)")
    draws = what.exclusive()
    draws.add("--draws", "N", "number of seeded draws of the shots (default: 5)", dest="num_draws")
    draws.add(*_DRAWS_FILE)
    help_ = "draws of all novel classes (default), or N-way K-shot tasks"
    what.add("--protocol", ["benchmark", "episodes"], help_, default="benchmark")
    what.add("--ways", "N", "for episodes: classes of a task (default: 5)", dest="num_ways")
    what.add("--num-queries", "N", "for episodes: queries of a class (default: 15)")
    what.add("--num-tasks", "N", "for episodes: number of tasks (default: 600)")
    what.add("--seeds", "N", "number of training seeds (default: 1)", dest="num_seeds")
    what.add("--seed", "SEED", "first training seed (default: 0)")
    what.add("--episodes", "N", "episodes of each method; the embedding keeps its own number")
    what.add("--as-printed", None, "use the settings that the papers print")
    what.add("--checkpoints", "DIR", "folder of checkpoints; training resumes from them")
    what.add("--jobs", "N", "number of processes; --out keeps finished parts", default=1)
    what.add("--linear", ["quick", "benchmark"], "linear head: 200 steps (default) or 10,000")
    what.add(*_SET)
    show = Options(parser, "what to show")
    show.add("--against", "METHOD[/HEAD]", "row to compare with (default: the row none, same head)")
    show.add("--out", "DIR", "folder for the results, and for episodes also of finished parts")
    show.add(*_DEVICE)


def _declare_represent(parser: Parser) -> None:
    data = Options(parser, "data", _SPLIT)
    source = data.exclusive(required=True)
    source.add("--images", "FILE", "Parquet files, or a folder of them or of images")
    source.add("--features", "FILE", "existing features, for --embed")
    data.add("--val-labels", "L", "LOC_val_solution.csv or val_annotations.txt of a flat val/")
    data.add("--max-bad", "X", "largest share of images that cannot be decoded (default: 0.001)")
    data.add("--out", "DIR", "folder for the results", required=True)
    what = Options(parser, "what to train")
    what.add("--loss", ["ce", "sgm", "l2", "cosine"], "default: ce, the cross-entropy")
    what.add("--embed", ["pn"], "also train an embedding: prototypical networks")
    what.add("--holdout", "X", "share of train images to hold out (default: 0.3)")
    what.add("--size", "N", "image size in pixels (default: that of the images, at most 256)")
    what.add("--epochs", "N", "number of epochs (default: see `cpaan settings`)")
    what.add("--seed", "SEED", "training seed (default: 0)", default=0)
    what.add("--as-in-benchmark", None, "use the recipe of Hariharan & Girshick, with --holdout")
    what.add("--set", "NAME=VALUE", "setting of the backbone, see `cpaan settings`; repeatable")
    what.add("--embed-set", "NAME=VALUE", "setting of the embedding; repeatable")
    where = Options(parser, "where to run", _DEVICE)
    where.add("--workers", "N", "number of CPUs or GPUs, with Ray (default: this process)")


def _declare_spiral(parser: Parser) -> None:
    options = Options(parser)
    options.add("--out", "DIR", "folder for spiral.svg and spiral.json", required=True)
    options.add("--seeds", "N", "number of seeds (default: 1)", default=1)
    options.add("--episodes", "N", "number of episodes (default: 1000)")
    options.add("--set", "NAME=VALUE", "setting of meta-training, see `cpaan settings`; repeatable")


def _declare_settings(parser: Parser) -> None:
    parser.add_argument("row", nargs="?", help="only the settings of this row")


def _declare_search(parser: Parser) -> None:
    off = {"action": "store_const", "const": False}
    what = Options(parser, "what to search", *_FEATURES, _SPLIT)
    what.add("--preset", ["quick", "paper"], "for two CPU cores (default), or for GPUs")
    help_ = "rows, or table-1 for those of the paper's table (default: CP-AAN+)"
    what.add("--method", "NAME,...", help_, dest="methods")
    what.add("--trials", "N", "number of trials (default: 12)", dest="num_trials")
    what.add("--episodes", "N", "number of episodes of a trial, over all its workers")
    what.add("--short", "N", "divide the episodes of trials by N; the report keeps its length")
    what.add("--seed", "SEED", "seed of proposals and training (default: 0)")
    what.add("--head", [*HEADS, OWN], f"classifier of the score, {_HEADS}, {OWN}", metavar="NAME")
    help_ = "train every trial to its end"
    what.add("--no-early-stopping", None, help_, dest="early_stopping", **off)
    what.add(*_SET)
    where = Options(parser, "where to run", *_RAY)
    where.add("--workers-per-trial", "N", "processes that train one model together (default: 1)")
    where.add("--gpus-per-worker", "X", "may be a fraction; 0: a CPU core (default: 1 GPU, if any)")
    help_ = "train with Ray Train (default: if a trial has a GPU or several workers)"
    where.add("--ray-train", None, help_, action=argparse.BooleanOptionalAction)
    where.add("--concurrent", "N", "trials at a time (default: as many as fit)")
    help_ = f"folder or s3://... that all machines share (default: ${STORAGE}, or the study)"
    where.add("--storage", "PATH", help_)
    where.add("--timeout", "TIME", "stop after a time such as 90 (seconds), 10m or 2h")
    keep = Options(parser, "what is kept")
    keep.add("--study", "NAME", f"name of a new folder in {RESULTS}/ (default: method and time)")
    help_ = "name or folder of a study to resume (default: the newest); more --trials add trials"
    keep.add("--resume", "STUDY", help_, nargs="?", const="")
    keep.add("--dry-run", None, "print the plan and the expected time, and exit")
    keep.add("--json", None, "with --dry-run: print every setting as JSON")


def _declare_report(parser: Parser) -> None:
    parser.add_argument("study", nargs="?", help="its name or folder (default: the newest)")
    options = Options(parser, None, _DRAWS_FILE)
    options.add("--seeds", "N", "number of seeds, at least 3 (default: 3)", dest="num_seeds")
    help_ = "number of seeded draws (default: 20 for preset quick, otherwise 50)"
    options.add("--draws", "N", help_, dest="num_seeded_draws")
    options.add("--heads", "NAME,...", f"{_HEADS} (default: that of the search; all for a table)")
    help_ = "also train ablations, with N seeds each (default: none)"
    options.add("--ablation-seeds", "N", help_, dest="num_ablation_seeds")
    help_ = "also train rows as their sources did, at full length, with N seeds (default: none)"
    options.add("--published-seeds", "N", help_, dest="num_published_seeds")
    help_ = "leave out pictures of synthetic examples and the spiral"
    options.add("--table-only", None, help_, dest="is_table_only")
    options.add("--redraw", None, "draw the page again from the report's files; read no test class")
    options.add("--partial", None, "leave out rows whose search has no result")
    options.add(
        "--known-reads", "J", "log of test-phase reads from another machine, to merge", type=Path
    )
    Options(parser, "where to run", *_RAY)


_METHODS = "List the rows of the table, for --methods and --method."
_COMMANDS: dict[str, tuple[str, str, Callable[[Parser], None]]] = {
    "evaluate": ("score low-shot methods on a feature table", _EVALUATE, _declare_evaluate),
    "represent": ("train a backbone on images, compute features", _REPRESENT, _declare_represent),
    "spiral": ("draw what the four GANs do to a toy data set", _SPIRAL, _declare_spiral),
    "methods": ("list the rows of the table", _METHODS, lambda parser: None),
    "settings": ("list all settings with values and meanings", _SETTINGS, _declare_settings),
    "search": ("search hyperparameters on Ray", _SEARCH, _declare_search),
    "report": ("evaluate the best configurations on test classes", _REPORT, _declare_report),
}
"""One line about each command, its help, and the function that declares its options."""


def parse(
    arguments: Sequence[str], command: str | None
) -> tuple[argparse.Namespace, Sequence[str]]:
    """Return the options of a command, and the arguments without its name."""
    if command:
        parser = _declare(Parser(prog=f"python tune/{command}.py"), command)
        return parser.parse_args(arguments), arguments
    lines = "\n".join(f"  {name:10} {summary}" for name, (summary, *_) in _COMMANDS.items())
    title = "Low-shot learning by feature augmentation."
    parser = Parser(prog=CPAAN, description=f"{title}\n\ncommands:\n{lines}")
    parser.add_argument("--version", action="version", version=f"cpaan {__version__}")
    help_ = f"`{CPAAN} COMMAND --help` describes its options"
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help=help_)
    for name in _COMMANDS:
        _declare(commands.add_parser(name), name)
    return parser.parse_args(arguments), arguments[1:]


def _declare(parser: Parser, command: str) -> Parser:
    _, parser.description, declare = _COMMANDS[command]
    declare(parser)
    add_traceback(parser)
    parser.set_defaults(command=command)
    return parser

"""The options of every command of ``python -m cpaan``, and its help."""

from pathlib import Path

from cpaan.cli import options
from cpaan.cli.command import Parser
from cpaan.protocol.accuracy import COLUMNS

_EVALUATE = f"""\
Score low-shot methods on novel classes, and print the table.

Without --features, the data are ResNet-10 features of Tiny-ImageNet's 200 classes. The columns
are top-1 and top-5 accuracy in percent, for every number of shots:

{chr(10).join(f"  {name:12} {meaning}" for name, meaning in COLUMNS.items())}

Choose everything on the validation phase: results/test-reads.jsonl records each read of the test
phase.

examples:
  the controls on your own features:
    python -m cpaan evaluate --features F.parquet --split split.json --out results/mine
  one shot only, 50 draws, compared with the cosine head of none:
    python -m cpaan evaluate ... --shots 1 --draws 50 --against none/cosine
  a GAN, with checkpoints and one changed setting:
    python -m cpaan evaluate ... --methods none,copy,cCov-GAN --episodes 10000 \\
      --checkpoints results/mine --set covariance_weight=1
  every row of the paper's table, eight at a time; the same command resumes it:
    python -m cpaan evaluate ... --methods table-1 --jobs 8 --out results/table
"""

_REPRESENT = """\
Train a ResNet-10 on the base classes of a split, and compute features of all its classes.

Images are Parquet files with the columns wnid, partition (train, test) and jpeg; or ImageNet's or
Tiny-ImageNet's folders, train/<wnid>/*.JPEG and val/. Images that cannot be decoded are named and
skipped.

The backbone is not fitted to a share of each base class's train images (--holdout). Only these
become train rows of the feature table, because a backbone puts images that it was fitted to much
closer together than others. The command prints the gap between train rows and test rows.

Give the same command again to resume a run that was killed.

examples:
  python -m cpaan represent --images tiny-imagenet/ --split split.json --out results/mine
  python -m cpaan represent --images /data/imagenet --split label_idx.json --as-in-benchmark \\
    --workers 4 --out results/imagenet
  python -m cpaan represent --features features.parquet --embed pn --out results/mine
"""

_SPIRAL = """\
Train the four GANs on a spiral in the plane, and draw their translations (Figure 3 of the paper).

Two base arms, top and bottom, are translated into two novel arms, left and right, with four known
points each (crosses). The picture shows the first seed, the table medians over all seeds:

  diversity   mean distance of two translated points over that of two true ones: one is right
  |log|       how far that is from one, in either direction
  covariance  size of the error of the translated points' covariance, relative to the true one
"""

_SETTINGS = """\
List all settings: name, value, the paper's or the benchmark's value where it differs, and meaning.

  evaluate --set NAME=VALUE         evaluation and training
  evaluate --set ROW.NAME=VALUE     one row of the table
  represent --set NAME=VALUE        the backbone
  represent --embed-set NAME=VALUE  the embedding
"""


def _declare_evaluate(parser: Parser) -> None:
    parser.description = _EVALUATE
    data = parser.add_argument_group("data")
    options.add_features(data)
    data.add_argument("--phase", choices=["validation", "test"], default="validation")
    help_ = "accept a backbone that was trained on novel classes"
    data.add_argument("--allow-trained-novel", action="store_true", help=help_)
    what = parser.add_argument_group("what to run")
    add = what.add_argument
    help_ = "rows of the table, or table-1 for all of them (default: the controls)"
    add("--methods", type=options.names, metavar="M,M,...", help=help_)
    options.add_heads(what, default="all")
    add("--shots", type=options.positive_numbers, metavar="K,K,...", help="default: 1,2,5,10,20")
    draws = what.add_mutually_exclusive_group()
    options.add_count(draws, "--draws", "seeded draws of the shots (default: 5)", dest="num_draws")
    options.add_draws_file(draws)
    options.add_count(what, "--seeds", "training seeds (default: 1)", dest="num_seeds")
    add("--seed", type=int, metavar="N", help="first training seed (default: 0)")
    options.add_count(what, "--episodes", "of each training (default: of each method its own)")
    help_ = "settings of the paper to the letter, and of other methods' sources"
    add("--as-printed", action="store_true", help=help_)
    help_ = "keep trainings here every half minute, and resume those that are there"
    add("--checkpoints", type=Path, metavar="DIR", help=help_)
    help_ = "methods at a time, each in a process; finished ones are kept in --out (default: 1)"
    options.add_count(what, "--jobs", help_, default=1)
    help_ = "linear head: 200 decaying steps (default), or the benchmark's 10,000"
    add("--linear", choices=["quick", "benchmark"], default="quick", help=help_)
    options.add_settings(what, "evaluation or training; METHOD.NAME=VALUE for one method")
    show = parser.add_argument_group("what to show")
    help_ = "row to compare with, draw by draw (default: none, same head)"
    show.add_argument("--against", metavar="METHOD[/HEAD]", help=help_)
    help_ = "write results.csv, results.json, accuracy.svg (table-1: default results/table-1)"
    show.add_argument("--out", type=Path, metavar="DIR", help=help_)
    options.add_device(parser)


def _declare_represent(parser: Parser) -> None:
    parser.description = _REPRESENT
    data = parser.add_argument_group("data")
    source = data.add_mutually_exclusive_group(required=True)
    help_ = "Parquet files, a folder of them, or ImageNet's folder"
    source.add_argument("--images", nargs="+", metavar="I", help=help_)
    help_ = "existing features, by path or address, for --embed"
    source.add_argument("--features", nargs="+", metavar="F", help=help_)
    options.add_split(data)
    help_ = "classes of a flat val folder: LOC_val_solution.csv or val_annotations.txt"
    data.add_argument("--val-labels", metavar="L", help=help_)
    help_ = "fail if more of the images cannot be decoded (default: 0.001)"
    data.add_argument("--max-bad", type=float, metavar="SHARE", help=help_)
    data.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for results")
    what = parser.add_argument_group("what to train")
    add = what.add_argument
    help_ = "cross-entropy (default), with a penalty of the benchmark, or a cosine classifier"
    add("--loss", choices=["ce", "sgm", "l2", "cosine"], help=help_)
    add("--embed", choices=["pn"], help="train an embedding on top: prototypical networks")
    help_ = "train images of a base class that are not fitted (default: 0.3)"
    add("--holdout", type=float, metavar="SHARE", help=help_)
    options.add_count(what, "--size", "pixels (default: of the images themselves, 256 at most)")
    options.add_count(what, "--epochs", "default: as `python -m cpaan settings` has it")
    add("--seed", type=int, default=0, metavar="N", help="default: 0")
    help_ = "the recipe of Hariharan & Girshick; --holdout stays"
    add("--as-in-benchmark", action="store_true", default=None, help=help_)
    options.add_settings(what, "the backbone")
    options.add_settings(what, "the embedding", "--embed-set")
    options.add_device(parser)
    options.add_count(parser, "--workers", "CPUs or GPUs, with Ray (default: in this process)")


def _declare_spiral(parser: Parser) -> None:
    parser.description = _SPIRAL
    help_ = "write spiral.svg and spiral.json"
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=help_)
    options.add_count(parser, "--seeds", "default: 1", default=1)
    options.add_count(parser, "--episodes", "default: 1000")
    options.add_settings(parser, "meta-training")


def _declare_settings(parser: Parser) -> None:
    parser.description = _SETTINGS


COMMANDS = {
    "evaluate": ("score low-shot methods on a feature table", _declare_evaluate),
    "represent": ("train a backbone on images, and compute features", _declare_represent),
    "spiral": ("draw what the four GANs do to a toy data set", _declare_spiral),
    "settings": ("list what --set can set, with values and meanings", _declare_settings),
}
"""One line about each command, and the function that declares its options."""

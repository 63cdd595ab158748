"""The options of every command of ``python -m cpaan``, and its help."""

from pathlib import Path

from cpaan.cli.command import Parser
from cpaan.cli.options import Options, names, positive_numbers
from cpaan.protocol.config import COLUMNS

_PHASES = ["validation", "test"]
_DEVICE = "cpu or cuda (default: cuda where there is one)"

_EVALUATE = f"""\
Score low-shot methods on novel classes, and print the table.

Without --features, the data are ResNet-10 features of Tiny-ImageNet's 200 classes. The columns
are top-1 and top-5 accuracy in percent, for every number of shots:

{chr(10).join(f"  {name:12} {meaning}" for name, meaning in COLUMNS.items())}

Choose everything on the validation phase. Each read of the test phase is recorded.

examples:
  the controls on your own features, one shot, 50 draws:
    python -m cpaan evaluate --features F.parquet --split split.json --shots 1 --draws 50
  a GAN, with checkpoints and one changed setting:
    python -m cpaan evaluate ... --methods none,copy,cCov-GAN --episodes 10000 \\
      --checkpoints results/mine --set covariance_weight=1
  every row of the paper's table, eight at a time; the same command resumes it:
    python -m cpaan evaluate ... --methods table-1 --jobs 8 --out results/table
"""

_REPRESENT = """\
Train a ResNet-10 on the base classes of a split, and compute features of all its classes.

Images are Parquet files with the columns wnid, partition (train, test) and jpeg; or ImageNet's or
Tiny-ImageNet's folders, train/<wnid>/*.JPEG and val/. The backbone is not fitted to a share of each
base class's train images (--holdout). Only these become train rows, because a backbone puts images
that it was fitted to much closer together. The same command resumes a run that was killed.

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
    data = Options(parser.add_argument_group("data"))
    data.features()
    data.choice("--phase", _PHASES, "default: validation", default="validation")
    data.flag("--allow-trained-novel", "accept a backbone that was trained on novel classes")
    what = Options(parser.add_argument_group("what to run"))
    what.text(
        "--methods",
        "M,M,...",
        "rows, or table-1 for all; `cpaan methods` lists them (default: controls)",
        type=names,
    )
    what.heads("all")
    what.text("--shots", "K,K,...", "default: 1,2,5,10,20", type=positive_numbers)
    draws = Options(what.group.add_mutually_exclusive_group())
    draws.count("--draws", "seeded draws of the shots (default: 5)", dest="num_draws")
    draws.draws_file()
    what.count("--seeds", "training seeds (default: 1)", dest="num_seeds")
    what.text("--seed", "N", "first training seed (default: 0)", type=int)
    what.count("--episodes", "of the named methods, not of the embedding below them")
    what.flag("--as-printed", "settings of the paper to the letter, and of other methods' sources")
    what.text("--checkpoints", "DIR", "keep trainings here, and resume those there", type=Path)
    what.count("--jobs", "processes; --out keeps what they finish (default: 1)", default=1)
    what.choice("--linear", ["quick", "benchmark"], "200 or 10,000 steps (default: quick)")
    what.settings("evaluation or training; METHOD.NAME=VALUE for one method")
    show = Options(parser.add_argument_group("what to show"))
    show.text("--against", "METHOD[/HEAD]", "row to compare with (default: none, same head)")
    show.text("--out", "DIR", "folder for results.csv, results.json, accuracy.svg", type=Path)
    show.text("--device", "D", _DEVICE)


def _declare_represent(parser: Parser) -> None:
    parser.description = _REPRESENT
    data = Options(parser.add_argument_group("data"))
    source = Options(data.group.add_mutually_exclusive_group(required=True))
    source.text("--images", "I", "Parquet files, or a folder of them or of images", nargs="+")
    source.text("--features", "F", "existing features, by path or address, for --embed", nargs="+")
    data.split()
    data.text("--val-labels", "L", "LOC_val_solution.csv or val_annotations.txt of a flat val/")
    data.text("--max-bad", "SHARE", "most images that do not decode (default: 0.001)", type=float)
    data.text("--out", "DIR", "folder for results", type=Path, required=True)
    what = Options(parser.add_argument_group("what to train"))
    what.choice("--loss", ["ce", "sgm", "l2", "cosine"], "default: ce, the cross-entropy")
    what.choice("--embed", ["pn"], "train an embedding on top: prototypical networks")
    what.text("--holdout", "SHARE", "train images that are not fitted (default: 0.3)", type=float)
    what.count("--size", "pixels (default: those of the images, 256 at most)")
    what.count("--epochs", "default: as `python -m cpaan settings` has it")
    what.text("--seed", "N", "default: 0", type=int, default=0)
    what.flag("--as-in-benchmark", "the recipe of Hariharan & Girshick, but --holdout")
    what.settings("the backbone")
    what.settings("the embedding", "--embed-set")
    where = Options(parser.add_argument_group("where to run"))
    where.text("--device", "D", _DEVICE)
    where.count("--workers", "CPUs or GPUs, with Ray (default: in this process)")


def _declare_spiral(parser: Parser) -> None:
    parser.description = _SPIRAL
    options = Options(parser)
    options.text("--out", "DIR", "folder for spiral.svg and spiral.json", type=Path, required=True)
    options.count("--seeds", "default: 1", default=1)
    options.count("--episodes", "default: 1000")
    options.settings("meta-training")


def _declare_settings(parser: Parser) -> None:
    parser.description = _SETTINGS
    parser.add_argument("row", nargs="?", help="only the settings of this row")


def _declare_methods(parser: Parser) -> None:
    parser.description = "List the rows of the table, for --methods and --method."


COMMANDS = {
    "evaluate": ("score low-shot methods on a feature table", _declare_evaluate),
    "represent": ("train a backbone on images, and compute features", _declare_represent),
    "spiral": ("draw what the four GANs do to a toy data set", _declare_spiral),
    "methods": ("list the rows of the table", _declare_methods),
    "settings": ("list what --set can set, with values and meanings", _declare_settings),
}
"""One line about each command, and the function that declares its options."""

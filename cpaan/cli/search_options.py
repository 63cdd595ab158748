"""The options of ``tune/search.py``."""

import argparse
import re
from pathlib import Path

from cpaan.cli.cluster_options import add_cluster
from cpaan.cli.options import Parser, add_traceback, positive_number
from cpaan.gan.config import TrainConfig
from cpaan.methods.registry import METHODS, TABLE_1
from cpaan.protocol.config import HEADS, OWN
from cpaan.study.config import PRESETS, StudyConfig

PROGRAM = "python tune/search.py"
RESULTS = Path("results")
STORAGE = "CPAAN_STORAGE"
"""Environment variable of a cluster's head: the storage that its machines share."""

_HELP = """\
Search the hyper-parameters of one of the four GANs, or of any other row of the table, on Ray.

Each trial trains the method with Ray Train and is scored on the validation phase: the mean of LSL
and GLSL top-5 over all numbers of shots, on the same draws for every trial. Optuna proposes, ASHA
stops what is behind, and the best that ran to their end, five at most, are scored again on fresh
draws and more seeds; best.json has the winner. Trials 0 and 1 of a GAN are the paper's own points:
its printed weights with our settings, and its settings to the letter; those of another method, the
settings that we recommend and those of its source. Test classes are never read here: python
tune/report.py does that.

Without arguments this is a study of CP-AAN+ on the built-in features that takes minutes on two
CPU cores. The same command runs on a GPU (which is found) and on a Ray cluster (--cluster, or
--address on a machine of it).
"""

_EXAMPLES = """\
examples:
  a first study, and its report:
    python tune/search.py
    python tune/report.py
  your own features, at the paper's scale, four trials on each GPU:
    python tune/search.py --features features.parquet --split split.json --preset paper \\
      --gpus-per-worker 0.25
  on a cluster that `ray up cluster/gpu.yaml` has started, two GPUs a trial:
    python tune/search.py --cluster cluster/gpu.yaml --preset paper --study mine \\
      --features s3://bucket/features.parquet --workers-per-trial 2
  every row of the paper's table, twelve trials each, and the table on test classes:
    python tune/search.py --method table-1 --trials 12 --study table
    python tune/report.py table
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
    quick, paper = (PRESETS[name].recommended()[0].to_dict() for name in PRESETS)
    num_trials = {name: preset.study["num_trials"] for name, preset in PRESETS.items()}
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
        help=f"quick: {quick['num_episodes']} small episodes, {num_trials['quick']} trials; paper: "
        f"{paper['num_episodes']} episodes of B = {paper['batch_size']}, N_b = "
        f"{paper['num_ways']}, K_b = {TrainConfig.as_printed().max_shots}, {num_trials['paper']} "
        "trials (default: quick)",
    )
    what.add_argument(
        "--method",
        metavar="M",
        help=f"of {', '.join(METHODS)} (default: {StudyConfig().method}); several with commas, or "
        f"{TABLE_1} for every row of the paper's table, are searched side by side, each with "
        "the same number of trials, and reported together",
    )
    what.add_argument(
        "--features",
        nargs="+",
        metavar="F",
        help="as of `python -m cpaan evaluate`; by an address, every machine has its own copy",
    )
    what.add_argument(
        "--cosine-features",
        nargs="+",
        metavar="F",
        help="the same rows by a backbone that was trained with `represent "
        "--loss cosine`, for the row AWG-cosine",
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
        "--short",
        type=positive_number,
        metavar="N",
        help="train trials for one N-th of the episodes; the finalists, and what the report "
        "proves, for all of them (default: 1)",
    )
    what.add_argument(
        "--seed", type=int, metavar="N", help="of proposals and training (default: 0)"
    )
    what.add_argument(
        "--head", choices=[*HEADS, OWN], help="the classifier that trials are scored with"
    )
    what.add_argument(
        "--weights",
        type=_weights,
        metavar="LSL,GLSL",
        help="of the two in the score (default: 1,1)",
    )
    what.add_argument(
        "--no-early-stopping", action="store_true", default=None, help="train all to the end"
    )
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any setting that is not searched, of training and evaluation (`python -m cpaan "
        "settings` lists them) or of the study; the paper's own point, trial 1, keeps its own. "
        "With several methods, for those that have it; METHOD.NAME=VALUE for one",
    )
    where = parser.add_argument_group("where to run")
    where.add_argument(
        "--workers-per-trial",
        type=positive_number,
        metavar="N",
        help="processes that train one model together (default: 1)",
    )
    where.add_argument(
        "--gpus-per-worker",
        type=float,
        metavar="X",
        help="fractions too; 0: a CPU core (default: 1 where there is a GPU)",
    )
    where.add_argument(
        "--no-ray-train",
        action="store_true",
        default=None,
        help="trials of one worker in Tune's own process: one to start instead of eight, and no "
        "Train run in the dashboard; the scores are the same",
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
        help="a folder or s3://... that all machines reach (default: $CPAAN_STORAGE, which cluster "
        "files set, or the study's folder)",
    )
    where.add_argument(
        "--timeout", type=_duration, metavar="T", help="90, 10m or 2h; the rest can be resumed"
    )
    add_cluster(where)
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

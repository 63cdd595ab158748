"""The options of ``tune/search.py`` and ``tune/report.py``, and their help."""

from pathlib import Path

from cpaan.cli import options
from cpaan.cli.command import Parser
from cpaan.protocol.config import HEADS, OWN

SEARCH, REPORT = "python tune/search.py", "python tune/report.py"
RESULTS = Path("results")
STORAGE = "CPAAN_STORAGE"
"""Environment variable of a cluster's head: the storage that its machines share."""

_SEARCH = f"""\
Search the hyperparameters of one or several rows of the table, on Ray.

A trial is scored on the validation phase: the mean of LSL and GLSL top-5 over all numbers of shots,
on the same draws. Optuna proposes trials, ASHA stops some early, and up to five finalists are
scored again on fresh draws and more seeds; best.json has the winner. Trials 0 and 1 of a GAN are
the paper's printed weights with our settings, and all settings as printed; of another method,
the settings that we recommend and those of its source. The test phase is not read.

Without arguments this is a study of CP-AAN+ on the built-in features: minutes on two CPU cores.

examples:
  your own features, at the paper's scale, four trials on each GPU:
    {SEARCH} --features F.parquet --split split.json --preset paper --gpus-per-worker 0.25
  on a cluster that `ray up cluster/gpu.yaml` has started, two GPUs a trial:
    {SEARCH} --cluster cluster/gpu.yaml --preset paper --study mine \\
      --features s3://bucket/features.parquet --workers-per-trial 2
  every row of the paper's table, twelve trials each:
    {SEARCH} --method table-1 --trials 12 --study table
  stop after ten minutes; resume with more trials:
    {SEARCH} --study mine --timeout 10m
    {SEARCH} --resume mine --trials 40

A study is a folder results/STUDY: config.json, trials.parquet, best.json, optuna.db (for
optuna-dashboard), tensorboard/, study.log. It can be read at any time, and resumed after Ctrl-C, a
dead machine or a full disk.

exit status: 0 if the study is complete; 1 if trials failed or are left; 2 for bad input and for
files or machines that cannot be reached; 130 after Ctrl-C.
"""

_REPORT = f"""\
Evaluate the best configuration of each row of a study on the test phase, and write the report.

The configuration of best.json is trained with new seeds, beside trial 0 (the paper's printed
weights) and the controls, and scored on the same draws of test classes: five fixed ones, as in the
paper's table, and 50 seeded ones for intervals and comparisons. A study of several rows gives the
paper's table: by the paper's rule for the final classifier, and with the head of each row that was
best on the validation phase.

report/index.html shows the tables, ablations, pictures of synthetic examples and the spiral;
report/findings.md has its text. results/test-reads.jsonl records each run: run it once.

examples:
  {REPORT}                           the newest study
  {REPORT} results/mine --redraw     the page again, from the files of the report
  {REPORT} mine --cluster cluster/gpu.yaml
"""


def search_parser() -> Parser:
    """Return the parser of ``tune/search.py``."""
    parser = Parser(prog=SEARCH, description=_SEARCH)
    what = parser.add_argument_group("what to search")
    add = what.add_argument
    help_ = "quick: minutes on two CPU cores (default); paper: the paper's scale, for GPUs"
    add("--preset", choices=["quick", "paper"], help=help_)
    help_ = "a row of the table, several with commas, or table-1 for all (default: CP-AAN+)"
    add("--method", type=options.names, dest="methods", metavar="M", help=help_)
    options.add_features(what)
    options.add_count(what, "--trials", "default: 12, paper 40", dest="num_trials")
    options.add_count(what, "--episodes", "of a trial, over all of its workers")
    help_ = "train trials for one N-th of the episodes, finalists for all (default: 1)"
    options.add_count(what, "--short", help_)
    add("--seed", type=int, metavar="N", help="of proposals and training (default: 0)")
    add("--head", choices=[*HEADS, OWN], help="classifier that trials are scored with")
    help_ = "train every trial to its end"
    add("--no-early-stopping", action="store_const", const=False, dest="early_stopping", help=help_)
    options.add_settings(what, "study, evaluation or training; METHOD.NAME=VALUE for one method")
    where = parser.add_argument_group("where to run")
    add = where.add_argument
    help_ = "processes that train one model together (default: 1)"
    options.add_count(where, "--workers-per-trial", help_)
    help_ = "also a fraction; 0: a CPU core (default: 1 where there is a GPU)"
    add("--gpus-per-worker", type=float, metavar="X", help=help_)
    help_ = "run trials of one worker in one process each, without Ray Train; the scores are equal"
    add("--no-ray-train", action="store_const", const=False, dest="ray_train", help=help_)
    options.add_count(where, "--concurrent", "trials at a time (default: as many as fit)")
    help_ = f"folder or s3://... that all machines reach (default: ${STORAGE}, or the study)"
    add("--storage", metavar="P", help=help_)
    help_ = "stop after 90 seconds, 10m or 2h; the study can be resumed"
    add("--timeout", type=options.duration, metavar="T", help=help_)
    options.add_ray(where)
    keep = parser.add_argument_group("what is kept")
    help_ = f"name of a new folder in {RESULTS}/ (default: method and time)"
    keep.add_argument("--study", metavar="NAME", help=help_)
    help_ = "resume a study by its name or folder (default: the newest), also with more --trials"
    keep.add_argument("--resume", nargs="?", const="", metavar="STUDY", help=help_)
    keep.add_argument("--dry-run", action="store_true", help="print every setting, and end")
    options.add_traceback(parser)
    return parser


def report_parser() -> Parser:
    """Return the parser of ``tune/report.py``."""
    parser = Parser(prog=REPORT, description=_REPORT)
    add, add_count = parser.add_argument, options.add_count
    add("study", nargs="?", help=f"its name or folder (default: the newest in {RESULTS}/)")
    add_count(parser, "--seeds", "trainings, at least three (default: 3)", dest="num_seeds")
    add_count(parser, "--draws", "seeded draws (default: 50)", dest="num_seeded_draws")
    options.add_draws_file(parser)
    options.add_heads(parser, default="the one of the search; of several rows, all")
    add_count(parser, "--ablation-seeds", "default: 1", dest="num_ablation_seeds")
    help_ = "without ablations, pictures of synthetic examples and the spiral"
    add("--table-only", action="store_true", dest="is_table_only", help=help_)
    help_ = "draw the page again from the report's files; reads no test class"
    add("--redraw", action="store_true", help=help_)
    add("--partial", action="store_true", help="leave out rows whose search has no result")
    help_ = "log of test reads of another machine to add to this one's; --cluster sends it"
    add("--known-reads", type=Path, metavar="J", help=help_)
    options.add_ray(parser)
    options.add_traceback(parser)
    return parser

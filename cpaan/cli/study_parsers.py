"""The options of ``tune/search.py`` and ``tune/report.py``, and their help."""

from pathlib import Path

from cpaan.cli.command import Parser
from cpaan.cli.options import Options, duration, names
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
the settings that we recommend and those of its source.

A study is a folder results/STUDY. It can be read at any time, and resumed after Ctrl-C, a dead
machine or a full disk.

examples:
  CP-AAN+ on the built-in features, in minutes on two CPU cores:
    {SEARCH}
  your own features, at the paper's scale, four trials on each GPU:
    {SEARCH} --features F.parquet --split split.json --preset paper --gpus-per-worker 0.25
  every row of the paper's table, twelve trials each, on a cluster that `ray up` has started:
    {SEARCH} --method table-1 --trials 12 --study table --cluster cluster/gpu.yaml
  stop after ten minutes; resume with more trials:
    {SEARCH} --study mine --timeout 10m
    {SEARCH} --resume mine --trials 40

exit status: 0 if the study is complete; 1 if trials failed or are left; 2 for bad input and for
files or machines that cannot be reached; 130 after Ctrl-C.
"""

_REPORT = f"""\
Evaluate the best configuration of each row of a study on the test phase, and write the report.

Each is trained with new seeds, beside the default settings and the controls, and scored on
the same draws of test classes: five fixed ones, as in the paper's table, and 50 seeded ones for
intervals and comparisons. A study of several rows gives the paper's table, with the paper's final
classifiers and with the best ones on the validation phase.

report/index.html is the page to open; report/findings.md has its text. Each run is recorded in
results/test-reads.jsonl: run it once.

examples:
  {REPORT}                           the newest study
  {REPORT} results/mine --redraw     the page again, from the files of the report
  {REPORT} mine --cluster cluster/gpu.yaml
"""


def _declare_search(parser: Parser) -> None:
    parser.description = _SEARCH
    what = Options(parser.add_argument_group("what to search"))
    what.choice("--preset", ["quick", "paper"], "for two CPU cores (default), or for GPUs")
    help_ = "a row of the table, several with commas, or table-1 for all (default: CP-AAN+)"
    what.text("--method", "M", help_, type=names, dest="methods")
    what.features()
    what.count("--trials", "default: 12, paper 40", dest="num_trials")
    what.count("--episodes", "of a trial, over all of its workers")
    what.count("--short", "train trials for one N-th of the episodes, finalists for all")
    what.text("--seed", "N", "of proposals and training (default: 0)", type=int)
    what.choice("--head", [*HEADS, OWN], "classifier that trials are scored with")
    what.switch_off("--no-early-stopping", "early_stopping", "train every trial to its end")
    what.settings("study, evaluation or training; METHOD.NAME=VALUE for one method")
    where = Options(parser.add_argument_group("where to run"))
    where.count("--workers-per-trial", "processes that train one model together (default: 1)")
    help_ = "also a fraction; 0: a CPU core (default: 1 where there is a GPU)"
    where.text("--gpus-per-worker", "X", help_, type=float)
    help_ = "run trials of one worker in one process each; the scores are equal"
    where.switch_off("--no-ray-train", "ray_train", help_)
    where.count("--concurrent", "trials at a time (default: as many as fit)")
    where.text(
        "--storage", "P", f"folder or s3://... of all machines (default: ${STORAGE}, or here)"
    )
    where.text("--timeout", "T", "stop after 90 seconds, 10m or 2h; resume later", type=duration)
    where.ray()
    keep = Options(parser.add_argument_group("what is kept"))
    keep.text("--study", "NAME", f"name of a new folder in {RESULTS}/ (default: method and time)")
    help_ = "resume a study by its name or folder (default: the newest), also with more --trials"
    keep.text("--resume", "STUDY", help_, nargs="?", const="")
    keep.flag("--dry-run", "print the plan and the expected time, and exit")
    keep.flag("--json", "with --dry-run: print every setting as JSON")


def _declare_report(parser: Parser) -> None:
    parser.description = _REPORT
    parser.add_argument("study", nargs="?", help="its name or folder (default: the newest)")
    options = Options(parser)
    options.count("--seeds", "trainings, at least three (default: 3)", dest="num_seeds")
    options.count("--draws", "seeded draws (default: 50)", dest="num_seeded_draws")
    options.draws_file()
    options.heads("the one of the search; of several rows, all")
    options.count("--ablation-seeds", "default: 1", dest="num_ablation_seeds")
    help_ = "without ablations, pictures of synthetic examples and the spiral"
    options.flag("--table-only", help_, dest="is_table_only")
    options.flag("--redraw", "draw the page again from the report's files; reads no test class")
    options.flag("--partial", "leave out rows whose search has no result")
    help_ = "log of test reads of another machine to add to this one's; --cluster sends it"
    options.text("--known-reads", "J", help_, type=Path)
    options.ray()


STUDY_COMMANDS = {
    "search": ("search hyperparameters on Ray", _declare_search),
    "report": ("evaluate the best configuration of a study on test classes", _declare_report),
}
"""One line about each command, and the function that declares its options."""

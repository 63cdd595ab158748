"""``tune/report.py``: a study's best configuration on the test phase."""

import argparse
from collections.abc import Sequence

from cpaan.cli.guard import INTERRUPTED, guarded
from cpaan.cli.options import Parser, add_traceback, check_writable, names, positive_number
from cpaan.cli.study_options import INCOMPLETE, RESULTS
from cpaan.cli.watching import StudyWatch
from cpaan.config import HEADS
from cpaan.provenance import TEST_READS
from cpaan.splits import TEST_PHASE, read_draws
from cpaan.study.cluster import ray_cluster
from cpaan.study.fleet import WorkLostError
from cpaan.study.folder import find_study, read_study
from cpaan.study.records import BEST, LOG, read_json
from cpaan.study.report import FOLDER, ReportSettings, make_report

PROGRAM = "python tune/report.py"

_HELP = f"""\
Take a study's best configuration to the test phase, and write the table.

The configuration of best.json is trained anew, with seeds that the search has not seen, beside
trial 0 (the paper's printed weights) and the controls that learn nothing. All of them meet the
same draws of test classes: five fixed ones for the table, 50 seeded ones for the intervals.

Each run reads the test phase, and is noted in {TEST_READS}. It is meant to be run once.
"""

_EXAMPLES = """\
examples:
  python tune/report.py                       the newest study
  python tune/report.py results/mine --seeds 5
  python tune/report.py --heads centroid,cosine,knn,linear
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    return guarded(PROGRAM, lambda: _report(options), traceback=options.traceback)


def _parser() -> Parser:
    defaults = ReportSettings()
    parser = Parser(
        prog=PROGRAM,
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "study", nargs="?", help=f"its name or folder (default: the newest in {RESULTS}/)"
    )
    parser.add_argument(
        "--seeds",
        type=positive_number,
        default=defaults.num_seeds,
        metavar="N",
        help="trainings of each configuration, three at least (default: %(default)s)",
    )
    parser.add_argument(
        "--draws",
        type=positive_number,
        default=defaults.num_seeded_draws,
        metavar="N",
        help="seeded draws, for the intervals (default: %(default)s)",
    )
    parser.add_argument(
        "--draws-file",
        nargs="+",
        metavar="J",
        help="the fixed draws as JSON: rows by class, or the benchmark's index files (default: "
        f"{defaults.num_fixed_draws} draws of seed 0)",
    )
    parser.add_argument(
        "--heads",
        type=names,
        metavar="H,H,...",
        help=f"of {', '.join(HEADS)} (default: the one of the search)",
    )
    parser.add_argument(
        "--address", metavar="A", help="of a running Ray, host:port or auto (default: a new one)"
    )
    add_traceback(parser)
    return parser


def _report(options: argparse.Namespace) -> int:
    folder = find_study(options.study, RESULTS)
    study = read_study(folder)
    read_json(folder, BEST)
    heads = tuple(options.heads or ())
    study.evaluation.with_overrides({"heads": heads or (study.config.head,)})  # refuses others
    fixed = None
    if options.draws_file:
        fixed = read_draws(
            options.draws_file,
            study.data.open(),
            study.data.split,
            TEST_PHASE,
            max_shots=max(study.evaluation.shots),
        )
    check_writable(folder)
    settings = ReportSettings(num_seeds=options.seeds, num_seeded_draws=options.draws, heads=heads)
    watch = StudyWatch(study.config, study.training.num_episodes, folder / LOG)
    watch.say(f"reporting {folder}")
    try:
        with ray_cluster(options.address, watch.say) as cluster, study.locked():
            watch.say(cluster.announcement)
            tables, failed = make_report(study, cluster, watch.say, settings, fixed)
    except WorkLostError as error:
        raise ValueError(f"{error}; trainings are kept: the same command goes on") from error
    except KeyboardInterrupt:
        watch.say("stopped; trainings are kept: the same command goes on")
        return INTERRUPTED
    written = folder / FOLDER
    print(f"\n{(written / 'report.md').read_text()}")
    print(tables.headline())
    print(f"\nWritten: {written}/report.md, table.csv, table.tex, report.json, scores.parquet")
    return INCOMPLETE if failed else 0

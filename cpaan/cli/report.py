"""``tune/report.py``: a study's best configuration on the test phase."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cpaan.cli.cluster_options import (
    add_cluster,
    is_for_cluster,
    run_on_cluster,
)
from cpaan.cli.guard import INCOMPLETE, INTERRUPTED, guarded
from cpaan.cli.options import Parser, add_traceback, check_writable, names, positive_number
from cpaan.cli.progress import StudyProgress
from cpaan.cli.search import download_if_absent
from cpaan.cli.search_options import RESULTS
from cpaan.core.provenance import TEST_READS, take_over_test_reads
from cpaan.core.remote_paths import RemotePath
from cpaan.data.splits import TEST_PHASE, read_draws
from cpaan.methods.registry import ROWS
from cpaan.protocol.config import HEADS
from cpaan.report.page.contents import REPORT
from cpaan.report.page.page import INDEX, write_page
from cpaan.study.cluster import ray_cluster
from cpaan.study.cluster_job import ClusterCommand
from cpaan.study.report import make_report
from cpaan.study.report_rows import ReportSettings
from cpaan.study.study import LOG, Study, find_study, read_study
from cpaan.study.worker_pool import WorkLostError

PROGRAM = "python tune/report.py"

_HELP = f"""\
Take a study's best configuration to the test phase, and write the table.

The configuration of best.json is trained anew, with seeds that the search has not seen, beside
trial 0 (the paper's printed weights) and the controls that learn nothing. All of them meet the
same draws of test classes: five fixed ones, as the paper's table has them, and 50 seeded ones for
narrow intervals and all comparisons.

Of a study of many rows (search.py --method table-1), the best of every row is trained anew, and the
paper's table is made of them: by the paper's rule for the final classifier, and with the head of
each row that was best on the validation phase.

Beside the table come ablations (which base classes are related; what CP-AAN+ adds, one idea taken
away at a time), pictures of synthetic examples, and the paper's spiral. All of it is in
report/index.html, one page to open in a browser; its words are in report/findings.md.

Each run reads the test phase, and is noted in {TEST_READS}. It is meant to be run once.
"""

_EXAMPLES = """\
examples:
  python tune/report.py                       the newest study
  python tune/report.py results/mine --seeds 5
  python tune/report.py --heads centroid,cosine,knn,linear
  python tune/report.py results/mine --redraw     the page again, of the files that are there
  python tune/report.py mine --cluster cluster/gpu.yaml
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    return guarded(PROGRAM, lambda: _run(options, arguments), traceback=options.traceback)


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
        help=f"of {', '.join(HEADS)} (default: the one of the search; of many rows, all)",
    )
    parser.add_argument(
        "--ablation-seeds",
        type=positive_number,
        default=defaults.num_ablation_seeds,
        metavar="N",
        help="the same for each ablation (default: %(default)s)",
    )
    parser.add_argument(
        "--table-only",
        action="store_true",
        help="leave out ablations, pictures of synthetic examples and the spiral",
    )
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="make the page again of an earlier report's files; reads no test class",
    )
    parser.add_argument(
        "--partial", action="store_true", help="of many rows, leave out those without a winner"
    )
    parser.add_argument(
        "--address", metavar="A", help="of a running Ray, host:port or auto (default: a new one)"
    )
    add_cluster(parser)
    parser.add_argument(
        "--known-reads",
        metavar="J",
        help=f"a {TEST_READS.name} of another machine to take over; --cluster sends this one's",
    )
    add_traceback(parser)
    return parser


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    if not is_for_cluster(options):
        return _report(options)
    name = find_study(options.study, RESULTS).name
    # By its name alone: where it is here says nothing there.
    others = [each for each in arguments if each != options.study]
    files = {}
    if options.draws_file:
        files["--draws-file"] = options.draws_file
    if TEST_READS.exists():
        files["--known-reads"] = [str(TEST_READS)]
    return run_on_cluster(options, ClusterCommand("report.py", name, [name, *others], files))


def _report(options: argparse.Namespace) -> int:
    if options.known_reads:
        take_over_test_reads(Path(options.known_reads))
    folder = find_study(options.study, RESULTS)
    if options.redraw:
        check_writable(folder)
        print("Drawing the page: a minute or two if it has many searches.", file=sys.stderr)
        write_page(folder, lambda name, content: (RemotePath.at(folder) / name).write(content))
        print(f"The page: {folder / INDEX}")
        return 0
    download_if_absent(folder)
    study = _finished(read_study(folder), is_partial=options.partial)
    heads = tuple(options.heads or ())
    row = study.rows[0]
    row.evaluation.with_overrides({"heads": heads or (row.config.head,)})  # refuses unknown heads
    fixed = None
    if options.draws_file:
        max_shots, data = max(row.evaluation.shots), row.data
        fixed = read_draws(
            options.draws_file, data.open(), data.split, TEST_PHASE, max_shots=max_shots
        )
    check_writable(folder)
    settings = ReportSettings(
        num_seeds=options.seeds,
        num_seeded_draws=options.draws,
        heads=heads,
        num_ablation_seeds=options.ablation_seeds,
        is_table_only=options.table_only,
    )
    progress = StudyProgress(study, folder / LOG)
    progress.say(f"reporting {folder}")
    try:
        with ray_cluster(options.address, progress.say) as cluster, study.locked():
            progress.say(cluster.announcement)
            headline, failed = make_report(study, cluster, progress.say, settings, fixed)
    except WorkLostError as error:
        raise ValueError(
            f"{error}; finished parts are kept: the same command resumes the report"
        ) from error
    except KeyboardInterrupt:
        progress.say("stopped; finished parts are kept: the same command resumes the report")
        return INTERRUPTED
    written = folder / REPORT
    print(f"\n{(written / 'report.md').read_text()}")
    if headline:
        print(headline)
    print(f"\nWritten: {written}/report.md, table.csv, table.tex, report.json, scores.parquet")
    print(f"The page: {folder / INDEX}")
    return INCOMPLETE if failed else 0


def _finished(study: Study, *, is_partial: bool) -> Study:
    """Return a study with the rows whose search has a result, in the order of the paper's table.

    Raises:
        ValueError: If rows have no result and none may be missing, or if all have none.
    """
    rows = sorted(study.rows, key=lambda row: list(ROWS).index(row.method))
    missing = [row for row in rows if not study.has_best(row)]
    if len(missing) == len(rows) or (missing and not is_partial):
        raise ValueError(
            f"the search of {', '.join(row.method for row in missing)} has no result yet: python "
            f"tune/search.py --resume {study.folder} resumes it (--partial reports the others)"
        )
    return replace(study, rows=tuple(row for row in rows if row not in missing))

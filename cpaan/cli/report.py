"""``tune/report.py``: a study's best configuration on the test phase."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cpaan.cli.cluster import is_for_cluster, run_on_cluster
from cpaan.cli.command import INCOMPLETE, INTERRUPTED, check_writable
from cpaan.cli.options import overrides_of
from cpaan.cli.parsers import RESULTS, SEARCH
from cpaan.cli.progress import StudyProgress
from cpaan.cli.search import download_if_absent
from cpaan.core.provenance import TEST_READS, take_over_test_reads
from cpaan.core.remote_paths import RemotePath
from cpaan.data.split_files import read_draws
from cpaan.data.splits import TEST_PHASE
from cpaan.methods.registry import ROWS
from cpaan.report.page.page import write_page
from cpaan.study.cluster import ray_cluster
from cpaan.study.cluster_job import ClusterCommand
from cpaan.study.report import make_report
from cpaan.study.report_rows import ReportSettings
from cpaan.study.study import LOG, Study, find_study, read_study
from cpaan.study.worker_pool import WorkLostError


def run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Run the command here or on a cluster; return its exit status."""
    folder = find_study(options.study, RESULTS)
    if options.redraw or not is_for_cluster(options, folder):
        return _report(options, folder)
    name = folder.name
    # By its name alone, because the folder may be elsewhere on the cluster.
    others = [argument for argument in arguments if argument != options.study]
    files = {"--draws-file": options.draws_file} if options.draws_file else {}
    if TEST_READS.exists():
        files["--known-reads"] = [str(TEST_READS)]
    return run_on_cluster(options, ClusterCommand("report.py", name, [name, *others], files))


def _report(options: argparse.Namespace, folder: Path) -> int:
    if options.known_reads:
        take_over_test_reads(options.known_reads)
    if options.redraw:
        check_writable(folder)
        print("drawing the page (a minute or two for many searches)", file=sys.stderr)
        place = RemotePath.at(folder)
        print(*write_page(folder, lambda name, text: (place / name).write(text)), sep="\n")
        return 0
    download_if_absent(folder)
    study = _finished(read_study(folder), is_partial=options.partial)
    row, fixed = study.rows[0], None
    by_study = {"num_seeded_draws": row.config.num_report_draws}
    settings = ReportSettings(**{**by_study, **overrides_of(options, ReportSettings)})
    row.evaluation.with_overrides({"heads": settings.heads or (row.config.head,)})  # are they known
    if options.draws_file:
        files, data, max_shots = options.draws_file, row.data, max(row.evaluation.shots)
        fixed = read_draws(files, data.open(), data.split, TEST_PHASE, max_shots=max_shots)
    check_writable(folder)
    progress = StudyProgress(study, folder / LOG)
    progress.say(f"reporting {folder}")
    kept = "finished parts are saved; run the same command to resume"
    try:
        with ray_cluster(options.address, progress.say) as cluster, study.locked():
            progress.say(cluster.announcement)
            lines, failed = make_report(study, cluster, progress.say, settings, fixed)
    except (OSError, WorkLostError) as error:
        raise ValueError(f"{error}; {kept}") from error
    except KeyboardInterrupt:
        progress.say(f"stopped; {kept}")
        return INTERRUPTED
    for reason in failed.values():
        progress.say(reason)
    progress.conclude(lines)
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
            f"the search of {', '.join(row.method for row in missing)} has no result yet; "
            f"resume it with: {SEARCH} --resume {study.folder} (or report the others: --partial)"
        )
    return replace(study, rows=tuple(row for row in rows if row not in missing))

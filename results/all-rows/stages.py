"""Measure some rows of the report on the test phase, and stop; a later command resumes.

    python results/all-rows/stages.py AT_ONCE ROW [ROW ...]

GPUs that are free for half an hour cannot train all rows at once. This runs
``python tune/report.py all-rows --published-seeds 1`` for the named rows only, AT_ONCE at a time.
ROW is the name of a row, NAME/SEED for one of its seeds, or "quick" or "published" for all searched
or published rows without a GAN. The parts stay in ``results/all-rows/parts``, and no page is drawn.
"""

import sys
from collections.abc import Mapping
from typing import Any

from cpaan.cli import main
from cpaan.evaluation.parts import PartKey
from cpaan.methods.registry import ROWS
from cpaan.report.page.contents import PUBLISHED
from cpaan.study import report
from cpaan.study.worker_pool import PoolJob

OPTIONS = ["all-rows", "--published-seeds", "1"]
measure_all = report.measure


def group_of(key: PartKey, job: PoolJob) -> str:
    """Return the argument that names the row of a part."""
    if ROWS[job.part.method].gan:
        return key.row
    return "published" if key.row.endswith(PUBLISHED) else "quick"


def measure(
    jobs: Mapping[PartKey, PoolJob], storage: str, at_once: int, say: Any, **options: Any
) -> None:
    """Measure the parts of the wanted rows, in the order of the arguments, and stop."""
    most, *rows = sys.argv[1:]
    wanted = {
        key: job
        for row in rows
        for key, job in jobs.items()
        if row in (key.row, f"{key.row}/{key.seed}", group_of(key, job))
    }
    if not wanted:
        raise ValueError(f"no row is called {' or '.join(rows)}")
    measure_all(wanted, storage, min(int(most), at_once), say, **options)
    raise KeyboardInterrupt  # as a user who stops the report


if __name__ == "__main__":
    report.measure = measure  # type: ignore[assignment]
    sys.orig_argv = ["python", "tune/report.py", *OPTIONS]  # the command of the parts
    sys.exit(main([*OPTIONS, "--address", "local"], command="report"))

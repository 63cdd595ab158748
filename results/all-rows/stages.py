"""Measure some rows of the report on the test phase; a later command resumes.

    python results/all-rows/stages.py jobs                        # where Ray is installed
    python results/all-rows/stages.py measure AT_ONCE ROW [ROW ...]   # where a GPU is

GPUs that are free for half an hour cannot train all rows at once, and may be without Ray. The first
command starts ``python tune/report.py all-rows --published-seeds 1``, writes the jobs of its parts
to ``results/all-rows/jobs.pickle``, and stops before the first part. It needs no GPU. The second
command records the read of the test phase in ``results/test-reads.jsonl``, and measures the named
rows, AT_ONCE trainings at a time, in the order of the arguments. Both need the same commit.

ROW is the name of a row, or NAME/SEED for one of its seeds. The parts stay in
``results/all-rows/parts``, from which ``tune/report.py`` loads them. No page is drawn.
"""

import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from cpaan.core.provenance import record_test_read
from cpaan.core.remote_paths import RemotePath
from cpaan.data.splits import TEST_PHASE, VALIDATION_PHASE
from cpaan.evaluation.executors import LocalExecutor, score_part
from cpaan.evaluation.parts import Outcome, Part, PartCache, PartJob, PartKey, run_parts
from cpaan.methods.registry import num_episodes_of
from cpaan.protocol.calibration import best_biases, calibrate
from cpaan.report.illustration import illustrate
from cpaan.study.job import NUM_THREADS, TrialJob, load_method, new_method, run_job
from cpaan.study.job import training_seconds as seconds_in_checkpoint

FOLDER = Path(__file__).resolve().parent
JOBS, PARTS = FOLDER / "jobs.pickle", FOLDER / "parts"
OPTIONS = ["all-rows", "--published-seeds", "1"]

Work = tuple[PartJob, TrialJob]
"""A part, and the training that it scores."""


def write_jobs() -> int:
    """Start the report, and write the jobs of its parts in place of measuring them."""
    from cpaan.cli import main
    from cpaan.study import report
    from cpaan.study.study import Study
    from cpaan.study.worker_pool import PoolJob

    def write(study: Study, jobs: Mapping[PartKey, PoolJob], *others: Any) -> None:
        JOBS.write_bytes(pickle.dumps({key: tuple(job) for key, job in jobs.items()}))
        sys.exit()  # the report ends before its first part

    report._measure = write  # type: ignore[assignment]
    return main([*OPTIONS, "--address", "local"], command="report")


def measure(most: int, rows: Sequence[str]) -> None:
    """Measure the parts of the named rows that are not in the cache."""
    jobs: dict[PartKey, Work] = pickle.loads(JOBS.read_bytes())  # noqa: S301  # our own file
    wanted = [key for row in rows for key in jobs if row in (key.row, f"{key.row}/{key.seed}")]
    if not wanted:
        raise ValueError(f"no row is called {' or '.join(rows)}")

    def execute(missing: Mapping[PartKey, PartJob]) -> Iterator[tuple[PartKey, Outcome]]:
        # Parts of one training follow each other in one process, and share its checkpoint.
        together: dict[str, list[Work]] = {}
        for key in missing:
            part, training = jobs[key]
            here = replace(training, storage=str(FOLDER))
            together.setdefault(training.path, []).append((part, here))
        # A process that has used a GPU cannot be forked.
        with ProcessPoolExecutor(most, mp_context=get_context("spawn")) as pool:
            running = [pool.submit(measure_together, each) for each in together.values()]
            for future in as_completed(running):
                yield from future.result()

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)  # noqa: T201

    parts = {key: jobs[key][0] for key in wanted}
    for fingerprint in {part.data.fingerprint for part in parts.values()}:
        record_test_read(fingerprint)
    run_parts(parts, execute, PartCache(RemotePath.at(PARTS)), say)


def measure_together(work: Sequence[Work]) -> list[tuple[PartKey, Outcome]]:
    """Measure parts one after the other; a part that failed has the reason."""
    outcomes: list[tuple[PartKey, Outcome]] = []
    for part, training in work:
        try:
            outcomes.append((part.key, measure_part(part, training)))
        except Exception as error:  # the other rows continue
            outcomes.append((part.key, ValueError(repr(error))))
    return outcomes


def measure_part(part: PartJob, training: TrialJob) -> Part:
    """Train unless the training is complete, then score.

    This repeats `cpaan.study.worker_pool._run`, whose module imports Ray. The commit of the parts
    is fixed, so the two cannot share code.
    """
    started, trained = time.monotonic(), 0.0
    torch.set_num_threads(NUM_THREADS)
    device, read = torch.device(part.device), LocalExecutor().read
    if num_episodes_of(part.training):
        before = seconds_in_checkpoint(training)
        for report in run_job(training, device):
            if report.problem:
                raise ValueError(report.problem)
        method = load_method(training, read(part, VALIDATION_PHASE)[0])
        trained = seconds_in_checkpoint(training)
        started += trained - before  # the checkpoint has counted them
    else:
        method = new_method(training, device)
    found = score_part(part, method, read)
    found = found._replace(scores=calibrate(found.scores, best_biases(found.validation)))
    if part.is_illustrated:
        task, queries = read(part, TEST_PHASE)
        novel = part.data.split.phase(TEST_PHASE).novel
        pictures = illustrate(part.row, method, part.seed, task, queries, novel)
        found = found._replace(spectra=pictures.spectra, projections=pictures.projections)
    run = {"seconds": time.monotonic() - started, "training_seconds": trained}
    return found._replace(run=run)


if __name__ == "__main__":
    sys.orig_argv = ["python", "tune/report.py", *OPTIONS]  # the command of the parts
    if sys.argv[1:] == ["jobs"]:
        sys.exit(write_jobs())
    if len(sys.argv) < 4 or sys.argv[1] != "measure":
        sys.exit(__doc__)
    measure(int(sys.argv[2]), sys.argv[3:])

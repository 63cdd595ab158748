"""What Tune's own loop costs: a real search, whose trials report at once and train nothing."""

import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna

from cpaan.bench.driver import new_study
from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.core.remote_paths import RemotePath
from cpaan.study.job import Evaluation, Report

HELP = "a search with 16 light trials at once: the driver's processor time, and a trial's; cpu"

NUM_AT_ONCE = 16
NUM_TRIALS = {"paper": 96, "slice": 32, "small": 4}
_SECONDS_BETWEEN_MARKS = 0.2


class _Silent:
    """A watch that only counts."""

    def __init__(self) -> None:
        self.num_shown = 0

    def say(self, message: str) -> None:
        """Ignore a line."""

    def show(self, study: optuna.Study) -> None:
        """Count."""
        self.num_shown += 1


def run_light(config: dict[str, Any]) -> None:
    """Report scores at the marks of a trial, and leave word of what its process took."""
    from cpaan.study.trial import report_to_tune, to_metrics

    trial = config["trial"]
    curve: list[Evaluation] = []
    for mark in trial.job.eval_steps:
        time.sleep(_SECONDS_BETWEEN_MARKS)
        # A score that no other trial has: some are ahead and some behind.
        score = 50.0 + (7 * trial.number) % 13 + mark / trial.job.eval_steps[-1]
        curve.append(Evaluation(mark, score, score, float(mark)))
        taken = {
            "cpu_seconds": time.process_time(),
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        word = json.dumps(taken).encode()
        (RemotePath.at(trial.job.storage) / f"light/{trial.number:04d}.json").write(word)
        report_to_tune(to_metrics(Report(tuple(curve)), trial.study))


def measure(bench: Bench) -> list[Row]:
    """Return rows of the driver and of a trial's own process.

    Raises:
        ValueError: If the device is a GPU.
    """
    # Here, because Ray takes seconds to import, and the other benchmarks do without it.
    from cpaan.study.cluster import ray_cluster
    from cpaan.study.records import OPTUNA
    from cpaan.study.search import run_trials
    from cpaan.study.searcher import enqueue_points, open_study
    from cpaan.study.upkeep import Upkeep

    if bench.device.type != "cpu":
        raise ValueError(f"Tune's loop is measured on the cpu, got {bench.device.type}")
    num_trials = NUM_TRIALS[bench.scale.name]
    with tempfile.TemporaryDirectory() as folder:
        study = new_study(Path(folder), num_trials, seed=bench.seed)
        optuna_study = open_study(study.folder / OPTUNA, study.config)
        enqueue_points(optuna_study, study.space)
        watch = _Silent()
        upkeep = Upkeep(study, optuna_study, study.records, watch.show)
        with ray_cluster(None, bench.say):
            bench.say(f"{num_trials} trials, {NUM_AT_ONCE} at once ...")
            started, cpu_before = time.monotonic(), time.process_time()
            run_trials(
                study, optuna_study, upkeep, watch, num_trials, NUM_AT_ONCE, function=run_light
            )
            seconds = time.monotonic() - started
            cpu_seconds = time.process_time() - cpu_before
        trials = optuna_study.get_trials(deepcopy=False)
        words = [json.loads(path.read_text()) for path in Path(folder).rglob("light/*.json")]
    num_reports = sum(len(trial.intermediate_values) for trial in trials)
    about = {"num_trials": num_trials, "num_at_once": NUM_AT_ONCE, "num_reports": num_reports}
    return [
        bench.row(
            "tune loop: a trial",
            summarise([1e3 * seconds / num_trials]),
            None,
            **about,
            states={s.name: sum(t.state is s for t in trials) for s in {t.state for t in trials}},
            # All threads of the driver: Tune's loop, ours, and Ray's own.
            driver_cpu_ms_of_a_trial=1e3 * cpu_seconds / num_trials,
            driver_cpu_ms_of_a_report=1e3 * cpu_seconds / num_reports,
            share_of_driver=cpu_seconds / seconds,
        ),
        bench.row(
            "tune loop: processor time of a trial's process",
            summarise([1e3 * word["cpu_seconds"] for word in words]),
            None,
            **about,
            memory_mb=statistics.median(word["memory_mb"] for word in words),
        ),
    ]

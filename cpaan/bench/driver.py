"""What a search's driver does for each trial, with many trials at once under a simulated clock."""

import io
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.bench.simulation import Simulated, simulate
from cpaan.bench.study_time import MEASURED
from cpaan.core.remote_paths import RemotePath
from cpaan.data.builtin import builtin_features
from cpaan.study.config import PRESETS, DataReference, StudyConfig
from cpaan.study.folder import Study, state_path
from cpaan.study.job import Evaluation, Report

HELP = "the driver's work for a trial with 8, 64 and 512 trials at once, which are simulated; cpu"

AT_ONCE = {"paper": (8, 64, 512), "slice": (8, 64, 512), "small": (2, 4)}
NUM_TRIALS = {"paper": 2_048, "slice": 1_024, "small": 12}
_MOST_SECONDS = 150.0
"""Of one number of trials at once; a driver that is too slow for all trials is cut off."""
_SECONDS_BETWEEN_TICKS = 1.0  # as a search shows its trials


class Stopwatch:
    """Counts seconds by what they were spent on; what is inside something else counts once."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        """Count by a clock; a busy machine disturbs that of the processor least."""
        self._clock = clock
        self._inside: list[float] = []
        self.seconds: dict[str, list[float]] = {}
        """Of each call, in their order, without what was counted inside."""
        self.total = 0.0

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Count what is done inside."""
        started = self._clock()
        self._inside.append(0.0)
        try:
            yield
        finally:
            whole = self._clock() - started
            own = whole - self._inside.pop()
            self.seconds.setdefault(name, []).append(own)
            self.total += own
            if self._inside:
                self._inside[-1] += whole


class StudyDriver:
    """The study's own objects, called as Tune calls them; only trials are made up."""

    def __init__(self, study: Study, seed: int) -> None:
        """Open the study.

        Args:
            study: With a folder that is empty.
            seed: Of the scores.
        """
        # Here, because Ray takes seconds to import, and the other benchmarks do without it.
        from cpaan.cli.watching import StudyWatch
        from cpaan.study.records import OPTUNA
        from cpaan.study.searcher import OptunaSearcher, ResumableASHA, enqueue_points, open_study
        from cpaan.study.trial import Trial, to_metrics
        from cpaan.study.upkeep import Upkeep

        config = study.config
        self.study = study
        self.marks = config.eval_steps(study.num_episodes)
        self.optuna_study = open_study(study.folder / OPTUNA, config)
        enqueue_points(self.optuna_study, study.space)
        self._watch = Stopwatch()
        self._rng = np.random.default_rng(seed)
        self._storage = RemotePath.at(study.storage)
        self._to_metrics = to_metrics
        watch = StudyWatch(config, self.marks[-1], stream=io.StringIO())
        self._now = self._told_at = self._shown_at = 0.0
        records = study.records
        self.upkeep = Upkeep(study, self.optuna_study, records, watch.show, self._clock)
        for name in ("write", "forget", "show"):
            setattr(self.upkeep, name, self._timed(name, getattr(self.upkeep, name)))

        def make_trial(number: int, settled: Any) -> Trial:
            return Trial(number, study.job(number, settled, config.seed), config)

        self._searcher = OptunaSearcher(
            self.optuna_study,
            study.space,
            config,
            make_trial,
            self.upkeep.changed,
            self.upkeep.begin_anew,
        )
        # Of any type, since Tune's controller, which it does not ask, is missing.
        self._scheduler: Any = ResumableASHA(config, self.marks, self.optuna_study)

    def _timed(self, name: str, function: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            with self._watch.on(name):
                function()

        return call

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Seconds of each call, by what was called."""
        return self._watch.seconds

    @property
    def spent(self) -> float:
        """Seconds of all calls."""
        return self._watch.total

    def begin(self, name: str) -> Any:
        """Return a trial whose scores are drawn, and leave a state as it would."""
        with self._watch.on("suggest"):
            config = self._searcher.suggest(name)
        if config is None:
            raise RuntimeError(f"nothing was proposed: {self._searcher.failure}")
        trial = SimpleNamespace(trial_id=name, config=config)
        with self._watch.on("schedule"):
            self._scheduler.on_trial_add(None, trial)
        trial.number = config["trial"].number
        trial.score = self._rng.normal(60.0, 3.0)
        trial.curve = []
        (self._storage / state_path(trial.number, self.study.config.seed)).write(b"state")
        return trial

    def report(self, trial: Any, num_marks: int, *, is_last: bool) -> bool:
        """Report a mark as Tune passes it on, and end the trial if it is stopped there.

        A function that returns is told once more what it reported last, before its end.
        """
        mark = self.marks[num_marks - 1]
        score = trial.score - 10.0 * float(np.exp(-4.0 * mark / self.marks[-1]))
        trial.curve.append(Evaluation(mark, score, score, float(mark)))
        result = self._to_metrics(Report(tuple(trial.curve)), self.study.config)
        goes_on = True
        for _ in range(2 if is_last else 1):
            with self._watch.on("schedule"):
                goes_on = self._scheduler.on_trial_result(None, trial, result) != "STOP"
            if not goes_on:
                break
            with self._watch.on("report"):
                self._searcher.on_trial_result(trial.trial_id, result)
        if is_last or not goes_on:
            with self._watch.on("schedule"):
                self._scheduler.on_trial_complete(None, trial, result)
            with self._watch.on("complete"):
                self._searcher.on_trial_complete(trial.trial_id, result)
        if self._searcher.failure is not None:
            raise self._searcher.failure
        return goes_on

    def step(self) -> None:
        """Catch up, and show every second how trials stand, as between two steps of Tune's."""
        self.upkeep.catch_up()
        if self._clock() - self._shown_at >= _SECONDS_BETWEEN_TICKS:
            self._shown_at = self._clock()
            self.upkeep.show()

    def finish(self) -> None:
        """Catch up for the last time."""
        self.upkeep.finish()

    def set_clock(self, now: float) -> None:
        """Tell the simulated time; from then on, real time goes by until it is told again."""
        self._now, self._told_at = now, time.process_time()

    def _clock(self) -> float:
        return self._now + time.process_time() - self._told_at


def new_study(folder: Path, num_trials: int, **settings: Any) -> Study:
    """Return a study of the paper's preset on the built-in features, copied to a second folder.

    On a cluster states are in a storage that all machines reach, and so is a copy of the records.
    """
    preset = PRESETS["paper"]
    training, evaluation = preset.recommended()
    table, split = builtin_features()
    return Study(
        config=StudyConfig(**{**preset.study, "num_trials": num_trials, **settings}),
        training=training,
        evaluation=evaluation,
        data=DataReference.of(table, split, None),
        num_dims=table.num_dims,
        folder=folder / "study",
        elsewhere=str(folder / "elsewhere"),
    )


def measure(bench: Bench) -> list[Row]:
    """Return rows for each number of trials at once: a whole trial, and each kind of call.

    Raises:
        ValueError: If the device is a GPU.
    """
    if bench.device.type != "cpu":
        raise ValueError(f"the driver is measured on the cpu, got {bench.device.type}")
    rows = []
    num_trials = NUM_TRIALS[bench.scale.name]
    for num_at_once in AT_ONCE[bench.scale.name]:
        name = f"driver {num_at_once} at once"
        if not bench.wants(name):
            continue
        bench.say(f"{name} ...")
        with tempfile.TemporaryDirectory() as folder:
            driver = StudyDriver(new_study(Path(folder), num_trials, seed=bench.seed), bench.seed)
            found = simulate(driver, MEASURED, driver.marks, num_trials, num_at_once, _MOST_SECONDS)
        rows += _rows(bench, name, num_at_once, num_trials, driver.seconds, found)
    return rows


def _rows(
    bench: Bench,
    name: str,
    num_at_once: int,
    num_trials: int,
    seconds: dict[str, list[float]],
    found: Simulated,
) -> list[Row]:
    share = found.busy_seconds / found.seconds
    whole = bench.row(
        f"{name}: a trial",
        summarise([1e3 * found.busy_seconds / found.num_begun]),
        None,
        num_at_once=num_at_once,
        num_trials=num_trials,
        # Fewer than all: the driver was cut off, and a whole trial takes it more than that.
        num_begun=found.num_begun,
        num_ended=found.num_ended,
        ended_at_mark=list(found.ended_at_mark),
        simulated_seconds=found.seconds,
        busy_seconds=found.busy_seconds,
        share_of_time_busy=share,
        waited_seconds_of_a_trial=found.waited_seconds / found.num_begun,
        family="driver: a trial",
        varied=["num_at_once"],
    )
    rows = [whole]
    for part, each_call in seconds.items():
        quarter = max(1, len(each_call) // 4)
        rows.append(
            bench.row(
                f"{name}: {part}",
                summarise([1e3 * value for value in each_call]),
                None,
                num_at_once=num_at_once,
                num_calls=len(each_call),
                total_seconds=sum(each_call),
                first_quarter_ms=1e3 * float(np.median(each_call[:quarter])),
                last_quarter_ms=1e3 * float(np.median(each_call[-quarter:])),
                share_of_driver=sum(each_call) / found.busy_seconds,
                family=f"driver: {part}",
                varied=["num_at_once"],
            )
        )
    return rows

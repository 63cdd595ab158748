"""The model of a study's time, and the simulation of its driver: what must hold of both."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch

from cpaan.bench.__main__ import BENCHMARKS, main
from cpaan.bench.driver import Stopwatch, StudyDriver, new_study
from cpaan.bench.measuring import Bench
from cpaan.bench.scales import SCALES
from cpaan.bench.simulation import simulate
from cpaan.bench.study_time import (
    MEASURED,
    Circumstances,
    TrialTimes,
    final_pieces,
    schedule,
    study_time,
    trial_pieces,
)
from cpaan.study.config import PRESETS, StudyConfig
from cpaan.study.records import TRIALS
from cpaan.study.searcher import best_trials

pytestmark = pytest.mark.usefixtures("builtin_cache")

PAPER = StudyConfig(**PRESETS["paper"].study)
TIMES = TrialTimes(start=10.0, episode=1.0, evaluation=5.0)
ALIKE = Circumstances(slow_share=0.0, driver_seconds=0.0)
MARKS = (1, 2, 4)


def test_pieces_go_to_whom_is_free_first():
    found = schedule([3.0, 1.0, 1.0, 2.0], num_gpus=2)

    assert (found.seconds, found.busy_seconds, found.num_used) == (4.0, 7.0, 2)


def test_a_driver_that_does_one_thing_at_a_time_is_the_limit_in_the_end():
    found = schedule([1.0] * 10, num_gpus=1_000, driver_seconds=2.0)

    assert found.seconds == 10 * 2.0 + 1.0


def test_one_gpu_takes_all_the_work_and_many_take_the_longest_chain():
    alone, many = (study_time(PAPER, count, circumstances=ALIKE) for count in (1, 10_000))

    assert math.isclose(alone.seconds, alone.busy_seconds)
    assert math.isclose(many.seconds, many.longest_chain)
    assert math.isclose(many.busy_seconds, alone.busy_seconds)


def test_of_trials_that_reach_a_rung_half_go_on():
    config = replace(PAPER, num_trials=16)
    marks = config.eval_steps(800)
    assert marks == (100, 200, 400, 800)

    found = trial_pieces(config, 800, TIMES, ALIKE, seed=0)

    ends = [10 + mark + 5 * number for number, mark in enumerate(marks, start=1)]
    assert sorted(found) == sorted([ends[0]] * 8 + [ends[1]] * 4 + [ends[2]] * 2 + [ends[3]] * 2)


def test_without_early_stopping_every_trial_is_whole():
    config = replace(PAPER, num_trials=3, early_stopping=False)

    assert trial_pieces(config, 800, TIMES, ALIKE, seed=0) == [10 + 800 + 4 * 5.0] * 3


def test_a_finalist_is_trained_with_its_other_seeds_only():
    config = replace(PAPER, num_finalists=1, num_final_seeds=3, num_final_draws=20)

    assert final_pieces(config, 800, 5, TIMES) == [10 + 800 + 20, 10 + 800 + 20, 10 + 20]


def test_gpus_that_idle_cost_as_much_as_those_that_work():
    few, many = (study_time(PAPER, count, circumstances=ALIKE) for count in (8, 512))

    kept = [ALIKE.seconds_paid(*of, kept=True) for of in ((few, 8), (many, 512))]
    handed_back = [ALIKE.seconds_paid(*of, kept=False) for of in ((few, 8), (many, 512))]
    assert kept[1] > 10 * kept[0]
    assert kept[1] > handed_back[1] > many.busy_seconds
    assert many.num_used == PAPER.num_trials


@pytest.mark.parametrize("num_trials", [40, 256])
def test_more_gpus_are_never_slower(num_trials):
    config = replace(PAPER, num_trials=num_trials)

    seconds = [study_time(config, count).seconds for count in (1, 8, 64, 512)]

    assert seconds == sorted(seconds, reverse=True)


def test_interruptions_make_everything_longer_and_none_nothing():
    never = replace(ALIKE, interruptions=0.0)
    hourly = replace(ALIKE, interruptions=1.0, machine_seconds=100.0, checkpoint_seconds=20.0)

    assert never.stretch(TIMES) == 1.0
    assert math.isclose(hourly.stretch(TIMES), 1 + (10 + 10 + 100) / 3600)


def test_a_study_needs_a_gpu():
    with pytest.raises(ValueError, match="a study needs a GPU at least, got 0"):
        study_time(PAPER, 0)


def test_the_model_is_a_table(capsys):
    assert main(["study-time", "--device", "cpu", "--only", "of 40 trials"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["name", "GPUs", "hours", "speed-up", "busy"]
    assert [line.split()[1:7] for line in lines[1:]] == [
        ["of", "40", "trials", "on", str(count), "GPUs"] for count in (1, 8, 64, 512)
    ]


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_counted_inside_is_counted_once():
    clock = Clock()
    stopwatch = Stopwatch(clock)

    with stopwatch.on("outer"):
        clock.now += 1
        with stopwatch.on("inner"):
            clock.now += 10
        clock.now += 2

    assert stopwatch.seconds == {"inner": [10.0], "outer": [3.0]}
    assert stopwatch.total == 13.0


class Costs:
    """A driver that takes as long for everything, and stops trials at the first mark if told to."""

    def __init__(self, each: float, stops: bool = False) -> None:
        self.spent = 0.0
        self.begun: list[float] = []
        self._each, self._stops = each, stops

    def begin(self, name: str) -> object:
        self.begun.append(self._now)
        self.spent += self._each
        return name

    def report(self, trial: object, num_marks: int, *, is_last: bool) -> bool:
        self.spent += self._each
        return not self._stops

    def step(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def set_clock(self, now: float) -> None:
        self._now = now


def test_trials_one_by_one_and_all_at_once():
    alone, together = (simulate(Costs(0.0), TIMES, MARKS, 5, count) for count in (1, 5))

    assert alone.seconds == 5 * TIMES.whole(MARKS)
    assert together.seconds == TIMES.whole(MARKS)
    assert alone.ended_at_mark == together.ended_at_mark == (0, 0, 5)
    assert alone.waited_seconds == together.waited_seconds == 0


def test_trials_wait_for_a_busy_driver():
    driver = Costs(100.0)

    found = simulate(driver, TIMES, MARKS, num_trials=4, num_at_once=4)

    assert driver.begun == [0.0, 100.0, 200.0, 300.0]
    assert found.busy_seconds == 4 * 4 * 100.0
    assert found.seconds == found.busy_seconds, "it never rests"
    assert found.waited_seconds > 0


def test_room_of_a_stopped_trial_is_used_at_once():
    driver = Costs(0.0, stops=True)

    found = simulate(driver, TIMES, MARKS, num_trials=3, num_at_once=1)

    assert found.ended_at_mark == (3, 0, 0)
    assert driver.begun == [0.0, 16.0, 32.0]


def test_a_driver_that_is_too_slow_is_cut_off():
    found = simulate(Costs(1.0), TIMES, MARKS, 100, num_at_once=1, most_busy_seconds=8)

    assert (found.num_ended, found.busy_seconds) == (2, 8.0)


@pytest.mark.slow
def test_the_studys_own_objects_run_it_to_its_end(tmp_path):
    study = new_study(tmp_path, num_trials=10, num_finalists=1)
    driver = StudyDriver(study, seed=0)

    found = simulate(driver, MEASURED, driver.marks, num_trials=10, num_at_once=4)

    assert found.num_ended == 10
    assert sum(found.ended_at_mark[:-1]) > 0, "some are stopped early"
    table = pd.read_parquet(study.folder / TRIALS)
    assert set(table["state"]) == {"complete", "stopped early"}
    assert table["trial"].tolist() == list(range(10))
    (best,) = best_trials(driver.optuna_study, study.config, 1)
    states = [path.name for path in (tmp_path / "elsewhere" / "trials").iterdir()]
    assert states == [f"{best.number:04d}-seed0.pt"]
    assert math.isclose(found.busy_seconds, driver.spent)


@pytest.mark.parametrize("name", ["driver", "state", "tune-loop"])
def test_the_driver_has_no_gpu(name):
    bench = Bench(torch.device("meta"), SCALES["small"], 0, lambda message: None)

    with pytest.raises(ValueError, match="measured on the cpu, got meta"):
        BENCHMARKS[name].measure(bench)

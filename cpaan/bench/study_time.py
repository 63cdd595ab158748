"""How long a study takes and what it costs on so many GPUs: a model, fed by what was measured."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpaan.bench.measuring import Bench, Row, summarise
from cpaan.methods.registry import num_episodes_of
from cpaan.study.config import PRESETS, StudyConfig

HELP = "a model of a study's time and cost on 1, 8, 64 and 512 GPUs; nothing is measured"

TITLES = {
    "num_gpus": "GPUs",
    "hours": "hours",
    "ratio": "speed-up",
    "share_of_gpus_busy": "busy",
    "gpu_hours_used": "GPU h",
    "cost_kept": "USD kept",
    "cost_handed_back": "USD back",
    "cost_spot": "USD spot",
    "hours_spot": "h spot",
}
"""Of the table. Kept: all GPUs are paid to the end; back: each is handed back when it idles."""

NUM_GPUS = (1, 8, 64, 512)
NUM_TRIALS = (40, 256, 2_048)


@dataclass(frozen=True)
class TrialTimes:
    """What a trial takes, in seconds."""

    start: float
    """Its processes and its data, before the first episode and after the last."""
    episode: float
    evaluation: float
    """At a mark."""

    def to_next_mark(self, num_episodes: int, *, is_first: bool) -> float:
        """Return the seconds of so many episodes and an evaluation, from the start on if first."""
        return self.start * is_first + self.episode * num_episodes + self.evaluation

    def whole(self, marks: Sequence[int]) -> float:
        """Return the seconds of a trial that is evaluated at these marks and ends at the last."""
        return self.start + self.episode * marks[-1] + self.evaluation * len(marks)


MEASURED = TrialTimes(start=21.8, episode=3.26e-3, evaluation=9.2)
"""On one H200, commit 1731a1b, seed 0: ``python -m cpaan.bench`` with trial, episode and evaluate,
each with ``--device cuda --scale paper``."""

DRIVER_SECONDS = 0.23
"""Of a driver for each trial: 0.13 of ours with 512 trials at once, commit ea01312, and at most 0.1
of Tune's loop, commit 1d6d0f7; ``python -m cpaan.bench`` with driver and tune-loop, seed 0."""


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What is assumed beside what was measured."""

    price: float = 7.91
    """US dollars of a GPU and hour, on demand: an eighth of an AWS p5en.48xlarge, which has eight
    H200, at 63.30 an hour. Written from memory in November 2026: to be checked by who pays."""
    spot_price: float = 3.96
    """The same where it may be taken away: half. Varies by hour and place."""
    interruptions: float = 0.05
    """Of a GPU on spot, an hour."""
    machine_seconds: float = 240.0
    """Until a machine that was asked for is ready."""
    idle_seconds: float = 300.0
    """Until one that has nothing to do is handed back: Ray's autoscaler waits five minutes."""
    checkpoint_seconds: float = 30.0
    """Between states that are kept: half of it is done again."""
    slow_share: float = 0.18
    """Of trials: those with a Ky Fan order above 10, as the search draws it first."""
    slow_times: float = 2.55
    """As long as others such episodes take: that of order 20, against 10, as measured."""
    driver_seconds: float = DRIVER_SECONDS
    """Of the driver for a trial; it does one thing at a time."""

    def seconds_paid(self, found: "StudyTime", num_gpus: int, *, kept: bool) -> float:
        """Return GPU seconds that are paid.

        Args:
            found: What a study takes.
            num_gpus: That there are.
            kept: Whether all of them are kept to the end. Otherwise those that are used are asked
                for at the beginning, and each is handed back when there is nothing left for it.
        """
        if kept:
            return num_gpus * found.seconds
        return found.busy_seconds + found.num_used * (self.machine_seconds + self.idle_seconds)

    def stretch(self, times: TrialTimes) -> float:
        """Return how much longer work takes on spot, waiting and done again, on average."""
        lost = self.checkpoint_seconds / 2 + times.start + self.machine_seconds
        return 1 + self.interruptions / 3600 * lost


@dataclass(frozen=True)
class Schedule:
    """Pieces of work, done by so many at once."""

    seconds: float
    """Until the last is done."""
    busy_seconds: float
    """Of all GPUs together."""
    num_used: int
    """GPUs that had anything to do."""


def schedule(pieces: Sequence[float], num_gpus: int, driver_seconds: float = 0.0) -> Schedule:
    """Give each piece, in turn, to the GPU that is free first.

    Args:
        pieces: Seconds of each.
        num_gpus: That work at once.
        driver_seconds: Of the one driver, before each piece.
    """
    free_at = [0.0] * min(num_gpus, len(pieces))
    driver_free_at = 0.0
    for piece in pieces:
        driver_free_at = max(driver_free_at, free_at[0]) + driver_seconds
        heapq.heapreplace(free_at, driver_free_at + piece)
    return Schedule(max(free_at), sum(pieces), len(free_at))


def trial_pieces(
    config: StudyConfig,
    num_episodes: int,
    times: TrialTimes,
    circumstances: Circumstances,
    seed: int,
) -> list[float]:
    """Return the seconds of each trial of a search, in an order that is drawn.

    Of those that reach a rung, one of ``reduction_factor`` goes on; slow ones are as often among
    them as among all.
    """
    marks = config.eval_steps(num_episodes)
    num_rungs = len(marks) - 1 if config.early_stopping and not config.pareto else 0
    rng = np.random.default_rng(seed)
    place = rng.permutation(config.num_trials) / config.num_trials
    is_slow = rng.permutation(config.num_trials) < circumstances.slow_share * config.num_trials
    pieces = []
    for number in range(config.num_trials):
        passed = 0
        while passed < num_rungs and place[number] < config.reduction_factor ** -(passed + 1.0):
            passed += 1
        last = passed if num_rungs else len(marks) - 1
        slower = circumstances.slow_times if is_slow[number] else 1.0
        own = TrialTimes(times.start, times.episode * slower, times.evaluation)
        pieces.append(own.whole(marks[: last + 1]))
    return pieces


def final_pieces(
    config: StudyConfig, num_episodes: int, num_draws: int, times: TrialTimes
) -> list[float]:
    """Return the seconds of each score of a finalist: one of its seeds is trained already."""
    evaluation = times.start + times.evaluation * config.num_final_draws / num_draws
    training = times.episode * num_episodes
    pieces = []
    for _ in range(min(config.num_finalists, config.num_trials)):
        pieces += [evaluation] + [evaluation + training] * (config.num_final_seeds - 1)
    # The long ones first, so that the short ones fill what is left.
    return sorted(pieces, reverse=True)


@dataclass(frozen=True)
class StudyTime:
    """What a study takes."""

    seconds: float
    busy_seconds: float
    num_used: int
    """GPUs that had anything to do."""
    longest_chain: float
    """Seconds that no number of GPUs makes fewer: the longest trial, then the longest score."""


def study_time(
    config: StudyConfig,
    num_gpus: int,
    *,
    times: TrialTimes = MEASURED,
    circumstances: Circumstances | None = None,
    stretch: float = 1.0,
    seed: int = 0,
) -> StudyTime:
    """Return the time of a study of the paper's preset: its trials, and then its finalists.

    Args:
        config: The study; every trial has one worker with one GPU.
        num_gpus: That work at once.
        times: What a trial takes.
        circumstances: What is assumed.
        stretch: How much longer everything takes.
        seed: Of the order of trials.

    Raises:
        ValueError: If there is no GPU.
    """
    if num_gpus < 1:
        raise ValueError(f"a study needs a GPU at least, got {num_gpus}")
    circumstances = circumstances or Circumstances()
    training, evaluation = PRESETS["paper"].recommended()
    num_episodes = num_episodes_of(training)
    trials = trial_pieces(config, num_episodes, times, circumstances, seed)
    finals = final_pieces(config, num_episodes, evaluation.num_draws, times)
    parts = [
        schedule([piece * stretch for piece in pieces], num_gpus, circumstances.driver_seconds)
        for pieces in (trials, finals)
    ]
    return StudyTime(
        seconds=sum(part.seconds for part in parts),
        busy_seconds=sum(part.busy_seconds for part in parts),
        num_used=max(part.num_used for part in parts),
        longest_chain=stretch * (max(trials) + max(finals)),
    )


def measure(bench: Bench) -> list[Row]:
    """Return a row for each number of trials and of GPUs."""
    circumstances = Circumstances()
    stretch = circumstances.stretch(MEASURED)
    price, spot_price = circumstances.price / 3600, circumstances.spot_price / 3600  # of a second
    rows = []
    for num_trials in NUM_TRIALS:
        config = StudyConfig(**{**PRESETS["paper"].study, "num_trials": num_trials})
        exhaustive = config.with_overrides({"early_stopping": False})
        alone = study_time(config, 1, seed=bench.seed)
        for num_gpus in NUM_GPUS:
            name = f"study of {num_trials} trials on {num_gpus} GPUs"
            if not bench.wants(name):
                continue
            found = study_time(config, num_gpus, seed=bench.seed)
            spot = study_time(config, num_gpus, stretch=stretch, seed=bench.seed)
            rows.append(
                bench.row(
                    name,
                    summarise([1e3 * found.seconds]),
                    summarise([1e3 * alone.seconds]),
                    floor_ms=1e3 * max(found.longest_chain, alone.busy_seconds / num_gpus),
                    is_model=True,
                    num_trials=num_trials,
                    num_gpus=num_gpus,
                    hours=found.seconds / 3600,
                    share_of_gpus_busy=found.busy_seconds / (num_gpus * found.seconds),
                    gpu_hours_used=found.busy_seconds / 3600,
                    cost_kept=price * circumstances.seconds_paid(found, num_gpus, kept=True),
                    cost_handed_back=price
                    * circumstances.seconds_paid(found, num_gpus, kept=False),
                    cost_spot=spot_price * circumstances.seconds_paid(spot, num_gpus, kept=False),
                    hours_spot=spot.seconds / 3600,
                    work_without_early_stopping=study_time(exhaustive, 1).busy_seconds
                    / alone.busy_seconds,
                    circumstances=vars(circumstances),
                    times=vars(MEASURED),
                )
            )
    return rows

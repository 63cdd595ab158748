"""Trials as an event queue by a simulated clock, and the one driver that all of them meet."""

import heapq
from dataclasses import dataclass, field
from typing import Any, Protocol

from cpaan.bench.study_time import TrialTimes


class Drives(Protocol):
    """What the simulation needs of a driver."""

    def begin(self, name: str) -> Any:
        """Return a trial."""

    def report(self, trial: Any, num_marks: int, *, is_last: bool) -> bool:
        """Take what a trial reports at a mark; return whether it goes on."""

    def step(self) -> None:
        """Do what is done after every event."""

    def finish(self) -> None:
        """Do what is left at the end."""

    def set_clock(self, now: float) -> None:
        """Tell the time before an event."""

    @property
    def spent(self) -> float:
        """Seconds that the driver has worked."""


@dataclass(frozen=True)
class Simulated:
    """What came of a simulation."""

    seconds: float
    """From the first proposal to the last end, by the simulated clock."""
    busy_seconds: float
    """Of the driver."""
    waited_seconds: float
    """Of all trials together, for a driver that was busy with others."""
    num_begun: int
    ended_at_mark: tuple[int, ...]
    """Trials that ended at each mark."""

    @property
    def num_ended(self) -> int:
        """Trials that ended."""
        return sum(self.ended_at_mark)


@dataclass(order=True)
class _Event:
    """A trial that has reached a mark, or room for a new one."""

    at: float
    order: int
    trial: Any = field(default=None, compare=False)
    num_marks: int = field(default=0, compare=False)


def simulate(
    driver: Drives,
    times: TrialTimes,
    marks: tuple[int, ...],
    num_trials: int,
    num_at_once: int,
    most_busy_seconds: float = float("inf"),
) -> Simulated:
    """Let trials run by a simulated clock, on which the driver's work takes what it really took.

    The driver does one thing at a time. A trial waits at a mark until it is told to go on, as one
    of Tune's does, and what it had is free when it has ended.

    Args:
        driver: Who proposes and decides.
        times: What a trial takes.
        marks: Numbers of episodes after which a trial reports.
        num_trials: In all.
        num_at_once: At a time.
        most_busy_seconds: Of the driver, after which nothing more is done.
    """
    events = [_Event(0.0, order) for order in range(num_at_once)]
    order = num_at_once
    ended = [0] * len(marks)
    num_begun, free_at, waited = 0, 0.0, 0.0
    while events and driver.spent < most_busy_seconds:
        event = heapq.heappop(events)
        if event.trial is None and num_begun == num_trials:
            continue
        begun = max(event.at, free_at)
        waited += begun - event.at
        spent = driver.spent
        driver.set_clock(begun)
        trial, num_marks = event.trial, event.num_marks
        if trial is None:
            trial, goes_on = driver.begin(str(num_begun)), True
            num_begun += 1
        else:
            is_last = num_marks == len(marks)
            goes_on = driver.report(trial, num_marks, is_last=is_last) and not is_last
        driver.step()
        free_at = begun + driver.spent - spent
        if goes_on:
            earlier = marks[num_marks - 1] if num_marks else 0
            takes = times.to_next_mark(marks[num_marks] - earlier, is_first=num_marks == 0)
            following = _Event(free_at + takes, order, trial, num_marks + 1)
        else:
            ended[num_marks - 1] += 1
            following = _Event(free_at, order)
        heapq.heappush(events, following)
        order += 1
    spent = driver.spent
    driver.finish()
    free_at += driver.spent - spent
    return Simulated(free_at, driver.spent, waited, num_begun, tuple(ended))

"""Progress of a study: a live table in a terminal, otherwise one line for each trial."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from optuna.trial import FrozenTrial, TrialState

from cpaan.study.job import ALL_TOP5, EPISODE, NOVEL_TOP5
from cpaan.study.records import STATES
from cpaan.study.searcher import RowSearch
from cpaan.study.study import Study, StudyRow
from cpaan.study.trial import CURVE

_MOST_LINES = 15


class _ShownTrial(NamedTuple):
    row: StudyRow
    trial: FrozenTrial

    @property
    def key(self) -> tuple[str, int]:
        return self.row.method, self.trial.number

    @property
    def is_running(self) -> bool:
        return self.trial.state is TrialState.RUNNING

    @property
    def score(self) -> float | None:
        curve = self.trial.user_attrs.get(CURVE)
        return self.row.config.score(curve[-1][NOVEL_TOP5], curve[-1][ALL_TOP5]) if curve else None


class StudyProgress:
    """Prints lines about a study, and shows its trials."""

    def __init__(self, study: Study, log: Path | None = None, stream: TextIO | None = None) -> None:
        """Start the clock.

        Args:
            study: The study.
            log: A file to which every line is appended.
            stream: Where lines are printed; by default the error stream.
        """
        self._rows, self._log = study.rows, log
        self._num_trials = sum(row.config.num_trials for row in study.rows)
        self._given_stream = stream
        self._is_live = self._stream.isatty()
        self._clock_start = time.monotonic()
        self._started: dict[tuple[str, int], float] = {}
        self._durations: list[float] = []
        self._most_at_once = 1
        self._known_ends: set[tuple[str, int]] | None = None
        self._num_drawn = 0

    @property
    def _stream(self) -> TextIO:
        # Not an attribute: Ray Tune pickles its callbacks, and a stream cannot be pickled.
        return self._given_stream or sys.stderr

    def say(self, message: str) -> None:
        """Print a line with the time since the start."""
        line = f"[{time.monotonic() - self._clock_start:6.1f} s] {message}"
        self._erase()
        print(line, file=self._stream, flush=True)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a") as file:
                file.write(line + "\n")

    def show(self, searches: Sequence[RowSearch]) -> None:
        """Print a line for each trial that has ended; in a terminal, redraw the table."""
        now = time.monotonic()
        trials = [
            _ShownTrial(search.row, trial)
            for search in searches
            for trial in search.trials.get_trials(deepcopy=False)
            if trial.state in STATES
        ]
        running = [each for each in trials if each.is_running]
        for each in running:
            self._started.setdefault(each.key, now)
        self._most_at_once = max(self._most_at_once, len(running))
        ended = [each for each in trials if not each.is_running]
        if self._known_ends is None:  # trials of an earlier run are not news
            self._known_ends = {each.key for each in ended}
        for each in ended:
            if each.key not in self._known_ends:
                self._durations.append(now - self._started.pop(each.key, now))
                self._known_ends.add(each.key)
                self.say(f"{self._describe(each)}; {self._summary(trials)}")
        if self._is_live:
            self._erase()
            lines = self._table(trials)
            print("\n".join(lines), file=self._stream, flush=True)
            self._num_drawn = len(lines)

    def _table(self, trials: Sequence[_ShownTrial]) -> list[str]:
        """Return the lines of the live table: running trials, then the best."""
        in_order = sorted(
            trials,
            key=lambda each: (
                each.is_running,
                each.trial.state is TrialState.COMPLETE,
                each.score or 0.0,
            ),
            reverse=True,
        )
        lines = ["", f"{'trial':<16}{'state':<15}{'episode':<17}{'score':<8}{'LSL':<8}{'GLSL':<8}"]
        for each in in_order[:_MOST_LINES]:
            curve = each.trial.user_attrs.get(CURVE) or [{EPISODE: 0}]
            state = "running" if each.is_running else STATES[each.trial.state]
            episode = f"{curve[-1][EPISODE]} of {each.row.num_episodes}"
            line = f"{self._name(each):<16}{state:<15}{episode:<17}"
            if each.score is not None:
                line += (
                    f"{each.score:<8.2f}{curve[-1][NOVEL_TOP5]:<8.2f}{curve[-1][ALL_TOP5]:<8.2f}"
                )
            lines.append(line.rstrip())
        return [*lines, self._summary(trials)]

    def _name(self, each: _ShownTrial) -> str:
        number = str(each.trial.number)
        return number if len(self._rows) == 1 else f"{each.row.method} {number}"

    def _describe(self, each: _ShownTrial) -> str:
        text = f"trial {self._name(each)} {STATES[each.trial.state]}"
        if each.trial.user_attrs.get("problem"):
            return f"{text}: {each.trial.user_attrs['problem']}"
        episode = each.trial.user_attrs[CURVE][-1][EPISODE]
        return f"{text}: score {each.score:.2f} after {episode} episodes"

    def _summary(self, trials: Sequence[_ShownTrial]) -> str:
        num_ended = sum(not each.is_running for each in trials)
        complete = [each for each in trials if each.trial.state is TrialState.COMPLETE]
        text = f"{num_ended} of {self._num_trials} ended"
        if complete:
            best = max(complete, key=lambda each: each.score or 0.0)
            text += f", best {best.score:.2f} (trial {self._name(best)})"
        left = self._seconds_left(num_ended)
        if left is not None:
            text += f", about {left:.0f} s left for trials"
        return text

    def _seconds_left(self, num_ended: int) -> float | None:
        """Estimate the time from trials that ended during this run; None before the first."""
        num_left = self._num_trials - num_ended
        if not self._durations or num_left <= 0:
            return None
        each = sum(self._durations) / len(self._durations)
        now = time.monotonic()
        # A trial that takes longer than the others is expected to take a tenth more.
        running = [max(each - (now - start), each / 10) for start in self._started.values()]
        work = sum(running) + each * max(0, num_left - len(running))
        return work / min(self._most_at_once, num_left)

    def _erase(self) -> None:
        """Remove the table from the screen, so that the next output takes its place."""
        if self._num_drawn:
            print(f"\x1b[{self._num_drawn}A\x1b[J", end="", file=self._stream)
            self._num_drawn = 0

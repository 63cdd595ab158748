"""A study as one watches it: a live table in a terminal, a line for each trial elsewhere."""

import sys
import time
from pathlib import Path
from typing import TextIO

import optuna
from optuna.trial import FrozenTrial, TrialState

from cpaan.study.config import StudyConfig
from cpaan.study.records import STATES
from cpaan.study.trial import ALL_TOP5, CURVE, EPISODE, NOVEL_TOP5

_MOST_ROWS = 15


class StudyWatch:
    """Says what is being done, and shows how trials stand."""

    def __init__(
        self,
        config: StudyConfig,
        num_episodes: int,
        log: Path | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """Watch from now on.

        Args:
            config: The study's settings.
            num_episodes: Of a trial that is not stopped.
            log: A file that gets every line too.
            stream: Where to; by default the error stream.
        """
        self._config, self._num_episodes, self._log = config, num_episodes, log
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty()
        self._started = time.monotonic()
        self._begun: dict[int, float] = {}
        self._durations: dict[int, float] = {}
        self._most_at_once = 1
        self._known_ends: set[int] | None = None
        self._num_drawn = 0

    def say(self, message: str) -> None:
        """Print a line with the time since the start."""
        line = f"[{time.monotonic() - self._started:6.1f} s] {message}"
        self._erase()
        print(line, file=self._stream, flush=True)
        if self._log is not None:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("a") as file:
                file.write(line + "\n")

    def show(self, study: optuna.Study) -> None:
        """Say which trials ended; in a terminal, draw the table anew."""
        now = time.monotonic()
        trials = [t for t in study.get_trials(deepcopy=False) if t.state in STATES]
        for trial in trials:
            if trial.state is TrialState.RUNNING:
                self._begun.setdefault(trial.number, now)
        ended = {t.number for t in trials if t.state is not TrialState.RUNNING}
        self._most_at_once = max(self._most_at_once, len(trials) - len(ended))
        if self._known_ends is None:  # what an earlier run has done is no news
            self._known_ends = set(ended)
        news = ended - self._known_ends
        for trial in trials:
            if trial.number in news:
                self._durations[trial.number] = now - self._begun.pop(trial.number, now)
                self._known_ends.add(trial.number)
                self.say(f"{self._describe(trial)}; {self._summary(trials)}")
        if self._is_live:
            self._erase()
            lines = self.table(trials)
            print("\n".join(lines), file=self._stream, flush=True)
            self._num_drawn = len(lines)

    def table(self, trials: list[FrozenTrial]) -> list[str]:
        """Return the lines of the live table: what runs, and the best so far."""
        running = [t for t in trials if t.state is TrialState.RUNNING]
        others = sorted(
            (t for t in trials if t.state is not TrialState.RUNNING),
            key=lambda trial: (trial.state is TrialState.COMPLETE, self._score(trial) or 0.0),
            reverse=True,
        )
        lines = ["", f"{'trial':<7}{'state':<15}{'episode':<17}{'score':<8}{'LSL':<8}{'GLSL':<8}"]
        for trial in [*running, *others][:_MOST_ROWS]:
            curve = trial.user_attrs.get(CURVE) or [{EPISODE: 0}]
            last, score = curve[-1], self._score(trial)
            state = "running" if trial.state is TrialState.RUNNING else STATES[trial.state]
            row = f"{trial.number:<7}{state:<15}{f'{last[EPISODE]} of {self._num_episodes}':<17}"
            if score is not None:
                row += f"{score:<8.2f}{last[NOVEL_TOP5]:<8.2f}{last[ALL_TOP5]:<8.2f}"
            lines.append(row.rstrip())
        return [*lines, self._summary(trials)]

    def _describe(self, trial: FrozenTrial) -> str:
        text = f"trial {trial.number} {STATES[trial.state]}"
        if trial.user_attrs.get("problem"):
            return f"{text}: {trial.user_attrs['problem']}"
        episode = trial.user_attrs[CURVE][-1][EPISODE]
        return f"{text}: score {self._score(trial):.2f} after {episode} episodes"

    def _summary(self, trials: list[FrozenTrial]) -> str:
        ended = [t for t in trials if t.state is not TrialState.RUNNING]
        complete = [t for t in ended if t.state is TrialState.COMPLETE]
        text = f"{len(ended)} of {self._config.num_trials} ended"
        if complete:
            best = max(complete, key=lambda trial: self._score(trial) or 0.0)
            text += f", best {self._score(best):.2f} (trial {best.number})"
        left = self._seconds_left(len(ended))
        if left is not None:
            text += f", about {left:.0f} s left for trials"
        return text

    def _seconds_left(self, num_ended: int) -> float | None:
        """Return an estimate from trials that ended while we looked; None before the first."""
        num_left = self._config.num_trials - num_ended
        if not self._durations or num_left <= 0:
            return None
        each = sum(self._durations.values()) / len(self._durations)
        now = time.monotonic()
        # What runs is at least as far as its time; what takes longer than others has some more.
        running = [max(each - (now - begun), each / 10) for begun in self._begun.values()]
        work = sum(running) + each * max(0, num_left - len(running))
        return work / min(self._most_at_once, num_left)

    def _score(self, trial: FrozenTrial) -> float | None:
        curve = trial.user_attrs.get(CURVE)
        return self._config.score(curve[-1][NOVEL_TOP5], curve[-1][ALL_TOP5]) if curve else None

    def _erase(self) -> None:
        """Remove the table from the screen: what follows takes its place."""
        if self._num_drawn:
            print(f"\x1b[{self._num_drawn}A\x1b[J", end="", file=self._stream)
            self._num_drawn = 0

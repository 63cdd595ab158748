"""Progress of a study: a line for every evaluation and every end of a trial."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from cpaan.cli.command import new_progress
from cpaan.data.table import counted
from cpaan.study.records import STATES, trial_table
from cpaan.study.searcher import RowSearch
from cpaan.study.study import Study

_COMPLETE, _RUNNING = STATES[TrialState.COMPLETE], STATES[TrialState.RUNNING]


class StudyProgress:
    """Prints lines about a study to the error stream, and appends them to a log."""

    def __init__(self, study: Study, log: Path) -> None:
        self._log, self._print = log, new_progress(log)
        self._is_only_row = len(study.rows) == 1
        self._num_trials = sum(row.config.num_trials for row in study.rows)
        self._shown: set[str] | None = None
        self._most_at_once = 1

    def say(self, message: str) -> None:
        """Print a line with the time since the start."""
        self._print(message)

    def conclude(self, lines: Sequence[str]) -> None:
        """Print the last lines of a command to the output stream, and append them to the log."""
        with self._log.open("a") as file:
            for line in lines:
                print(line)
                file.write(f"{line}\n")

    def show(self, searches: Sequence[RowSearch]) -> None:
        """Print a line for every trial that was evaluated or has ended since the last call."""
        trials = {
            f"{self._prefix(search)}{trial['trial']}": trial
            for search in searches
            for trial in trial_table(search.trials, search.row.config).to_dict("records")
        }
        ended = {name: trial for name, trial in trials.items() if trial["state"] != _RUNNING}
        self._most_at_once = max(self._most_at_once, len(trials) - len(ended))
        lines = {
            _describe(name, trial): name in ended
            for name, trial in trials.items()
            if name in ended or not math.isnan(trial["score"])
        }
        if self._shown is None:  # trials of an earlier run are not news
            self._shown = set(lines)
        for line, has_ended in lines.items():
            if line not in self._shown:
                self.say(f"{line}; {self._summary(ended)}" if has_ended else line)
        self._shown |= set(lines)

    def _prefix(self, search: RowSearch) -> str:
        return "" if self._is_only_row else f"{search.row.method} "

    def _summary(self, ended: dict[str, Any]) -> str:
        num_left = self._num_trials - len(ended)
        text = f"{len(ended)} of {self._num_trials} trials ended"
        complete = {name: trial for name, trial in ended.items() if trial["state"] == _COMPLETE}
        scores = {name: trial["score"] for name, trial in complete.items()}
        if scores:
            best = max(scores, key=lambda name: scores[name])
            text += f", best {scores[best]:.2f} (trial {best})"
        if num_left > 0:
            seconds = statistics.median(trial["seconds"] for trial in ended.values())
            left = seconds * num_left / min(self._most_at_once, num_left)
            text += f", about {left:.0f} s left for the other trials"
        return text


def _describe(name: str, trial: dict[Any, Any]) -> str:
    state = {_RUNNING: "evaluated", _COMPLETE: "finished"}.get(trial["state"], trial["state"])
    if isinstance(trial["problem"], str):  # pandas has NaN for None beside texts
        return f"trial {name} {state}: {trial['problem']}"
    cost = f"{counted(trial['episodes'], 'episode')}, {trial['seconds']:.0f} s"
    return f"trial {name} {state}: score {trial['score']:.2f} ({cost})"

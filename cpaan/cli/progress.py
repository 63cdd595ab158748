"""Progress of a study: a line for each evaluation and each end of a trial."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from optuna.trial import FrozenTrial, TrialState

from cpaan.cli.command import new_progress
from cpaan.study.records import STATES
from cpaan.study.searcher import RowSearch
from cpaan.study.study import Study
from cpaan.study.trial import ALL_TOP5, CURVE, EPISODE, NOVEL_TOP5, PROBLEM


class _EvaluatedTrial(NamedTuple):
    name: str
    trial: FrozenTrial
    score: float
    line: str

    @property
    def is_running(self) -> bool:
        return self.trial.state is TrialState.RUNNING


def _last_evaluation(search: RowSearch, trial: FrozenTrial, *, is_only: bool) -> _EvaluatedTrial:
    name = str(trial.number) if is_only else f"{search.row.method} {trial.number}"
    state = "evaluated" if trial.state is TrialState.RUNNING else STATES[trial.state]
    if problem := trial.user_attrs.get(PROBLEM):
        return _EvaluatedTrial(name, trial, 0.0, f"trial {name} {state}: {problem}")
    last = trial.user_attrs[CURVE][-1]
    score = search.row.config.score(last[NOVEL_TOP5], last[ALL_TOP5])
    line = f"trial {name} {state}: score {score:.2f} after {last[EPISODE]} episodes"
    return _EvaluatedTrial(name, trial, score, line)


class StudyProgress:
    """Prints lines about a study to the error stream, and appends them to a log."""

    def __init__(self, study: Study, log: Path) -> None:
        self._print, self._is_only_row = new_progress(log), len(study.rows) == 1
        self._num_trials = sum(row.config.num_trials for row in study.rows)
        self._shown: set[str] | None = None
        self._most_at_once = 1

    def say(self, message: str) -> None:
        """Print a line with the time since the start."""
        self._print(message)

    def show(self, searches: Sequence[RowSearch]) -> None:
        """Print a line for each trial that was evaluated or has ended since the last call."""
        trials = [
            _last_evaluation(search, trial, is_only=self._is_only_row)
            for search in searches
            for trial in search.trials.get_trials(deepcopy=False)
            if trial.state in STATES and (trial.user_attrs.get(CURVE) or trial.state.is_finished())
        ]
        self._most_at_once = max(self._most_at_once, sum(each.is_running for each in trials))
        if self._shown is None:  # trials of an earlier run are not news
            self._shown = {each.line for each in trials}
        for each in trials:
            if each.line not in self._shown:
                self._shown.add(each.line)
                self.say(each.line if each.is_running else f"{each.line}; {self._summary(trials)}")

    def _summary(self, trials: Sequence[_EvaluatedTrial]) -> str:
        ended = [each for each in trials if not each.is_running]
        complete = [each for each in ended if each.trial.state is TrialState.COMPLETE]
        text, num_left = f"{len(ended)} of {self._num_trials} ended", self._num_trials - len(ended)
        if complete:
            best = max(complete, key=lambda each: each.score)
            text += f", best {best.score:.2f} (trial {best.name})"
        durations = [each.trial.duration.total_seconds() for each in ended if each.trial.duration]
        if durations and num_left > 0:
            left = statistics.median(durations) * num_left / min(self._most_at_once, num_left)
            text += f", about {left:.0f} s left for trials"
        return text

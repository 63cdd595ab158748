"""What a study shows of its trials."""

import io
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from cpaan.cli import progress
from cpaan.cli.progress import StudyProgress
from helpers.studies import new_study


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Shown:
    """A study of one row whose trials are made by hand."""

    def __init__(self, stream: io.StringIO, num_trials: int = 4) -> None:
        self.stream, study = stream, new_study(Path("study"), num_trials=num_trials)
        self.trials = optuna.create_study(direction="maximize")
        self.search = SimpleNamespace(row=study.rows[0], trials=self.trials)
        self.progress = StudyProgress(study, stream=stream)

    def add(self, state: TrialState, *scores: float, problem: str | None = None) -> None:
        curve = [
            {"episode": 100 * step, "novel_top5": score, "all_top5": score, "seconds": 1.0}
            for step, score in enumerate(scores, start=1)
        ]
        value = scores[-1] if state is TrialState.COMPLETE else None
        attributes = {"curve": curve, "problem": problem}
        self.trials.add_trial(create_trial(state=state, value=value, user_attrs=attributes))

    def show(self) -> str:
        self.progress.show([self.search])
        return self.stream.getvalue()


def test_outside_a_terminal_every_ended_trial_is_a_line():
    shown = Shown(io.StringIO())
    shown.add(TrialState.COMPLETE, 50, 60)
    assert shown.show() == "", "trials of an earlier run are not news"

    shown.add(TrialState.PRUNED, 40)
    shown.add(TrialState.FAIL, problem="it diverged")
    shown.add(TrialState.COMPLETE, 50, 70)
    shown.show()

    lines = [line.partition("] ")[2] for line in shown.show().splitlines()]
    summary = "4 of 4 ended, best 70.00 (trial 3)"
    assert lines == [
        f"trial 1 stopped early: score 40.00 after 100 episodes; {summary}",
        f"trial 2 failed: it diverged; {summary}",
        f"trial 3 complete: score 70.00 after 200 episodes; {summary}",
    ]


def test_a_terminal_has_a_table_that_is_drawn_in_place():
    shown = Shown(Terminal())
    shown.add(TrialState.COMPLETE, 50, 60)
    shown.add(TrialState.RUNNING, 40)

    first = shown.show()

    rows = [line.split() for line in first.splitlines()]
    assert rows[2] == ["1", "running", "100", "of", "200", "40.00", "40.00", "40.00"]
    assert rows[3] == ["0", "complete", "200", "of", "200", "60.00", "60.00", "60.00"]
    assert shown.show() == f"{first}\x1b[{len(rows)}A\x1b[J{first}"


def test_the_time_left_is_estimated_from_ended_trials(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = Shown(io.StringIO(), num_trials=6)
    for _ in range(2):
        shown.add(TrialState.RUNNING, 40)
    shown.show()
    now = 30.0
    shown.trials.tell(0, 50.0)
    shown.add(TrialState.RUNNING)

    # Trial 1 is as old as trial 0 was: a tenth of its time. Four more of 30 s. Two at a time.
    assert "about 62 s left" in shown.show()


def test_lines_are_also_in_the_log():
    study = new_study(Path("study"))

    StudyProgress(study, Path("results/x/study.log"), io.StringIO()).say("starting")

    assert Path("results/x/study.log").read_text().endswith("] starting\n")

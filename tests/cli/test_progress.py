"""Test the progress lines of a study."""

from pathlib import Path
from types import SimpleNamespace

import optuna
from optuna.trial import TrialState, create_trial

from cpaan.cli.progress import StudyProgress
from helpers.studies import new_study


class Shown:
    """A study of one row with trials that the test adds."""

    def __init__(self, num_trials: int) -> None:
        study = new_study(Path("study"), num_trials=num_trials)
        self.trials = optuna.create_study(direction="maximize")
        self.search = SimpleNamespace(row=study.rows[0], trials=self.trials)
        self.progress = StudyProgress(study, Path("results/x/study.log"))

    def add(self, state: TrialState, *scores: float, problem: str | None = None) -> None:
        curve = [
            {"episode": 100 * step, "novel_top5": score, "all_top5": score, "seconds": 30.0}
            for step, score in enumerate(scores, start=1)
        ]
        value = scores[-1] if state is TrialState.COMPLETE else None
        attributes = {"curve": curve, "problem": problem}
        self.trials.add_trial(create_trial(state=state, value=value, user_attrs=attributes))

    def show(self) -> list[str]:
        """Return all lines so far, without their timestamps."""
        self.progress.show([self.search])
        log = Path("results/x/study.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.partition("] ")[2] for line in lines]


def test_evaluations_and_ends_are_lines_of_the_error_stream_and_of_the_log(capsys):
    shown = Shown(num_trials=5)
    shown.add(TrialState.COMPLETE, 50, 60)
    assert shown.show() == [], "trials of an earlier run are not news"

    shown.add(TrialState.PRUNED, 40)
    shown.add(TrialState.FAIL, problem="it diverged")
    shown.add(TrialState.COMPLETE, 50, 70)
    shown.add(TrialState.RUNNING)
    shown.add(TrialState.RUNNING, 30)
    shown.show()

    summary = "4 of 5 ended, best 70.00 (trial 3), about 30 s left for trials"
    assert shown.show() == [
        f"trial 1 stopped early: score 40.00 after 100 episodes; {summary}",
        f"trial 2 failed: it diverged; {summary}",
        f"trial 3 complete: score 70.00 after 200 episodes; {summary}",
        "trial 5 evaluated: score 30.00 after 100 episodes",
    ]
    assert capsys.readouterr().err.endswith(Path("results/x/study.log").read_text())


def test_the_time_left_is_estimated_from_ended_trials():
    shown = Shown(num_trials=6)
    shown.show()
    shown.add(TrialState.COMPLETE, 50)
    for _ in range(2):
        shown.add(TrialState.RUNNING, 40)

    # Five trials of 30 s, two at a time.
    assert "about 75 s left" in shown.show()[0]

"""Test the progress lines of a study."""

from pathlib import Path

import pytest

from cpaan.cli.progress import StudyProgress
from helpers.studies import HandRunSearch

LOG = Path("results/x/study.log")

pytestmark = pytest.mark.usefixtures("quick_disk")


def show(progress: StudyProgress, trials: HandRunSearch) -> list[str]:
    """Return all lines so far, without their timestamps."""
    progress.show([trials.search])
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return [line.partition("] ")[2] for line in lines]


def test_evaluations_and_ends_are_lines_of_the_error_stream_and_of_the_log(capsys):
    trials = HandRunSearch(Path("study"), num_trials=6)
    progress = StudyProgress(trials.study, LOG)
    trials.run("earlier", 50, 55, 60)
    assert show(progress, trials) == [], "trials of an earlier run are not news"

    trials.run("stopped", 40)
    trials.suggest("failed")
    trials.end("failed", problem="it diverged")
    trials.run("finished", 50, 60, 70)
    trials.suggest("new")
    trials.suggest("evaluated")
    trials.report("evaluated", 30)
    show(progress, trials)

    summary = "4 of 6 trials ended, best 70.00 (trial 3), about 20 s left for the other trials"
    assert show(progress, trials) == [
        f"trial 1 stopped early: score 40.00 (50 episodes, 10 s); {summary}",
        f"trial 2 failed: it diverged; {summary}",
        f"trial 3 finished: score 70.00 (200 episodes, 30 s); {summary}",
        "trial 5 evaluated: score 30.00 (50 episodes, 10 s)",
    ]
    assert capsys.readouterr().err.endswith(LOG.read_text())


def test_the_time_left_is_estimated_from_ended_trials():
    trials = HandRunSearch(Path("study"), num_trials=6)
    progress = StudyProgress(trials.study, LOG)
    show(progress, trials)
    trials.run("finished", 40, 45, 50)
    for name in "ab":
        trials.suggest(name)

    # Five trials of 30 s, two at a time.
    assert "about 75 s left" in show(progress, trials)[0]

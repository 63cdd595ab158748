"""Test the common training loop: it evaluates, reports, saves, and resumes bit by bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cpaan.core.files import pack_state, unpack_state
from cpaan.training import drive as drive_module
from cpaan.training.drive import Checkpoint, Stretch, drive, train_to_end
from helpers.learners import Plane, new_run, weights


@pytest.fixture
def step_by_step(monkeypatch):
    """Train one episode at a time, and save a checkpoint after it."""
    monkeypatch.setattr(drive_module, "_MOST_STEPS_AT_ONCE", 1)
    monkeypatch.setattr(drive_module, "_SECONDS_BETWEEN_CHECKPOINTS", 0.0)


def test_a_run_is_evaluated_at_its_steps_and_yields_there_and_at_the_end(step_by_step):
    driven, plain, evaluated = new_run(), new_run(), []

    def evaluate(stretch: Stretch) -> None:
        evaluated.append(driven.episode)

    stretches = list(drive(driven, eval_steps=(3, 7), on_eval=evaluate))

    assert evaluated == [3, 7]
    assert [stretch.num_episodes for stretch in stretches] == [3, 4, 5]
    for stretch in stretches:  # means over episodes, for any number of episodes at once
        assert stretch.losses == pytest.approx(plain.advance(stretch.num_episodes), rel=1e-5)
    assert torch.equal(weights(driven), weights(plain))
    # Evaluation steps before the run's episode are skipped; one at its end is not.
    assert [stretch.losses for stretch in drive(driven, eval_steps=(3, 12))] == [{}]
    assert list(drive(driven)) == []


def test_a_stopped_run_resumes_with_its_curve_and_seconds(tmp_path, step_by_step):
    unbroken, stopped, resumed = (new_run() for _ in range(3))
    unbroken.advance(12)
    path = tmp_path / "run.pt"
    first, second = Checkpoint(path), Checkpoint(path)

    def note(stretch: Stretch) -> None:
        first.curve.append({"episode": stopped.episode})

    stretches = drive(stopped, first, eval_steps=(3, 7), on_eval=note)
    next(stretches)
    stretches.close()
    # As if the training had taken an hour.
    path.write_bytes(pack_state({**unpack_state(path.read_bytes()), "seconds": 3600.0}))

    origin = second.restore(resumed)

    assert resumed.episode == second.episode == origin["episode"] == 3
    assert {"command", "commit"} <= set(origin)
    assert second.curve == [{"episode": 3}]
    assert second.seconds >= 3600
    list(drive(resumed, second))
    assert torch.equal(weights(resumed), weights(unbroken))


def test_evaluation_steps_may_go_without_a_checkpoint(tmp_path):
    checkpoint = Checkpoint(tmp_path / "run.pt")
    stretches = drive(new_run(), checkpoint, eval_steps=(3,), saves_evals=False)

    next(stretches)
    assert checkpoint.episode == 0
    next(stretches)
    assert checkpoint.episode == 12


def test_progress_is_a_line_with_the_losses(tmp_path):
    lines: list[str] = []

    train_to_end(new_run(), tmp_path / "run.pt", progress=lines.append)
    origin = train_to_end(new_run(), tmp_path / "run.pt", progress=lines.append)

    assert len(lines) == 2
    assert lines[0].startswith("plane: episode 12 of 12, 0 s left; slope ")
    assert lines[1] == "plane: resuming from episode 12"
    assert origin["episode"] == 12


class Interrupted(Plane):
    """A learner that is interrupted in its sixth episode."""

    num_calls = 0

    def episode_terms(self, shape: int, rng: torch.Generator) -> list[torch.Tensor]:
        self.num_calls += 1
        if self.num_calls == 6:
            raise KeyboardInterrupt
        return super().episode_terms(shape, rng)


def test_an_interrupted_training_says_where_it_was_saved(tmp_path, step_by_step):
    lines: list[str] = []

    with pytest.raises(KeyboardInterrupt):
        train_to_end(new_run(Interrupted()), tmp_path / "run.pt", progress=lines.append)

    (line,) = lines
    assert f"saved 5 episodes in {tmp_path}/run.pt" in line


def test_a_killed_training_leaves_a_checkpoint_that_resumes_to_the_last_bit(tmp_path):
    """Kill it with SIGKILL while it writes the sixth checkpoint."""
    program = f"""
import os, signal, sys
from pathlib import Path
from cpaan.training import drive
from helpers.learners import new_run
drive._MOST_STEPS_AT_ONCE, drive._SECONDS_BETWEEN_CHECKPOINTS = 1, 0.0
run, pack = new_run(), drive.pack_state
def pack_and_die(state):
    if run.episode == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return pack(state)
drive.pack_state = pack_and_die
drive.train_to_end(run, Path({str(tmp_path / "run.pt")!r}))
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    killed = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path})
    unbroken, resumed = new_run(), new_run()
    unbroken.advance(12)

    origin = train_to_end(resumed, tmp_path / "run.pt")

    assert killed.returncode == -signal.SIGKILL
    assert origin["episode"] == 5
    assert torch.equal(weights(resumed), weights(unbroken))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ""),
        ({"weights": torch.zeros(1)}, "it is not a checkpoint of plane; missing: curve, "),
        ({"run": {}, "curve": [], "seconds": 0.0, "provenance": {}}, "missing: config, data, "),
    ],
)
def test_a_file_that_is_not_a_checkpoint_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "run.pt"
    path.write_bytes(b"PK but nothing more") if content is None else torch.save(content, path)

    with pytest.raises(ValueError, match=rf"^cannot resume from .*run\.pt: .*{message}.*$"):
        train_to_end(new_run(), path)

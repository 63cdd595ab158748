"""The training loop: chunks of episodes, evaluation steps, progress, checkpoints, resuming."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cpaan.core.files import pack_state, unpack_state
from cpaan.core.provenance import describe_run
from cpaan.core.remote_paths import RemotePath
from cpaan.training.learning import Run
from cpaan.training.workers import ALONE, Workers

Progress = Callable[[str], None]

_MOST_STEPS_AT_ONCE = 500  # between two reads of the losses, which make a GPU wait
_SECONDS_AT_ONCE = 2.0
_SECONDS_BETWEEN_MESSAGES = 10.0
_LONG_SECONDS = 3600.0
_SECONDS_BETWEEN_CHECKPOINTS = 30.0


def in_words(seconds: float) -> str:
    """Return a duration as people say it: 41 s, 12 min or 2.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class Checkpoint:
    """Checkpoint file of a run, with its evaluations so far.

    Args:
        file: The file; None to save nothing.
        training: Digest of everything that determines the run. A file with another one is ignored,
            as if it did not exist. Without it, `restore` refuses the file of another run.
        evaluation: Digest of the settings of evaluations. A curve with another one is ignored.
    """

    def __init__(
        self, file: RemotePath | Path | None, training: str = "", evaluation: str = ""
    ) -> None:
        self._file = RemotePath.at(file) if isinstance(file, Path) else file
        self._digests = {"training": training, "evaluation": evaluation}
        self.curve: list[dict[str, Any]] = []
        """One entry per evaluation step; `on_eval` of `drive` appends them."""
        self.episode = 0
        """Number of episodes trained when the file was written."""
        self._seconds_before = 0.0
        self.start_clock()

    def start_clock(self) -> None:
        """Start counting the seconds of training; the setup is not counted."""
        self._started = self._saved = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds of training and evaluation, without work that a restart discarded."""
        return self._seconds_before + time.monotonic() - self._started

    @property
    def is_due(self) -> bool:
        """Whether enough time has passed since the last save."""
        return time.monotonic() - self._saved > _SECONDS_BETWEEN_CHECKPOINTS

    def read(self) -> dict[str, Any] | None:
        """Return the content of the file; None if it is missing or has another digest.

        Raises:
            ValueError: If the file is not a checkpoint.
        """
        content = None if self._file is None else self._file.read_if_exists()
        if content is None:
            return None
        training = self._digests["training"]
        try:
            state = unpack_state(content)
            return None if training and state.get("training") != training else state
        except Exception as error:  # other files can raise any error
            raise self._refusal(error) from error

    def restore(self, run: Run) -> dict[str, Any] | None:
        """Restore a new run from the file; return its command, commit and episode, None without it.

        Raises:
            ValueError: If the file is not a checkpoint, or belongs to another run.
        """
        state = self.read()
        if state is None:
            return None
        try:
            missing = {"run", "curve", "seconds", "provenance"} - set(state)
            missing = missing or set(run.state_dict()) - set(state["run"])
            if missing:
                raise ValueError(
                    f"it is not a checkpoint of {run.name}; missing: {', '.join(sorted(missing))}"
                )
            run.load_state_dict(state["run"])
            self._seconds_before = state["seconds"]
            if state.get("evaluation", "") == self._digests["evaluation"]:
                self.curve = list(state["curve"])
            self.episode = run.episode
            return {**state["provenance"], "episode": run.episode}
        except Exception as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> ValueError:
        assert self._file is not None, "its content has been read"
        reason = " ".join(str(error).split())
        return ValueError(f"cannot resume from {self._file.location}: {reason}")

    def save(self, run: Run) -> None:
        """Replace the file atomically, so that a killed process leaves the old one."""
        if self._file is None:
            return
        state = {
            "run": run.state_dict(),
            "curve": self.curve,
            "seconds": self.seconds,
            "provenance": self._provenance,
            **self._digests,
        }
        self._file.write(pack_state(state))
        self._saved, self.episode = time.monotonic(), run.episode

    @property
    def location(self) -> str:
        """Path or URL of the file; empty without one."""
        return "" if self._file is None else self._file.location

    @cached_property
    def _provenance(self) -> dict[str, str]:
        return describe_run()


@dataclass(frozen=True)
class Stretch:
    """The training between two evaluation steps."""

    losses: dict[str, float]
    """Mean losses over its episodes since the last restart."""
    num_episodes: int
    seconds: float


def drive(
    run: Run,
    checkpoint: Checkpoint | None = None,
    *,
    eval_steps: Sequence[int] = (),
    on_eval: Callable[[Stretch], None] = lambda stretch: None,
    saves_evals: bool = True,
    progress: Progress = lambda line: None,
    workers: Workers = ALONE,
) -> Iterator[Stretch]:
    """Train a run to its last episode, and yield at every evaluation step and at the end.

    Args:
        run: A new or restored run.
        checkpoint: Saved by rank 0 every 30 seconds, at evaluation steps and at the end.
        eval_steps: Numbers of episodes at which to evaluate; those before the run's are skipped.
        on_eval: Called at an evaluation step, before the checkpoint is saved.
        saves_evals: Whether to save a checkpoint at every evaluation step.
        progress: Called with a message every ten seconds and at the end.
        workers: Processes that train together. All of them must make the same call.
    """
    targets = {step for step in eval_steps if step >= run.episode}
    if run.episode < run.num_episodes:
        targets.add(run.num_episodes)
    if run.note and targets:
        progress(f"{run.name}: {run.note}")
    if checkpoint:
        checkpoint.start_clock()
    first, started, pace = run.episode, time.monotonic(), _SECONDS_AT_ONCE
    reported = started
    is_compiled = run.device.type != "cuda"
    saver = checkpoint if workers.rank == 0 else None
    for target in sorted(targets):
        before, since = run.episode, time.monotonic()
        losses = dict.fromkeys(run.losses if target > before else (), 0.0)
        while run.episode < target:
            # Slow episodes are trained one by one, so that progress and checkpoints are on time.
            steps = max(1, min(_MOST_STEPS_AT_ONCE, int(_SECONDS_AT_ONCE / pace)))
            count = min(steps * workers.count, target - run.episode)
            asked = time.monotonic()
            means = run.advance(count)
            now = time.monotonic()
            # Averaged over workers, because all must take the same number of steps.
            pace = max(1e-6, workers.mean((now - asked) * workers.count / count))
            for name in losses:
                losses[name] += means[name] * count / (target - before)
            if not is_compiled and run.episode < target:
                # On a GPU, the first steps compile kernels, so the estimate starts after them.
                first, started, reported, is_compiled = run.episode, now, now, True
                continue
            left = (run.num_episodes - run.episode) * (now - started) / (run.episode - first)
            is_first, is_last = reported == started, run.episode == run.num_episodes
            if is_first and left > _LONG_SECONDS:
                progress(
                    f"{run.name}: training takes about {left / 3600:.0f} h on this device; to "
                    "shorten it, use a GPU, fewer --episodes, or --set batch_size=300"
                )
            is_long = left > _SECONDS_BETWEEN_MESSAGES
            if is_last or (is_first and is_long) or now - reported > _SECONDS_BETWEEN_MESSAGES:
                reported = now
                terms = ", ".join(f"{name} {means[name]:.3g}" for name in losses if means[name])
                place = f"{run.unit} {run.episode} of {run.num_episodes}, {in_words(left)} left"
                progress(f"{run.name}: {place}; {terms}")
            if saver and saver.is_due and run.episode < target:
                saver.save(run)
        stretch = Stretch(losses, target - before, time.monotonic() - since)
        if target in eval_steps:
            on_eval(stretch)
        if saver and (saves_evals or saver.is_due or target == run.num_episodes):
            saver.save(run)
        yield stretch


def train_to_end(
    run: Run, path: Path | None = None, *, progress: Progress = lambda line: None
) -> dict[str, Any] | None:
    """Train a new run to its last episode; resume from its checkpoint file if there is one.

    Returns:
        Command, commit and episode of this checkpoint; None if the run did not resume.
    """
    checkpoint = Checkpoint(path)
    origin = restore(run, checkpoint, progress)
    with saying_what_is_saved(run, checkpoint, progress):
        for _ in drive(run, checkpoint, progress=progress):
            pass
    return origin


def restore(run: Run, checkpoint: Checkpoint, progress: Progress) -> dict[str, Any] | None:
    """Restore a new run if it has a checkpoint; return its command, commit and episode."""
    origin = checkpoint.restore(run)
    if origin:
        progress(f"{run.name}: resuming from episode {run.episode}")
    return origin


@contextmanager
def saying_what_is_saved(run: Run, checkpoint: Checkpoint, progress: Progress) -> Iterator[None]:
    """After Ctrl-C in the block, tell which checkpoint the same command resumes from."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint.location and checkpoint.episode:
            saved = f"stopped; saved {checkpoint.episode} episodes in {checkpoint.location}"
            progress(f"{run.name}: {saved}; run the same command to resume")
        raise

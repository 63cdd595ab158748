"""Training runs that are kept: files to go on from, and the drive to the last episode."""

import time
from collections.abc import Callable
from pathlib import Path

from cpaan.core.files import load_state, save_state
from cpaan.core.provenance import describe_run
from cpaan.training.learning import Run

_MOST_EPISODES_AT_ONCE = 100  # between looks at the losses
_SECONDS_AT_ONCE = 2.0
_SECONDS_BETWEEN_MESSAGES = 10.0
_SECONDS_BETWEEN_CHECKPOINTS = 30.0


def save_checkpoint(run: Run, path: Path) -> None:
    """Write all that decides how a run goes on, whole or not at all: the old file survives."""
    save_state(path, {**run.state_dict(), "run": describe_run()})


def load_checkpoint(run: Run, path: Path) -> dict[str, str]:
    """Let a new run go on from a file.

    Returns:
        What the file says of the command that wrote it.

    Raises:
        ValueError: If it is no checkpoint, or one of another run; see
            its ``load_state_dict``.
    """
    state = load_state(path)
    try:
        missing = set(run.state_dict()) - set(state)
        if missing:
            raise ValueError(
                f"it is no checkpoint of {run.name}: {', '.join(sorted(missing))} missing"
            )
        run.load_state_dict(state)
    except Exception as error:  # a file of something else fails anywhere
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot go on from {path}: {reason}") from error
    return dict(state["run"])


def train_to_end(
    run: Run,
    *,
    checkpoint: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> None:
    """Train a run up to its configured number of episodes.

    Args:
        run: New, or gone on from a checkpoint.
        checkpoint: Where it is kept now and then, and at the end; None: nowhere.
        progress: Called with a line now and then.
    """
    num_episodes, name = run.num_episodes, run.name
    started, first = time.monotonic(), run.episode
    said = saved = looked = started
    count, kept = 1, run.episode
    try:
        while run.episode < num_episodes:
            terms = run.advance(min(count, num_episodes - run.episode))
            now, is_last = time.monotonic(), run.episode == num_episodes
            # Slow episodes are looked at one by one: nobody waits long for a sign of life.
            is_quick = now - looked < _SECONDS_AT_ONCE
            count = min(2 * count, _MOST_EPISODES_AT_ONCE) if is_quick else max(1, count // 2)
            looked = now
            if is_last or now - said > _SECONDS_BETWEEN_MESSAGES:
                said = now
                left = (num_episodes - run.episode) * (now - started) / (run.episode - first)
                losses = ", ".join(
                    f"{term} {terms[term]:.3g}" for term in run.losses if terms[term]
                )
                place = f"episode {run.episode} of {num_episodes}, {left:.0f} s left"
                progress(f"{name}: {place}; {losses}")
            if checkpoint and (is_last or now - saved > _SECONDS_BETWEEN_CHECKPOINTS):
                save_checkpoint(run, checkpoint)
                saved, kept = now, run.episode
    except KeyboardInterrupt:
        if checkpoint and kept:
            progress(f"{name}: {kept} episodes are kept in {checkpoint}; the same command goes on")
        raise

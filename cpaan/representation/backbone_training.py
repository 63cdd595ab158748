"""From stored images to a trained backbone: the drive to the last step, kept on disk."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpaan.core.files import load_state, save_state
from cpaan.core.provenance import describe_run
from cpaan.representation.backbone import Backbone
from cpaan.representation.backbone_run import BackboneRun
from cpaan.representation.config import BackboneConfig
from cpaan.training.workers import ALONE, Workers

IMAGES, LABELS, BACKBONE = "images.npy", "labels.npy", "backbone.pt"
_MOST_STEPS_AT_ONCE = 50  # between looks at the loss
_SECONDS_AT_ONCE = 2.0
_SECONDS_BETWEEN_CHECKPOINTS = 30.0
_SECONDS_BETWEEN_MESSAGES = 10.0


@dataclass(frozen=True)
class LogEntry:
    """What is known of training at some point."""

    epoch: float  # how many are done
    loss: float  # mean over the last epoch; in the middle of one, over the last few steps
    learning_rate: float
    view_size: int
    seconds: float  # of training so far, over all runs that went on from each other

    def is_milestone(self, config: BackboneConfig) -> bool:
        """Return whether an epoch has just ended, and with it another tenth of all epochs."""
        done, total = int(self.epoch), config.num_epochs
        return self.epoch == done and 10 * done // total > 10 * (done - 1) // total


def train_backbone(
    folder: Path,
    num_classes: int,
    config: BackboneConfig,
    seed: int,
    device: torch.device,
    workers: Workers = ALONE,
) -> Iterator[LogEntry]:
    """Train on the images that a folder holds, and keep the run there.

    A run that was killed goes on from where it was kept last.

    Args:
        folder: With ``images.npy``, shape (I, S, S, 3), and ``labels.npy``, shape (I,), in which
            -1 leaves an image out.
        num_classes: How many classes the labels are of.
        config: Everything else.
        seed: Decides the run.
        device: Where to train.
        workers: With which others. All do the same; the first one keeps the run.

    Yields:
        An entry every few seconds, and after every epoch.

    Raises:
        ValueError: If training diverges, or what is kept is of another run.
    """
    started = saved = time.monotonic()
    run = BackboneRun(
        # Mapped as torch wants it; nothing is written.
        np.load(folder / IMAGES, mmap_mode="c", allow_pickle=False),
        np.load(folder / LABELS, allow_pickle=False),
        num_classes,
        config,
        seed,
        device,
        workers,
    )
    log: list[LogEntry] = []
    seconds_before, total, pace = 0.0, 0.0, _SECONDS_AT_ONCE
    checkpoint = folder / BACKBONE
    if checkpoint.exists():
        state = load_state(checkpoint)
        run.load_state_dict(state["training"])
        log = [LogEntry(**entry) for entry in state["log"]]
        seconds_before, total = state["seconds"], state["loss_of_epoch"]
    while run.step < run.num_steps:
        left = run.steps_per_epoch - run.step % run.steps_per_epoch
        count = max(1, min(left, _MOST_STEPS_AT_ONCE, int(_SECONDS_AT_ONCE / pace)))
        looked = time.monotonic()
        loss = run.advance(count)
        now = time.monotonic()
        pace = workers.mean((now - looked) / count, device)  # all take as many steps at once
        total += count * loss
        epoch = run.step / run.steps_per_epoch
        entry = LogEntry(epoch, loss, *run.last_choices, seconds_before + now - started)
        if epoch.is_integer():
            entry = replace(entry, loss=total / run.steps_per_epoch)
            total = 0.0
            log.append(entry)
        is_due = now - saved > _SECONDS_BETWEEN_CHECKPOINTS
        if workers.rank == 0 and (is_due or run.step == run.num_steps):
            state = {
                "training": run.state_dict(),
                "log": [asdict(of_epoch) for of_epoch in log],
                "loss_of_epoch": total,
                "seconds": entry.seconds,
                "workers": workers.count,
                "device": _name_of(device),
                "run": describe_run(),
            }
            save_state(checkpoint, state)
            saved = time.monotonic()
        yield entry


def train_alone(
    folder: Path,
    num_classes: int,
    config: BackboneConfig,
    seed: int,
    device: torch.device,
    progress: Callable[[str], None],
) -> None:
    """Train in this process; arguments as those of `train_backbone`."""
    reporter = TrainingReporter(config, progress)
    for entry in train_backbone(folder, num_classes, config, seed, device):
        reporter.add(entry)


class TrainingReporter:
    """Says something at every tenth of the epochs, and otherwise now and then."""

    def __init__(self, config: BackboneConfig, progress: Callable[[str], None]) -> None:
        """Say it to ``progress``."""
        self._config = config
        self._progress = progress
        self._said = time.monotonic()

    def add(self, entry: LogEntry) -> None:
        """Say something of this entry, or nothing."""
        now, total = time.monotonic(), self._config.num_epochs
        if entry.is_milestone(self._config) or now - self._said > _SECONDS_BETWEEN_MESSAGES:
            self._said = now
            left = entry.seconds / entry.epoch * (total - entry.epoch)
            self._progress(
                f"epoch {entry.epoch:.3g} of {total}: loss {entry.loss:.3f}, "
                f"views of {entry.view_size} pixels, {left:.0f} s left"
            )


def load_backbone(state: dict[str, Any], device: torch.device) -> Backbone:
    """Return the backbone of what `load_state` returned, for making features."""
    weights = state["training"]["model"]
    num_classes = len(weights["classifier.weight"])
    config = BackboneConfig(**state["training"]["config"])
    model = Backbone(config, num_classes, torch.Generator())
    model.load_state_dict(weights)
    return model.to(device)


def _name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

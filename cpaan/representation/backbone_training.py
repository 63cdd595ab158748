"""From stored images to a trained backbone: the drive to the last step, kept on disk."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpaan.files import replacing
from cpaan.provenance import describe_run
from cpaan.representation.backbone import Backbone
from cpaan.representation.backbone_run import BackboneRun
from cpaan.representation.config import BackboneConfig
from cpaan.representation.layout import load_state
from cpaan.workers import ALONE, Workers

IMAGES, LABELS, CHECKPOINT = "images.npy", "labels.npy", "backbone.pt"
_MOST_STEPS_AT_ONCE = 50  # between looks at the loss
_SECONDS_BETWEEN_CHECKPOINTS = 30.0
_SECONDS_BETWEEN_MESSAGES = 10.0


@dataclass(frozen=True)
class EpochLog:
    """What is known of training after an epoch."""

    epoch: int
    loss: float  # mean over the epoch
    learning_rate: float
    view_size: int
    seconds: float  # of training so far, over all runs that went on from each other

    def is_milestone(self, config: BackboneConfig) -> bool:
        """Return whether another tenth of the epochs is done."""
        return self.epoch * 10 // config.num_epochs > (self.epoch - 1) * 10 // config.num_epochs


def train_backbone(
    folder: Path,
    config: BackboneConfig,
    seed: int,
    device: torch.device,
    workers: Workers = ALONE,
) -> Iterator[EpochLog]:
    """Train on the images that a folder holds, and keep the run there.

    A run that was killed goes on from where it was kept last.

    Args:
        folder: With ``images.npy``, shape (I, S, S, 3), and ``labels.npy``, shape (I,), in which
            -1 leaves an image out.
        config: Everything else.
        seed: Decides the run.
        device: Where to train.
        workers: With which others. All do the same; the first one keeps the run.

    Yields:
        An entry after every epoch.

    Raises:
        ValueError: If training diverges, or what is kept is of another run.
    """
    started = saved = time.monotonic()
    run = BackboneRun(
        np.load(folder / IMAGES, mmap_mode="c"),  # as torch wants it; nothing is written
        np.load(folder / LABELS),
        config,
        seed,
        device,
        workers,
    )
    log: list[EpochLog] = []
    seconds_before, total = 0.0, 0.0
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        state = load_state(checkpoint)
        run.load_state_dict(state["training"])
        log = [EpochLog(**entry) for entry in state["log"]]
        seconds_before, total = state["seconds"], state["loss_of_epoch"]
    while run.step < run.num_steps:
        left = run.steps_per_epoch - run.step % run.steps_per_epoch
        count = min(left, _MOST_STEPS_AT_ONCE)
        total += count * run.advance(count)
        seconds = seconds_before + time.monotonic() - started
        epoch, position = divmod(run.step, run.steps_per_epoch)
        if position == 0:
            loss, total = total / run.steps_per_epoch, 0.0
            log.append(EpochLog(epoch, loss, *run.last_choices, seconds))
        is_due = time.monotonic() - saved > _SECONDS_BETWEEN_CHECKPOINTS
        if workers.rank == 0 and (is_due or run.step == run.num_steps):
            with replacing(checkpoint) as file:
                torch.save(
                    {
                        "training": run.state_dict(),
                        "log": [asdict(entry) for entry in log],
                        "loss_of_epoch": total,
                        "seconds": seconds,
                        "workers": workers.count,
                        "device": _name_of(device),
                        "run": describe_run(),
                    },
                    file,
                )
            saved = time.monotonic()
        if position == 0:
            yield log[-1]


def train_alone(
    folder: Path,
    config: BackboneConfig,
    seed: int,
    device: torch.device,
    progress: Callable[[str], None],
) -> None:
    """Train in this process; arguments as those of `train_backbone`."""
    reporter = EpochReporter(config, progress)
    for entry in train_backbone(folder, config, seed, device):
        reporter.add(entry)


class EpochReporter:
    """Says something at every tenth of the epochs, and otherwise now and then."""

    def __init__(self, config: BackboneConfig, progress: Callable[[str], None]) -> None:
        """Say it to ``progress``."""
        self._config = config
        self._progress = progress
        self._said = time.monotonic()

    def add(self, entry: EpochLog) -> None:
        """Say something of this epoch, or nothing."""
        now, total = time.monotonic(), self._config.num_epochs
        if entry.is_milestone(self._config) or now - self._said > _SECONDS_BETWEEN_MESSAGES:
            self._said = now
            left = entry.seconds / entry.epoch * (total - entry.epoch)
            self._progress(
                f"epoch {entry.epoch} of {total}: loss {entry.loss:.3f}, "
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

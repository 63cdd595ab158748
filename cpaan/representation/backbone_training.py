"""Training of the backbone on the images of base classes.

Shapes: I = stored images, S = their size, B = images of a step, C = classes.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from cpaan.core.devices import set_rate
from cpaan.core.randomness import new_rng
from cpaan.representation.backbone import Backbone, backbone_loss
from cpaan.representation.config import BackboneConfig
from cpaan.representation.views import cut_and_paste, random_views
from cpaan.training.drive import Checkpoint, Progress, Stretch, drive
from cpaan.training.learning import EpisodeRun, decay, with_decay
from cpaan.training.workers import ALONE, Workers

IMAGES, LABELS, BACKBONE = "images.npy", "labels.npy", "backbone.pt"
_VIEW_STEP = 8  # sizes of views are multiples of this, so that stages halve them evenly


class BackboneRun(EpisodeRun):
    """Training of one backbone; each episode is an optimiser step on one batch.

    The seed, the number of a step and the rank of the worker determine all random numbers of that
    step, so that checkpoints need no random state.
    """

    FREE = ("device", "workers")
    unit = "step"

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        num_classes: int,
        config: BackboneConfig,
        seed: int,
        device: torch.device,
        workers: Workers = ALONE,
    ) -> None:
        """Draw the weights; each worker takes its share of the images of every step.

        Images have the shape (I, S, S, 3) and are often a memory map. A GPU holds all of them if
        they take less than half of its free memory. Labels are classes from zero on, shape (I,); -1
        leaves an image out. Each worker needs two images per step, for batch normalisation.
        """
        used = np.flatnonzero(labels >= 0)
        of_step = min(len(used), config.batch_size)
        if of_step < 2 * workers.count:
            raise ValueError(
                f"a step of {of_step} images cannot be divided among {workers.count} workers: "
                "each needs at least 2 images"
            )
        self.steps_per_epoch = max(1, len(used) // config.batch_size)
        """Full batches per epoch; each epoch leaves out a different remainder of the images."""
        self.model = Backbone(config, num_classes, new_rng(seed, 0)).to(device)
        # The type annotation of `to` lacks this argument.
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        super().__init__(
            "the backbone",
            hashlib.sha256(labels.tobytes()).hexdigest()[:16],
            *(("loss",), config, self.model, device, workers),
            num_steps=config.num_epochs * self.steps_per_epoch,
        )
        self.seed = seed
        self._images = torch.from_numpy(images)
        if device.type == "cuda" and images.nbytes < torch.cuda.mem_get_info(device)[0] / 2:
            self._images = self._images.to(device)
        self._labels = torch.from_numpy(labels)
        self._used = torch.from_numpy(used)
        self._num_classes = num_classes
        # The learning rate is set before every step.
        self._optimiser = torch.optim.SGD(
            with_decay(self.model, config.weight_decay),
            lr=0.0,
            momentum=0.9,
            nesterov=config.nesterov,
        )
        self._order = (-1, torch.empty(0, dtype=torch.int64))
        self._identity = {"data": self.data, "seed": seed}
        self._parts = {"model": self.model, "optimiser": self._optimiser}
        # Every worker computes batch statistics from its own images.
        self._statistics = [x for x in self.model.buffers() if x.is_floating_point()]

    @contextmanager
    def _computing(self) -> Iterator[None]:
        self.model.train()
        # Training has few convolution sizes, each used often, so cuDNN may time its kernels.
        before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = before

    def _raise_divergence(self, num_steps_ago: int, what: str) -> NoReturn:
        hint = f"learning_rate is {self.config.learning_rate}, use a smaller one"
        super()._raise_divergence(num_steps_ago, f"{what}; {hint}")

    def _train_one_episode(self) -> Tensor:
        config = self.config
        rng = new_rng(self.seed, 2, self.episode, self._workers.rank, device=self.device)
        images, labels, share = self._batch()
        views = random_views(images, self.view_size(self.episode), config, rng)
        targets = one_hot(labels, self._num_classes).float()
        targets = targets + config.label_smoothing * (1 / self._num_classes - targets)
        if config.cut_and_paste:
            views, targets = cut_and_paste(views, targets, config.cut_and_paste, rng)
        features, scores = self.model(views)
        loss = backbone_loss(features, scores, targets, config.loss)
        self._optimiser.zero_grad()
        (share * loss).backward()
        self._workers.average([p.grad for p in self.model.parameters() if p.grad is not None])
        set_rate(self._optimiser, self.learning_rate(self.episode))
        self._optimiser.step()
        return share * loss.detach().view(1)

    def _batch(self) -> tuple[Tensor, Tensor, float]:
        """Return this worker's share of the step's images.

        Returns:
            Images, shape (B, S, S, 3); labels, shape (B,); and the number of images over the
            average number per worker. As a weight, it makes all images of the step count equally.
        """
        epoch, position = divmod(self.episode, self.steps_per_epoch)
        if self._order[0] != epoch:
            order = torch.randperm(len(self._used), generator=new_rng(self.seed, 1, epoch))
            self._order = (epoch, self._used[order])
        start = position * self.config.batch_size
        batch = self._order[1][start : start + self.config.batch_size]
        rows = batch[self._workers.rank :: self._workers.count]
        # While images are read from disk, a GPU still computes the last step.
        images = self._images[rows.to(self._images.device)].to(self.device)
        share = len(rows) * self._workers.count / len(batch)
        return images, self._labels[rows].to(self.device), share

    def view_size(self, step: int) -> int:
        """Return the height and width of views at a step."""
        last = self.config.last_view_size
        first = self.config.first_view * last
        grown = min(1.0, step / (self.config.grown_after * self.num_episodes))
        if grown == 1.0:
            return last
        steps = round((first + grown * (last - first)) // _VIEW_STEP)
        return min(last, _VIEW_STEP * max(1, steps))

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step: it rises during the warm-up, then falls."""
        config = self.config
        warmup = config.warmup * self.num_episodes
        if step < warmup:
            return config.learning_rate * min(1.0, (step + 1) / warmup)
        done = (step - warmup) / (self.num_episodes - warmup)
        return config.learning_rate * decay(done, is_cosine=config.schedule == "cosine")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that determines the rest of the training, and the device it ran on."""
        is_gpu = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if is_gpu else "cpu"
        return {**super().state_dict(), "device": name}


def train_backbone(
    folder: Path,
    num_classes: int,
    config: BackboneConfig,
    seed: int,
    *,
    device: torch.device,
    progress: Progress,
    workers: Workers = ALONE,
) -> None:
    """Train on the images of a folder, and write the checkpoint ``backbone.pt`` there.

    Resumes from that checkpoint. Its curve has an entry for each epoch. All workers call this
    function; rank 0 writes the checkpoint. The folder has ``images.npy`` and ``labels.npy``; see
    `BackboneRun` for them and the other arguments.
    """
    run = BackboneRun(
        # Mapped copy-on-write, because torch needs writable arrays.
        np.load(folder / IMAGES, mmap_mode="c", allow_pickle=False),
        np.load(folder / LABELS, allow_pickle=False),
        *(num_classes, config, seed, device, workers),
    )
    checkpoint = Checkpoint(folder / BACKBONE)
    checkpoint.restore(run)
    run.check_equal_weights()

    def log_epoch(stretch: Stretch) -> None:
        checkpoint.curve.append(
            {
                "epoch": run.episode // run.steps_per_epoch,
                "loss": stretch.losses["loss"],
                "learning_rate": run.learning_rate(run.episode - 1),
                "view_size": run.view_size(run.episode - 1),
                "seconds": checkpoint.seconds,
            }
        )

    ends = [(number + 1) * run.steps_per_epoch for number in range(config.num_epochs)]
    for _ in drive(
        run,
        checkpoint,
        eval_steps=ends[len(checkpoint.curve) :],
        on_eval=log_epoch,
        saves_evals=False,
        progress=progress,
        workers=workers,
    ):
        pass

"""Training of the backbone on base classes: a run that can stop and go on.

Shapes: I = stored images, S = their size, B = images of a step, C = classes.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from cpaan.core.randomness import new_rng
from cpaan.representation.backbone import Backbone, backbone_loss
from cpaan.representation.config import BackboneConfig
from cpaan.representation.views import cut_and_paste, random_views
from cpaan.training.workers import ALONE, Workers

_VIEW_STEP = 8  # sizes of views are multiples of this, so that the stages halve them evenly
_DECAY_OF_STEPS = 0.1


class BackboneRun:
    """Training of one backbone, from its first step on or from where it was left.

    All that is random about a step is decided by the seed, the step's number and the worker, so
    that no state of a random generator has to be kept.
    """

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
        """Draw the weights.

        Args:
            images: Shape (I, S, S, 3), often a memory map; a GPU holds all of them if it can.
            labels: Classes from zero on, shape (I,); -1 leaves an image out.
            num_classes: C.
            config: Everything else.
            seed: Decides the run.
            device: Where to train.
            workers: With which others; each takes its share of every step's images.

        Raises:
            ValueError: If a worker would have fewer than two images in a step: the statistics of
                one mean nothing.
        """
        kept = np.flatnonzero(labels >= 0)
        of_step = min(len(kept), config.batch_size)
        if of_step < 2 * workers.count:
            raise ValueError(
                f"{of_step} images of a step cannot be shared by {workers.count} workers: each "
                "needs two"
            )
        self.config = config
        self.seed = seed
        self.step = 0
        self._device = device
        self._workers = workers
        self._images = images
        self._labels = torch.from_numpy(labels)
        self._kept = torch.from_numpy(kept)
        self._num_classes = num_classes
        self._images_there = _on_device(images, device)
        self.model = Backbone(config, self._num_classes, new_rng(seed, 0)).to(device)
        # torch's own annotation of `to` does not know this argument.
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        decaying = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": decaying, "weight_decay": config.weight_decay},
            {"params": others},
        ]
        self._optimiser = torch.optim.SGD(
            groups,
            lr=0.0,  # set before every step
            momentum=config.momentum,
            nesterov=config.nesterov,
        )
        self._order = (-1, torch.empty(0, dtype=torch.int64))

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of all images; what remains is another remainder in every epoch."""
        return max(1, len(self._kept) // self.config.batch_size)

    @property
    def num_steps(self) -> int:
        """Steps of the whole training."""
        return self.config.num_epochs * self.steps_per_epoch

    def advance(self, num_steps: int) -> float:
        """Train for some more steps.

        Returns:
            Mean loss of these steps, over all workers.

        Raises:
            ValueError: If it or, at the end, a weight is not finite. They are looked at once, so
                that a GPU never waits for it.
        """
        total = torch.zeros((), device=self._device)
        self.model.train()
        with _quickest_kernels():
            for _ in range(num_steps):
                total += self._train_one_step()
                self.step += 1
        self._workers.average([total, *self._statistics()])
        loss = float(total) / num_steps
        tensors = [*self.model.parameters(), *self._statistics()]
        if not math.isfinite(loss) or not torch.stack([t.isfinite().all() for t in tensors]).all():
            raise ValueError(
                f"training of the backbone diverged before step {self.step}: loss {loss:.3g}, or "
                f"weights are not finite; learning_rate is {self.config.learning_rate}"
            )
        return loss

    @property
    def last_choices(self) -> tuple[float, int]:
        """Learning rate and size of views of the step before."""
        return self._learning_rate(self.step - 1), self._view_size(self.step - 1)

    def _train_one_step(self) -> Tensor:
        config = self.config
        rng = new_rng(self.seed, 2, self.step, self._workers.rank, device=self._device)
        images, labels, share = self._batch()
        views = random_views(images, self._view_size(self.step), config, rng)
        targets = one_hot(labels, self._num_classes).float()
        targets = targets + config.label_smoothing * (1 / self._num_classes - targets)
        if config.cut_and_paste:
            views, targets = cut_and_paste(views, targets, config.cut_and_paste, rng)
        features, scores = self.model(views)
        loss = backbone_loss(features, scores, targets, config)
        self._optimiser.zero_grad()
        (share * loss).backward()
        self._workers.average([p.grad for p in self.model.parameters() if p.grad is not None])
        for group in self._optimiser.param_groups:
            group["lr"] = self._learning_rate(self.step)
        self._optimiser.step()
        return share * loss.detach()

    def _batch(self) -> tuple[Tensor, Tensor, float]:
        """Return what this worker takes of the step's images.

        Returns:
            Images, shape (B, S, S, 3); labels, shape (B,); and their number, over that of an
            average worker: with it as a weight, every image of the step counts alike.
        """
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if self._order[0] != epoch:
            order = torch.randperm(len(self._kept), generator=new_rng(self.seed, 1, epoch))
            self._order = (epoch, self._kept[order])
        start = position * self.config.batch_size
        batch = self._order[1][start : start + self.config.batch_size]
        rows = batch[self._workers.rank :: self._workers.count]
        labels = self._labels[rows].to(self._device)
        share = len(rows) * self._workers.count / len(batch)
        if self._images_there is not None:
            return self._images_there[rows.to(self._device)], labels, share
        # A GPU still works on the last step while these are read.
        return torch.from_numpy(self._images[rows.numpy()]).to(self._device), labels, share

    def _view_size(self, step: int) -> int:
        last = self.config.last_view_size
        first = self.config.first_view * last
        grown = min(1.0, step / (self.config.grown_after * self.num_steps))
        if grown == 1.0:
            return last
        steps = round((first + grown * (last - first)) // _VIEW_STEP)
        return min(last, _VIEW_STEP * max(1, steps))

    def _learning_rate(self, step: int) -> float:
        config = self.config
        warmup = config.warmup * self.num_steps
        if step < warmup:
            return config.learning_rate * min(1.0, (step + 1) / warmup)
        done = (step - warmup) / (self.num_steps - warmup)
        if config.schedule == "cosine":
            return config.learning_rate * (1 + math.cos(math.pi * done)) / 2
        return config.learning_rate * _DECAY_OF_STEPS ** math.floor(3 * done)

    def _statistics(self) -> list[Tensor]:
        """Return the running means and variances, which every worker gathers on its own images."""
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides how the run goes on."""
        return {
            "config": self.config.to_dict(),
            "seed": self.seed,
            "step": self.step,
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another run with the same settings was.

        Raises:
            ValueError: If it had other settings or another seed.
        """
        for name, value in {"seed": self.seed, **self.config.to_dict()}.items():
            before = {"seed": state["seed"], **state["config"]}[name]
            if before != value:
                raise ValueError(f"it was trained with {name} = {before} and not {value}")
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.step = state["step"]


@contextmanager
def _quickest_kernels() -> Iterator[None]:
    """Let a GPU try which kernels are quickest: convolutions of few sizes last for long."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _on_device(images: NDArray[np.uint8], device: torch.device) -> Tensor | None:
    """Return all images on a device, or None where they would take more than half its memory."""
    if device.type == "cpu":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return torch.from_numpy(images).to(device) if images.nbytes < free / 2 else None

"""Training of a backbone by several workers, on Ray Train."""

from concurrent.futures import Future
from pathlib import Path
from queue import Empty
from threading import Thread
from typing import Any

import ray
from ray import train as ray_train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device
from ray.util.queue import Queue

from cpaan.representation.backbone_training import train_backbone
from cpaan.representation.config import BackboneConfig
from cpaan.study.cluster import ray_cluster
from cpaan.training.drive import Progress
from cpaan.training.workers import Workers

_MOST_FAILURES = 3  # of workers, after each of which all resume from the checkpoint
_SECONDS_BETWEEN_LOOKS = 0.5


def train_with_ray(
    folder: Path,
    num_classes: int,
    config: BackboneConfig,
    seed: int,
    *,
    num_workers: int,
    use_gpu: bool,
    progress: Progress,
) -> None:
    """Train on the images of a folder, each worker on its share of every step.

    Starts Ray, unless it runs already or ``RAY_ADDRESS`` names a cluster. All nodes of a cluster
    must see the folder. Each worker needs a CPU or, with ``use_gpu``, a GPU; other arguments are
    those of `train_backbone`.

    Raises:
        ValueError: If there are fewer CPUs or GPUs than workers, training diverges, or workers
            fail too often.
    """
    with ray_cluster(None, progress):
        kind = "GPU" if use_gpu else "CPU"
        available = int(ray.cluster_resources().get(kind, 0))
        if available < num_workers:
            raise ValueError(f"{num_workers} workers need a {kind} each, but there are {available}")
        news: Queue = Queue()
        trainer = TorchTrainer(
            _work,
            train_loop_config={
                "folder": folder.resolve(),
                "num_classes": num_classes,
                "config": config.to_dict(),
                "seed": seed,
                "news": news,
            },
            scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=use_gpu),
            run_config=RunConfig(
                name="backbone",
                storage_path=str(folder.resolve() / "ray"),
                failure_config=FailureConfig(max_failures=_MOST_FAILURES),
            ),
        )
        # Not waited for when we leave early: Ctrl-C, say, shuts Ray down, and that ends it.
        training: Future[None] = Future()
        Thread(target=_fit, args=(trainer, training), daemon=True).start()
        problem: str | None = None
        while not training.done() or not news.empty():
            try:
                is_problem, line = news.get(timeout=_SECONDS_BETWEEN_LOOKS)
            except Empty:
                continue
            if is_problem:
                problem = line
            else:
                progress(line)
        if problem is not None:
            raise ValueError(problem)
        if error := training.exception():
            reason = " ".join(str(error).split())
            raise ValueError(f"training on Ray failed: {reason}") from error


def _fit(trainer: TorchTrainer, training: Future[None]) -> None:
    try:
        trainer.fit()
        training.set_result(None)
    except BaseException as error:  # of whatever kind: who waits for it is told, if anybody does
        training.set_exception(error)


def _work(arguments: dict[str, Any]) -> None:
    """Train as one of the workers."""
    context = ray_train.get_context()
    workers = Workers(context.get_world_rank(), context.get_world_size())
    news: Queue = arguments["news"]

    def tell(line: str, is_problem: bool = False) -> None:
        if workers.rank == 0:
            news.put((is_problem, line))

    try:
        train_backbone(
            arguments["folder"],
            arguments["num_classes"],
            BackboneConfig(**arguments["config"]),
            arguments["seed"],
            device=get_device(),
            progress=tell,
            workers=workers,
        )
    # Reported, not raised: Ray would retry, and end the same way.
    except ValueError as error:
        tell(str(error), is_problem=True)

"""Train a backbone with several workers on Ray Train."""

from functools import partial
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.train.torch import get_device
from ray.util.queue import Queue

from cpaan.representation.backbone_training import train_backbone
from cpaan.representation.config import BackboneConfig
from cpaan.study.cluster import HEAD, ray_cluster
from cpaan.study.trial import run_workers, this_worker
from cpaan.training.drive import Progress

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
    """Train a backbone on the images of a folder; each worker computes a share of every step.

    Start Ray unless it is running or ``RAY_ADDRESS`` names a cluster. All nodes of a cluster need
    access to the folder. Each worker needs a CPU or, with ``use_gpu``, a GPU. Other arguments are
    those of `train_backbone`.

    Raises:
        ValueError: If there are fewer CPUs or GPUs than workers, training diverges, or workers
            fail too often.
    """
    with ray_cluster(None, progress):
        kind = "GPU" if use_gpu else "CPU"
        available = int(ray.cluster_resources().get(kind, 0))
        if available < num_workers:
            raise ValueError(
                f"{num_workers} workers need {num_workers} {kind}s, but Ray has {available}; use "
                "fewer --workers"
            )
        folder, news = folder.resolve(), Queue(actor_options={"num_cpus": 0})
        work = partial(_work, folder, num_classes, config, seed, news)
        # A separate process that ends with this one, so that Ctrl-C does not wait for training.
        task = ray.remote(run_workers).options(num_cpus=0, resources=HEAD)
        training = task.remote(work, num_workers, {kind: 1.0}, "backbone", str(folder / "ray"))
        problem, is_over = None, False
        while not is_over:
            is_over = bool(ray.wait([training], timeout=_SECONDS_BETWEEN_LOOKS)[0])
            for is_problem, line in news.get_nowait_batch(news.qsize()):
                if is_problem:
                    problem = line
                else:
                    progress(line)
        if problem is not None:
            raise ValueError(problem)
        try:
            ray.get(training)
        except RayError as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"training on Ray failed: {reason}") from error


def _work(folder: Path, num_classes: int, config: BackboneConfig, seed: int, news: Queue) -> None:
    """Train as one of the workers; rank 0 sends progress lines and errors."""
    workers = this_worker()

    def tell(line: str, is_problem: bool = False) -> None:
        if workers.rank == 0:
            news.put((is_problem, line))

    try:
        train_backbone(
            *(folder, num_classes, config, seed),
            device=get_device(),
            progress=tell,
            workers=workers,
        )
    # Report the error instead of raising it, because Ray would retry and fail the same way.
    except ValueError as error:
        tell(str(error), is_problem=True)

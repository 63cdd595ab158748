"""Run one trial as a function of Ray Tune, with Ray Train workers or in a single process."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from ray import train as ray_train
from ray import tune as ray_tune
from ray.train import FailureConfig, RunConfig, ScalingConfig, UserCallback
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util.metrics import Gauge

from cpaan.core.remote_paths import RemotePath, join
from cpaan.evaluation.job import EPISODE, Job, Report
from cpaan.evaluation.scoring import TOP5
from cpaan.study.cluster import check_this_machine, worker_resources
from cpaan.study.config import StudyConfig
from cpaan.study.job import run_study_job
from cpaan.study.ray_internals import without_superfluous
from cpaan.training.workers import ALONE, Workers

SCORE, CURVE, PROBLEM = "score", "curve", "problem"
MOST_FAILURES = 3
"""Maximum number of failures of a process; after each, its work resumes from the checkpoint."""


def run_trial(config: dict[str, Any]) -> None:
    """Run one trial as a function of Ray Tune.

    ``config`` has the job, the number of the trial, the settings of the study, and its storage.
    """
    if config["study"].uses_ray_train:
        train_with_workers(**config, callbacks=[TuneReportCallback()])
    else:
        _train(torch.device(config["job"].device), ALONE, ray_tune.report, **config)


def train_with_workers(
    job: Job,
    study: StudyConfig,
    storage: str,
    number: int = 0,
    callbacks: Sequence[UserCallback] = (),
) -> None:
    """Train a job with Ray Train and the number of workers per trial of its study."""
    assert job.checkpoint is not None, "jobs of a study have a checkpoint"
    file = RemotePath.at(job.checkpoint)
    run_workers(
        partial(_work, job=job, study=study, storage=storage, number=number),
        study.workers_per_trial,
        worker_resources(study),
        name=f"{job.method}-{file.parent.name}-{file.name.removesuffix('.pt')}",
        storage=join(storage, "ray/train"),
        callbacks=callbacks,
    )


def run_workers(
    work: Callable[[], None],
    num_workers: int,
    resources: dict[str, float],
    name: str,
    storage: str,
    callbacks: Sequence[UserCallback] = (),
) -> None:
    """Call a function in each of ``num_workers`` Ray Train workers with the given resources.

    The function has no ``train_loop_config``, because Train's controller would load it and import
    torch.

    Raises:
        ray.train.TrainingFailedError: If workers died more often than `MOST_FAILURES`.
    """
    num_gpus = resources.get("GPU", 0)
    _Trainer(
        work,
        # NCCL does not support two ranks on one GPU.
        torch_config=TorchConfig(backend="nccl" if num_gpus >= 1 else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=num_workers, use_gpu=num_gpus > 0, resources_per_worker=resources
        ),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            callbacks=list(callbacks),  # type: ignore[arg-type]  # mypy sees the older Train
            # Fail if the workers cannot start, instead of waiting forever.
            failure_config=FailureConfig(
                max_failures=MOST_FAILURES,
                controller_failure_limit=1,  # type: ignore[call-arg]  # here too
            ),
        ),
    ).fit()


class _Trainer(TorchTrainer):
    """A trainer with the callbacks that trials need; overrides a private method of Ray 2.60.0."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]  # here too
        return without_superfluous(callbacks)


def this_worker() -> Workers:
    """Return the rank of this Ray Train worker, and the number of workers."""
    context = ray_train.get_context()
    return Workers(context.get_world_rank(), context.get_world_size())


def _work(**config: Any) -> None:
    """Train as one of the workers."""
    _train(get_device(), this_worker(), ray_train.report, **config)
    # NCCL ends only after all CUDA graphs with its exchanges, which are in reference cycles.
    gc.collect()


def _train(
    device: torch.device,
    workers: Workers,
    tell: Callable[[dict[str, Any]], None],
    job: Job,
    study: StudyConfig,
    storage: str,
    number: int,
) -> None:
    """Train a job, and tell the metrics at every evaluation step; only rank 0 has any."""
    check_this_machine(storage)
    gauges = _Gauges(job.method, number) if workers.rank == 0 else None
    for report in run_study_job(job, device, workers):
        metrics = to_metrics(report, study) if gauges else {}
        if gauges:
            gauges.set(metrics)
        tell(metrics)


def to_metrics(report: Report, config: StudyConfig) -> dict[str, Any]:
    """Return a report as metrics for Ray Tune, which needs every name in every report."""
    nothing = {EPISODE: 0, **dict.fromkeys(TOP5, 0.0), "seconds": 0.0}
    last = report.curve[-1] if report.curve else nothing
    return {
        **last,
        SCORE: config.score(last),
        CURVE: list(report.curve),
        PROBLEM: report.problem,
        "losses": report.losses,
        "episodes_per_second": report.episodes_per_second,
    }


class _Gauges:
    """Prometheus metrics of a trial, in addition to Ray's own."""

    def __init__(self, row: str, number: int) -> None:
        self._tags = {"row": row, "trial": str(number)}
        keys = tuple(self._tags)
        self._gauges = {
            name: Gauge(f"cpaan_{name}", f"{name} of a trial", tag_keys=keys)
            for name in (SCORE, *TOP5, EPISODE, "episodes_per_second")
        }
        self._losses = Gauge("cpaan_loss", "a loss term of a trial", tag_keys=(*keys, "term"))

    def set(self, metrics: dict[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            if metrics[name] is not None:
                gauge.set(metrics[name], self._tags)
        for term, value in metrics["losses"].items():
            self._losses.set(value, {**self._tags, "term": term})

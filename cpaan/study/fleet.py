"""Trainings and their scores as Ray's work: as many at once as there is room for."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import ray
import torch

from cpaan.study.cluster import HEAD, worker_resources
from cpaan.study.job import run_job
from cpaan.study.trial import MOST_FAILURES, Trial, train_with_workers

Key = TypeVar("Key")


class JobFailedError(ValueError):
    """A training or its score ended in an error that would come again."""


def start(
    function: Callable[..., Any], trial: Trial, *arguments: Any, retrains: bool = True
) -> "ray.ObjectRef[Any]":
    """Train to the end what the storage has not, then call a function with the trial; at once.

    A single worker needs no Ray Train around it, which takes longer to start than a small training
    lasts; its outcome is the same. Several workers train as they do in a trial.

    Args:
        function: Called as ``function(trial, device, *arguments)`` on a machine that has the room.
        trial: What to train.
        arguments: Further ones.
        retrains: Whether there is anything to train at all.
    """
    study = trial.study
    needs = worker_resources(study)
    room = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)}
    trained = None
    if retrains and study.workers_per_trial > 1:
        together = ray.remote(_train_together)
        trained = together.options(num_cpus=0, resources=HEAD, max_retries=MOST_FAILURES).remote(
            trial
        )
    alone = ray.remote(_train_and_call)
    return alone.options(**room, max_retries=MOST_FAILURES).remote(
        function, trial, retrains and study.workers_per_trial == 1, trained, *arguments
    )


def collect(work: "dict[Key, ray.ObjectRef[Any]]") -> Iterator[tuple[Key, Any]]:
    """Yield what was started, as it ends: its result, or a `JobFailedError`."""
    key_of = {reference: key for key, reference in work.items()}
    left: list[Any] = list(key_of)
    while left:
        (done,), left = ray.wait(left, num_returns=1)
        try:
            result = ray.get(done)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            result = JobFailedError(" ".join(str(cause).split()))
        yield key_of[done], result


def _train_and_call(
    function: Callable[..., Any], trial: Trial, trains: bool, trained: None, *arguments: Any
) -> Any:
    device = torch.device("cuda" if trial.study.gpus_per_worker else "cpu")
    if trains:
        for report in run_job(trial.job, device):
            if report.problem:
                raise ValueError(report.problem)
    return function(trial, device, *arguments)


def _train_together(trial: Trial) -> None:
    train_with_workers(trial, [])

"""Trainings and their scores as Ray's work: as many at once as there is room for."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import ray
import torch

from cpaan.study.cluster import HEAD, worker_resources
from cpaan.study.job import is_trained, run_job
from cpaan.study.machines import check_this_machine
from cpaan.study.trial import MOST_FAILURES, Trial, train_with_workers

Key = TypeVar("Key")


class JobFailedError(ValueError):
    """A training or its score ended in an error that would come again."""


class WorkLostError(RuntimeError):
    """Machines or processes failed more often than is forgiven; to try again may well help."""


def start(
    function: Callable[..., Any], trial: Trial, *arguments: Any, retrains: bool = True
) -> "ray.ObjectRef[Any]":
    """Train to the end what the storage has not, then call a function with the trial.

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
        on_head = together.options(num_cpus=0, resources=HEAD, max_retries=MOST_FAILURES)
        trained = on_head.remote(trial)
    alone = ray.remote(_train_and_call)
    return alone.options(**room, max_retries=MOST_FAILURES).remote(
        function, trial, retrains and study.workers_per_trial == 1, trained, *arguments
    )


def collect(
    work: "Mapping[Key, Callable[[], ray.ObjectRef[Any]]]",
    num_at_once: int,
    deadline: float | None = None,
) -> Iterator[tuple[Key, Any]]:
    """Start work, some at a time, and yield what comes of it as it ends.

    Args:
        work: What starts each piece.
        num_at_once: Pieces at a time: what waits for room too long would be given up.
        deadline: Of the monotonic clock, when the rest is left undone; None: never.

    Yields:
        The key of a piece, with its result; or with a `JobFailedError`, or a `WorkLostError` if it
        failed for a reason that is not its own. Whoever stops at that loses what is running.
    """
    waiting = deque(work.items())
    running: dict[Any, Key] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_at_once:
                key, begin = waiting.popleft()
                running[begin()] = key
            seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
            done, _ = ray.wait(list(running), num_returns=1, timeout=seconds)
            if not done:
                return
            key = running.pop(done[0])
            yield key, _result_of(done[0], key)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _result_of(reference: Any, key: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        reason = " ".join(str(cause).split())
        if isinstance(cause, ValueError):
            return JobFailedError(reason)
        lost = WorkLostError(f"{key}: {reason}")
        lost.__cause__ = error  # for --traceback, should it be raised
        return lost


def _train_together(trial: Trial) -> None:
    """Train with Ray Train, which takes half a minute to start, if anything is left to train."""
    if not is_trained(trial.job):
        train_with_workers(trial, [])


def _train_and_call(
    function: Callable[..., Any], trial: Trial, trains: bool, trained: None, *arguments: Any
) -> Any:
    check_this_machine(trial.job.storage)
    device = torch.device("cuda" if trial.study.gpus_per_worker else "cpu")
    if trains:
        for report in run_job(trial.job, device):
            if report.problem:
                raise ValueError(report.problem)
    return function(trial, device, *arguments)

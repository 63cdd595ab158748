"""Ray, started here or elsewhere; what it has, and what a study needs of it."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from cpaan.study.config import StudyConfig

HEAD = {"node:__internal_head__": 0.001}
"""Resource of the processes that wait for others: the head always has it, and a CPU core would be
missing for the work. On a cluster, they stay on the machine that is not taken away."""

_SECONDS_TO_ANSWER = 10.0

_ENVIRONMENT = {
    # Ray's own variables reach its processes by this way alone.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",  # a report waits for the next one
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # Train runs are seen in the dashboard
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
}


@dataclass(frozen=True)
class Cluster:
    """A running Ray."""

    dashboard: str | None
    """Its address for a browser; None if there is none."""
    resources: dict[str, float]

    def check(self, study: StudyConfig) -> None:
        """Refuse a study that would wait for machines for ever.

        Raises:
            ValueError: With what is needed and what there is.
        """
        if study.gpus_per_worker:
            kind, each = "GPU", study.gpus_per_worker
        else:
            kind, each = "CPU", 1.0
        needed, there = study.workers_per_trial * each, self.resources.get(kind, 0.0)
        if needed > there:
            raise ValueError(
                f"a trial needs {needed:g} {kind}s ({study.workers_per_trial} workers with "
                f"{each:g} each), but Ray has {there:g}"
            )

    def most_trials_at_once(self, study: StudyConfig) -> int:
        """Return how many trials there is room for."""
        if study.gpus_per_worker:
            # Fractions of one card do not add up across cards.
            if study.gpus_per_worker < 1:
                slots = int(self.resources["GPU"]) * int(1 / study.gpus_per_worker + 1e-9)
            else:
                slots = int(self.resources["GPU"] // study.gpus_per_worker)
            slots = min(slots, int(self.resources["CPU"]))
        else:
            slots = int(self.resources["CPU"])
        return max(1, slots // study.workers_per_trial)


def worker_resources(study: StudyConfig) -> dict[str, float]:
    """Return what each worker of a trial has to itself."""
    if study.gpus_per_worker:
        return {"CPU": 1, "GPU": study.gpus_per_worker}
    return {"CPU": 1}


@contextmanager
def ray_cluster(address: str | None, progress: Callable[[str], None]) -> Iterator[Cluster]:
    """Start Ray on this machine, or connect to one that runs; leave it at the end.

    A Ray that this process is connected to already is used, and left as it is.

    Args:
        address: "host:port" or "auto"; None: ``RAY_ADDRESS`` if it is set, or a new Ray.
        progress: Called with a line about it.

    Raises:
        ValueError: If nothing answers at the address.
    """
    if ray.is_initialized():
        yield _describe(ray.init(ignore_reinit_error=True, logging_level=logging.ERROR))
        return
    address = address or os.environ.get("RAY_ADDRESS")
    if address is None:
        progress("starting Ray")
    else:
        _check_address(address)
        progress(f"connecting to Ray at {address}")
    options: dict[str, Any] = {
        "address": address or "local",
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": _ENVIRONMENT},
    }
    if address is None:
        # Without a dashboard, what a stopped trial held would never be given back.
        options["include_dashboard"] = True
        # A trial has many small processes: Ray would warn of them, and start them one by one.
        os.environ.setdefault("RAY_worker_maximum_startup_concurrency", "16")
    try:
        context = ray.init(**options)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"no Ray answers at {address or 'this machine'}: {reason}") from error
    try:
        yield _describe(context)
    finally:
        ray.shutdown()


def _describe(context: Any) -> Cluster:
    url = context.dashboard_url
    return Cluster(f"http://{url}" if url else None, ray.cluster_resources())


def _check_address(address: str) -> None:
    """Find out quickly whether anything listens at an address; Ray itself would ask for minutes."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address}: a study is no client; give host:port on a machine of the cluster, or "
            "submit it as a job"
        )
    if ":" not in address:
        return  # "auto": Ray knows at once
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER):
            pass
    except (OSError, ValueError) as error:
        raise ValueError(f"no Ray answers at {address}: {error}") from error

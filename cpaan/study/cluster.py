"""Start Ray or connect to a cluster, and check its resources and its storage for a study."""

import json
import logging
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

# Protobuf defines its classes at run time, where mypy does not find them.
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpaan.core.remote_paths import RemotePath
from cpaan.study.config import StudyConfig
from cpaan.study.placement_groups import sweeping_placement_groups

HEAD = {"node:__internal_head__": 0.001}
"""Resource for processes that only wait for others. It places them on the head node, which the
autoscaler never removes, and leaves all CPU cores to the workers."""

NODES = "CPAAN_NODES"
"""Environment variable of the head node. It lists the machines that the autoscaler can start, which
Ray does not report, as JSON such as ``[{"count": 8, "CPU": 4, "GPU": 1}]``."""

RAY = (sys.executable, "-m", "ray.scripts.scripts")
"""Ray's command line."""

MARK = ".machines/mark"
"""File in a storage. A machine that can read it has access to the same storage as the others."""

_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_BE_RAY = 30.0
_SECONDS_TO_CHECK = 120.0  # for a process to start on a new machine and to answer

_ENVIRONMENT = {
    # Ray's processes get Ray's own variables only from the runtime environment.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",  # a report waits for the next check
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # show Train runs in the dashboard
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
}

_START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
_SECONDS_TO_START, _SECONDS_TO_START_MACHINES = "300", "1800"

_OWN_ENVIRONMENT = {
    # Exit at once on Ctrl-C, because all results are already saved.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # our records have the same data and persist
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # our records have the errors
    "RAY_AIR_NEW_OUTPUT": "0",  # it would print its own tables
    # A trial has many small processes. By default, Ray warns about them and starts them in turn.
    "RAY_worker_maximum_startup_concurrency": "16",
}


@dataclass(frozen=True)
class Cluster:
    """A running Ray cluster."""

    dashboard: str | None
    """URL of the dashboard; None if Ray runs without one."""
    nodes: tuple[dict[str, float], ...]
    """Resources of each machine, including machines that the autoscaler can still start."""

    @property
    def announcement(self) -> str:
        """Line that tells the user where the dashboard is."""
        if self.dashboard is None:
            return "Ray runs without a dashboard"
        return f"Ray dashboard: {self.dashboard} (if it asks for a token: ray get-auth-token)"

    @property
    def num_gpus(self) -> float:
        """Number of GPUs on all machines."""
        return sum(node.get("GPU", 0.0) for node in self.nodes)

    def check(self, study: StudyConfig) -> None:
        """Refuse a study that would wait for resources forever.

        Raises:
            ValueError: If a trial does not fit, or early stopping lacks the dashboard.
        """
        num_slots = self._num_slots(study)
        if num_slots < study.workers_per_trial:
            raise ValueError(
                f"--workers-per-trial {study.workers_per_trial} with --gpus-per-worker "
                f"{study.gpus_per_worker:g}: Ray has room for {num_slots} of them; lower either"
            )
        if self.dashboard is None and study.early_stopping:
            raise ValueError(
                "Ray runs without a dashboard, which is needed to release the resources of stopped "
                "trials; start Ray with its dashboard, or use --no-early-stopping"
            )

    def most_trials_at_once(self, study: StudyConfig) -> int:
        """Return the number of trials that fit on the cluster."""
        return self._num_slots(study) // study.workers_per_trial

    def _num_slots(self, study: StudyConfig) -> int:
        """Return the number of workers that fit; none spans machines or fractions of two GPUs."""
        each = study.gpus_per_worker

        def room(node: dict[str, float]) -> int:
            slots, cards = int(node.get("CPU", 0.0)), node.get("GPU", 0.0)
            if each == 0:
                return slots
            of_cards = int(cards) * int(1 / each + 1e-9) if each < 1 else int(cards // each)
            return min(slots, of_cards)

        return sum(map(room, self.nodes))


def worker_resources(study: StudyConfig) -> dict[str, float]:
    """Return the resources that each worker of a trial reserves."""
    if study.gpus_per_worker:
        return {"CPU": 1, "GPU": study.gpus_per_worker}
    return {"CPU": 1}


@contextmanager
def ray_cluster(address: str | None, progress: Callable[[str], None]) -> Iterator[Cluster]:
    """Connect to the Ray at an address ("host:port" or "auto"), or else at ``RAY_ADDRESS``.

    Without either, start Ray on this machine. Disconnect at the end, unless this process was
    connected before.

    Raises:
        ValueError: If no Ray head node answers at the address.
    """
    for name, value in _OWN_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    is_ours = not ray.is_initialized()
    coming: tuple[dict[str, float], ...] = ()
    options: dict[str, Any] = {"ignore_reinit_error": True}
    if is_ours:
        address = address or os.environ.get("RAY_ADDRESS")
        coming = _coming_nodes() if address else ()
        if address is not None:
            _check_address(address)
        progress(f"connecting to Ray at {address}" if address else "starting Ray")
        timeout = _SECONDS_TO_START_MACHINES if coming else _SECONDS_TO_START
        options = {
            "address": address or "local",
            # Without a dashboard, Ray does not release the resources of stopped trials.
            "include_dashboard": None if address else True,
            "log_to_driver": False,
            "runtime_env": {"env_vars": {**_ENVIRONMENT, _START_TIMEOUT: timeout}},
        }
    try:
        context = ray.init(**options, logging_level=logging.ERROR)
    except (ConnectionError, TimeoutError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"cannot connect to Ray at {address or 'this machine'}: {reason}"
        ) from error
    try:
        with sweeping_placement_groups():
            yield _describe(context, coming)
    finally:
        if is_ours:
            ray.shutdown()


def _describe(context: Any, coming: tuple[dict[str, float], ...]) -> Cluster:
    url = context.dashboard_url
    nodes = tuple(dict(node["Resources"]) for node in ray.nodes() if node["Alive"])
    if coming:  # these include the running machines, except for the head
        nodes = (*(node for node in nodes if node.keys() & HEAD.keys()), *coming)
    return Cluster(f"http://{url}" if url else None, nodes)


def _coming_nodes() -> tuple[dict[str, float], ...]:
    """Return the resources of each machine that `NODES` lists; refuse any other value."""
    text = os.environ.get(NODES, "[]")
    try:
        return tuple(
            {name: float(amount) for name, amount in kind.items() if name != "count"}
            for kind in json.loads(text)
            for _ in range(int(kind["count"]))
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{NODES} is not a list of machines: {text}") from error


def _check_address(address: str) -> None:
    """Refuse an address without a Ray head node within seconds; Ray would retry for minutes."""
    if address.startswith("ray://"):
        raise ValueError(
            f"{address}: Ray Client cannot run a study; give host:port on a machine of the "
            "cluster, or submit the study as a job"
        )
    if ":" not in address:
        return  # "auto": Ray fails at once
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER):
            pass
        command = [*RAY, "health-check", "--address", address]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS_TO_BE_RAY)
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot connect to Ray at {address}: {error}") from error
    except subprocess.SubprocessError as error:
        raise ValueError(
            f"{address} is not a Ray head node of version {ray.__version__} (its port is 6379, not "
            "the dashboard's)"
        ) from error


def check_machines(location: str, say: Callable[[str], None]) -> None:
    """Check that every machine of the cluster can read from a storage and write to it.

    Leave a mark there, which machines that join later check with `check_this_machine`. If there
    are several machines, ``say`` is called with a line.

    Raises:
        ValueError: If some machines cannot; the message has their names and the reasons.
    """
    storage = RemotePath.at(location)
    storage.check_writable()
    mark = uuid.uuid4().hex.encode()
    (storage / MARK).write(mark)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) == 1:
        return
    say(f"checking that {len(nodes)} nodes share {location}")
    answers = []
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(_answer_there).options(num_cpus=0, scheduling_strategy=there)
        answers.append(task.remote(location, mark, f".machines/{node['NodeID']}"))
    problems = []
    for node, answer in zip(nodes, answers, strict=True):
        try:
            problem = ray.get(answer, timeout=_SECONDS_TO_CHECK)
        except RayError as error:
            problem = " ".join(str(error).split())[:200]
        written = storage / f".machines/{node['NodeID']}"
        if problem is None and written.read_if_exists() != mark:
            problem = "files that it writes are not visible on this node"
        if problem is not None:
            address = node["NodeManagerAddress"]
            problems.append(f"{node['NodeManagerHostname']} ({address}): {problem}")
        written.delete()
    if problems:
        raise ValueError(f"storage {location} is not shared by all nodes: {'; '.join(problems)}")


def check_this_machine(location: str) -> None:
    """Refuse to work on a machine without access to a study's storage; it may have joined late.

    If the head has access, this node takes no more work. It would otherwise fail trial after trial,
    because it is always the first that is free.

    Raises:
        RuntimeError: If it has no access. Ray may then retry on another machine.
    """
    problem = _problem_of(location)
    if problem is None:
        return
    if ray.is_initialized():
        here = ray.get_runtime_context().get_node_id()
        head = next(node["NodeID"] for node in ray.nodes() if HEAD.keys() & node["Resources"])
        # Not by its resource, because a task of a trial would wait for it in the trial's bundle.
        there = NodeAffinitySchedulingStrategy(head, soft=False)
        task = ray.remote(_problem_of).options(num_cpus=0, scheduling_strategy=there)
        if head != here and ray.get(task.remote(location)) is None:
            reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
            gcs = GcsClient(ray.get_runtime_context().gcs_address)
            gcs.drain_node(here, reason, problem, 0)
    raise RuntimeError(f"{socket.gethostname()} {problem}")


def _problem_of(location: str) -> str | None:
    """Return why this machine does not find the mark in a storage; None if it does."""
    try:
        is_found = (RemotePath.at(location) / MARK).is_file()
    except OSError as error:
        return f"cannot use the storage: {error}"
    return None if is_found else f"cannot find the study in {location}"


def _answer_there(location: str, mark: bytes, name: str) -> str | None:
    """Read the mark and write it back under a name; return the problem, if any."""
    try:
        storage = RemotePath.at(location)
        if (storage / MARK).read_if_exists() != mark:
            return "it cannot read files that other nodes write"
        (storage / name).write(mark)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return None

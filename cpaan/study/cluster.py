"""Start Ray or connect to a cluster, and check its resources and its storage for a study."""

import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpaan.core.remote_paths import RemotePath
from cpaan.study.config import StudyConfig
from cpaan.study.ray_internals import drain_node, started_ray, sweeping_placement_groups

HEAD = {"node:__internal_head__": 0.001}
"""Resource for processes that only wait for others. It places them on the head node, which the
autoscaler never removes, and leaves all CPU cores to the workers."""

NODES = "CPAAN_NODES"
"""Environment variable of the head node. It lists the machines that the autoscaler can start, which
Ray does not report, as JSON such as ``[{"count": 8, "CPU": 4, "GPU": 1}]``."""

LOCAL = "local"
"""Address of a new Ray on this machine."""

RAY = (sys.executable, "-m", "ray.scripts.scripts")
"""Ray's command line."""

MARK = ".machines/mark"
"""File in a storage. A machine that can read it has access to the same storage as the others."""

_SECONDS_TO_ANSWER = 10.0
_SECONDS_TO_BE_RAY = 30.0
_MAX_REASON = 300  # characters of an error of Ray, which may have parts of a log
_SECONDS_TO_CHECK = 120.0  # for a process to start on a new machine and to answer

_ENVIRONMENT = {
    # Ray's processes get Ray's own variables only from the runtime environment.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.3",  # a report waits for the next check
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # show Train runs in the dashboard
    # A process per trial. Ray Train recognises announced losses of machines without it.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
    # A process whose last trial takes longer to stop is not reused, and the next trial fails.
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "60",
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
            ValueError: If a trial does not fit.
        """
        num_slots = self._num_slots(study)
        if num_slots < study.workers_per_trial:
            raise ValueError(
                f"--workers-per-trial {study.workers_per_trial} with --gpus-per-worker "
                f"{study.gpus_per_worker:g}: Ray has room for {num_slots} of them; lower either"
            )

    def most_trials_at_once(self, study: StudyConfig) -> int:
        """Return the number of trials that fit on the cluster."""
        return self._num_slots(study) // study.workers_per_trial

    def _num_slots(self, study: StudyConfig) -> int:
        """Return the number of workers that fit; none spans machines or fractions of two GPUs."""
        share = study.gpus_per_worker

        def room(node: dict[str, float]) -> int:
            cores, gpus = int(node.get("CPU", 0.0)), node.get("GPU", 0.0)
            if share == 0:
                return cores
            of_gpus = int(gpus) * int(1 / share + 1e-9) if share < 1 else int(gpus // share)
            return min(cores, of_gpus)

        return sum(map(room, self.nodes))


def worker_resources(study: StudyConfig) -> dict[str, float]:
    """Return the resources that each worker of a trial reserves."""
    if study.gpus_per_worker:
        return {"CPU": 1, "GPU": study.gpus_per_worker}
    return {"CPU": 1}


@contextmanager
def ray_cluster(address: str | None, progress: Callable[[str], None]) -> Iterator[Cluster]:
    """Connect to the Ray at an address ("host:port" or "auto"), or else at ``RAY_ADDRESS``.

    Without either, connect to the Ray that ``ray start`` has started on this machine, or else start
    one; the address "local" always starts one. Say which. Disconnect at the end, unless this
    process was connected before.

    Raises:
        ValueError: If no Ray head node answers at the address, Ray cannot start, or this process is
            connected to a Ray at another address.
    """
    for name, value in _OWN_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    is_ours = not ray.is_initialized()
    try:
        cluster = _connect(address, progress) if is_ours else _connected(address)
        with sweeping_placement_groups():
            yield cluster
    finally:
        if is_ours:
            ray.shutdown()


def _connect(address: str | None, progress: Callable[[str], None]) -> Cluster:
    """Connect to the Ray that `_choose` returns, or start one."""
    address = _choose(address, progress)
    coming = () if address == LOCAL else _coming_nodes()
    timeout = _SECONDS_TO_START_MACHINES if coming else _SECONDS_TO_START
    try:
        context = ray.init(
            address,
            include_dashboard=True if address == LOCAL else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={
                "env_vars": {**_ENVIRONMENT, _START_TIMEOUT: timeout},
                "worker_process_setup_hook": _new_hook(),
            },
        )
        return _describe(context, coming)
    # Ray raises plain exceptions, for example for a process that dies during the start.
    except Exception as error:
        where = address or "this machine"
        action = "start Ray" if address == LOCAL else f"connect to Ray at {where}"
        reason = textwrap.shorten(str(error), _MAX_REASON, placeholder=" ...")
        raise ValueError(f"cannot {action}: {reason}") from error


def _connected(address: str | None) -> Cluster:
    """Return the cluster that this process is connected to; refuse the address of another one."""
    if address and ":" in address:  # not "local" or "auto"
        _check_address(address, {})
        connected = ray.get_runtime_context().gcs_address
        if address != connected:
            raise ValueError(
                f"cannot use Ray at {address}: this process is connected to Ray at {connected}"
            )
    return _describe(ray.init(ignore_reinit_error=True, logging_level=logging.ERROR), ())


def _choose(address: str | None, progress: Callable[[str], None]) -> str | None:
    """Return the address for `ray.init`, None for the Ray of ``ray start``, and say which it is."""
    named = address or os.environ.get("RAY_ADDRESS")
    if named and named != LOCAL:
        _check_address(named, {})
        progress(f"connecting to Ray at {named}{'' if address else ' (RAY_ADDRESS)'}")
        return named
    if not named and (started := started_ray(os.getuid())):
        running, variables = started
        with suppress(ValueError):  # that Ray has ended without `ray stop`
            _check_address(running, variables)
            progress(f"using the running Ray at {running} (--address local starts another)")
            return None
    progress("starting Ray on this machine")
    return LOCAL


def _new_hook() -> Callable[[], None]:
    """Return a function that tells a worker process the address of its own Ray.

    Ray Train's state actor asks the Ray at ``RAY_ADDRESS``, or else the one of this machine,
    whether a trial is alive (Ray 2.60). The query fails if two of them run here.
    """

    # A nested function, which Ray sends as code. For another one, workers would import this module.
    def use_own_ray() -> None:
        import os

        import ray

        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address

    return use_own_ray


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


def _check_address(address: str, defaults: Mapping[str, str]) -> None:
    """Refuse an address without a Ray head node within seconds; Ray would retry for minutes.

    ``defaults`` are variables for Ray that the environment may not have.
    """
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
        subprocess.run(
            command,
            env={**defaults, **os.environ},
            check=True,
            capture_output=True,
            timeout=_SECONDS_TO_BE_RAY,
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot connect to Ray at {address}: {error}") from error
    except subprocess.SubprocessError as error:
        raise ValueError(
            f"{address} is not a Ray head node of version {ray.__version__} (its port is 6379, not "
            "the dashboard's), or it needs a token: export RAY_AUTH_MODE=token"
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
            # Starting the task takes seconds, after which a storage that failed may be back.
            problem = _problem_of(location)
            if problem is None:
                return
            drain_node(here, problem)
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

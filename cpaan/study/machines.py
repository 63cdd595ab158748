"""Check that all machines of a cluster have access to the shared storage."""

import socket
import uuid
from collections.abc import Callable

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpaan.core.remote_paths import RemotePath

MARK = ".machines/mark"
"""File in a storage. A machine that can read it has access to the same storage as the others."""
_SECONDS = 120.0  # for a process to start on a new machine and to answer


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
    say(f"checking that {len(nodes)} machines share {location}")
    answers = []
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(_answer_there).options(num_cpus=0, scheduling_strategy=there)
        answers.append(task.remote(location, mark, f".machines/{node['NodeID']}"))
    problems = []
    for node, answer in zip(nodes, answers, strict=True):
        try:
            problem = ray.get(answer, timeout=_SECONDS)
        except RayError as error:
            problem = " ".join(str(error).split())[:200]
        written = storage / f".machines/{node['NodeID']}"
        if problem is None and written.read_if_exists() != mark:
            problem = "what it writes is not seen here"
        if problem is not None:
            address = node["NodeManagerAddress"]
            problems.append(f"{node['NodeManagerHostname']} ({address}): {problem}")
        written.delete()
    if problems:
        raise ValueError(f"storage {location} is not shared by all machines: {'; '.join(problems)}")


def check_this_machine(location: str) -> None:
    """Refuse to work on a machine without access to a study's storage; it may have joined late.

    Raises:
        RuntimeError: If it has no access. Ray may then retry on another machine.
    """
    if not (RemotePath.at(location) / MARK).is_file():
        raise RuntimeError(f"{socket.gethostname()} does not see the study in {location}")


def _answer_there(location: str, mark: bytes, name: str) -> str | None:
    """Read the mark and write it back under a name; return the problem, if any."""
    try:
        storage = RemotePath.at(location)
        if (storage / MARK).read_if_exists() != mark:
            return "it does not see what is written elsewhere"
        (storage / name).write(mark)
    except (OSError, ValueError) as error:
        return " ".join(str(error).split())
    return None

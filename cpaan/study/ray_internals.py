"""Everything that imports Ray's private modules, which are those of Ray 2.60.0.

Check it with every new version. The docstring of a function says why a public one does not do.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import ActorID, PlacementGroupID
from ray._common.utils import get_ray_address_file
from ray._private.services import psutil  # type: ignore[attr-defined]  # Ray includes it
from ray._private.state import state

# mypy does not find classes that are compiled, or that protobuf defines at run time.
from ray._raylet import AuthenticationTokenLoader, GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]
from ray.core.generated.gcs_pb2 import (  # type: ignore[attr-defined]
    ActorTableData,
    PlacementGroupTableData,
)
from ray.util.placement_group import PlacementGroup, remove_placement_group

_SECONDS_BETWEEN_SWEEPS = 3.0


def started_ray(user: int) -> tuple[str, dict[str, str]] | None:
    """Return the address of the Ray that ``ray start`` has started here, which may have ended.

    Also return the variables that a health check needs: for this Ray, `ray.init` uses a token if
    there is one, and does not tell. None if there is no file with the address, or if it does not
    belong to the user with this number, because code is sent to the Ray that it names.
    """
    file = Path(get_ray_address_file(None))
    if not file.exists() or file.stat().st_uid != user:
        return None
    has_token = AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    return file.read_text().strip(), {"RAY_AUTH_MODE": "token"} if has_token else {}


def drain_node(node: str, reason: str) -> None:
    """Let a node take no more work; Ray has no function for it that is public."""
    preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    GcsClient(ray.get_runtime_context().gcs_address).drain_node(node, preemption, reason, 0)


def is_port_of_ssh(port: int) -> bool:
    """Return whether an ssh process of this user listens on a port of this machine.

    It need not be a child of this one, because all connections to a machine share one process.
    Ray includes psutil, which we would otherwise have to install.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is not ours
            if process.name() == "ssh" and process.uids().real == os.getuid():
                for connection in process.net_connections("tcp"):
                    if connection.status == "LISTEN" and connection.laddr.port == port:
                        return True
    return False


def without_superfluous(callbacks: Sequence[Any]) -> list[Any]:
    """Leave out two of Ray Train's callbacks, whose processes on the head node trials do not need.

    One removes the placement group of a dead trial, as `sweeping_placement_groups` does for all
    trials. The other shares Ray datasets among workers. No setting turns them off.
    """
    # Not at the top, because most processes do not need Ray Train, which takes a second to import.
    from ray.train.v2._internal.callbacks import datasets
    from ray.train.v2._internal.callbacks import placement_group_callback as groups

    superfluous = (datasets.DatasetsCallback, groups.PlacementGroupCleanerCallback)
    return [callback for callback in callbacks if not isinstance(callback, superfluous)]


@contextmanager
def sweeping_placement_groups() -> Iterator[None]:
    """Call `remove_orphans` every few seconds in a thread, until the block ends.

    Nothing else frees the cores of a trial that is stopped, and the next one would wait for them
    until the job ends. Ray Train's own cleaner (2.60), which trials do not use, takes a process per
    trial and misses groups whose workers have not started.
    """
    is_over = threading.Event()

    def sweep() -> None:
        while not is_over.wait(_SECONDS_BETWEEN_SWEEPS):
            # A lost connection is reported where the study uses it.
            with suppress(ray.exceptions.RayError, RuntimeError):
                remove_orphans()

    thread = threading.Thread(target=sweep, name="placement groups", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def remove_orphans() -> int:
    """Remove placement groups of dead actors of this job, and of jobs that have ended.

    Ray reserves their cores until the job ends. Groups that the driver has created stay, including
    those of Ray Tune. The public table of groups does not name their creators.

    Returns:
        The number of groups of this job's actors, dead or alive, that are not removed yet.
    """
    this_job, count = ray.get_runtime_context().get_job_id(), 0
    ended = {job["JobID"] for job in state.job_table() if job["IsDead"]}
    accessor = state._connect_and_get_accessor()
    for content in accessor.get_placement_group_table():
        group = PlacementGroupTableData.FromString(content)
        creator = ActorID(group.creator_actor_id)  # nil for groups of the driver
        job, is_removed = group.creator_job_id.hex(), group.state == PlacementGroupTableData.REMOVED
        if creator.is_nil() or is_removed or group.is_detached or job not in {this_job, *ended}:
            continue
        count += job == this_job
        # Ray removes groups of ended jobs and marks those of dead actors, but not if it learns of a
        # group after the end or the death.
        actor = ActorTableData.FromString(accessor.get_actor_info(creator) or b"")
        if actor.state == ActorTableData.DEAD or not actor.actor_id:
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))
    return count

"""Remove placement groups whose creator has died; Ray reserves their cores until the job ends."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray import ActorID, PlacementGroupID
from ray._private.state import state

# Protobuf defines its classes at run time, where mypy does not find them.
from ray.core.generated.gcs_pb2 import (  # type: ignore[attr-defined]
    ActorTableData,
    PlacementGroupTableData,
)
from ray.util.placement_group import PlacementGroup, remove_placement_group

_SECONDS_BETWEEN_SWEEPS = 3.0


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
            try:
                remove_orphans()
            except (ray.exceptions.RayError, RuntimeError):
                continue  # a lost connection is reported where the study uses it

    thread = threading.Thread(target=sweep, name="placement groups", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def remove_orphans() -> int:
    """Remove placement groups of dead actors of this job, and of jobs that have ended.

    Groups that the driver has created stay, including those of Ray Tune.

    Returns:
        The number of groups of this job's actors, dead or alive, that are not removed yet.
    """
    own, count = ray.get_runtime_context().get_job_id(), 0
    ended = {job["JobID"] for job in state.job_table() if job["IsDead"]}
    accessor = state._connect_and_get_accessor()
    for content in accessor.get_placement_group_table():
        group = PlacementGroupTableData.FromString(content)
        creator = ActorID(group.creator_actor_id)  # nil for groups of the driver
        job, is_removed = group.creator_job_id.hex(), group.state == PlacementGroupTableData.REMOVED
        if creator.is_nil() or is_removed or group.is_detached or job not in {own, *ended}:
            continue
        count += job == own
        # Ray removes groups of ended jobs and marks those of dead actors, but not if it learns of a
        # group after the end or the death.
        actor = ActorTableData.FromString(accessor.get_actor_info(creator) or b"")
        if actor.state == ActorTableData.DEAD or not actor.actor_id:
            remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))
    return count

"""Cores that a dead process has reserved are free again."""

import pytest
import ray
from ray.util import placement_group, placement_group_table, remove_placement_group

from helpers.waiting import wait_for

pytestmark = pytest.mark.ray


@ray.remote(num_cpus=0)
class Creator:
    """Reserves cores, and dies."""

    def reserve(self, num_groups: int) -> list[str]:
        groups = [placement_group([{"CPU": 1}]) for _ in range(num_groups)]
        return [group.id.hex() for group in groups]


def state_of(group: str) -> str:
    return placement_group_table()[group]["state"]


def test_groups_of_a_dead_actor_are_removed_and_those_of_the_driver_stay(two_cpus):
    """Of three groups that an actor makes on two cores, one or more are pending."""
    own = placement_group([{"CPU": 1}])
    ray.get(own.ready())
    creator = Creator.remote()
    others = ray.get(creator.reserve.remote(3))

    ray.kill(creator)

    wait_for(
        lambda: all(state_of(group) == "REMOVED" for group in others),
        60,
        lambda: str(placement_group_table()),
    )
    assert state_of(own.id.hex()) == "CREATED"
    remove_placement_group(own)

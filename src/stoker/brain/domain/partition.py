"""Partition: a named node selection with a default and a longest time limit for its jobs."""

from collections.abc import Mapping

import msgspec

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.where import ANYWHERE, Where, both


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A named node selection with limits for its jobs, in milliseconds."""

    name: PartitionName
    where: Where = ANYWHERE
    time_default_ms: int = 0
    """Given to its jobs that name no time limit. 0 = the policy's default."""
    time_max_ms: int = 0
    """A longer time limit is refused at submit. 0 = the policy's bound."""
    comment: str = ""


def selection(partitions: Mapping[PartitionName, Partition], where: Where, name: PartitionName) -> Where:
    """Return what a job selects by itself and through its partition; a partition that is gone adds nothing."""
    found = partitions.get(name)
    return where if found is None else both(found.where, where)


def time_default_ms(partition: Partition | None, policy: Policy) -> int:
    """Return the time limit in milliseconds of a job that names none; never above the longest of its partition."""
    if partition is None:
        return policy.time_limit_default_ms
    longest = partition.time_max_ms or policy.time_limit_max_ms
    return partition.time_default_ms or min(policy.time_limit_default_ms, longest)

"""Partition: a named node selection with a default and a longest time limit for its jobs."""

from collections.abc import Mapping

import msgspec

from stoker.brain.domain.demand import Shape
from stoker.brain.domain.ids import PartitionName, TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.tenant import Tenant, nodes_allowed
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


def selection(
    partitions: Mapping[PartitionName, Partition], tenants: Mapping[TenantName, Tenant], shape: Shape
) -> Where:
    """Return the selection of nodes on which jobs of a shape may run: their own, their partition's and their tenant's.

    A partition or a tenant that is gone adds nothing.
    """
    found = partitions.get(shape.partition)
    where = shape.where if found is None else both(found.where, shape.where)
    return both(nodes_allowed(tenants, shape.tenant), where)


def time_default_ms(partition: Partition | None, policy: Policy) -> int:
    """Return the time limit in milliseconds of a job that names none; never above the longest of its partition."""
    if partition is None:
        return policy.time_limit_default_ms
    longest = partition.time_max_ms or policy.time_limit_max_ms
    return partition.time_default_ms or min(policy.time_limit_default_ms, longest)

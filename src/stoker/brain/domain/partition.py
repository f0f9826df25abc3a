"""What is a partition?"""

from collections.abc import Mapping

import msgspec

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.where import ANYWHERE, Where, both


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A named `where` with defaults and limits. Units: milliseconds."""

    name: PartitionName
    where: Where = ANYWHERE
    time_default_ms: int = 0
    """Given to its jobs that name no limit. 0 = the policy's default."""
    time_max_ms: int = 0
    """A longer wish is refused at submit. 0 = the policy's bound."""
    comment: str = ""


def selection(partitions: Mapping[PartitionName, Partition], where: Where, name: PartitionName) -> Where:
    """What a job selects by itself and through its partition. One that is gone adds nothing."""
    found = partitions.get(name)
    return where if found is None else both(found.where, where)

"""Facts about partitions."""

import msgspec

from stoker.brain.domain.ids import PartitionName
from stoker.brain.domain.partition import Partition


class PartitionDefined(msgspec.Struct, frozen=True, kw_only=True, tag="partition_defined"):
    """A partition was made, or replaced whole. Jobs that are in already keep their time limits."""

    partition: Partition


class PartitionDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="partition_deleted"):
    """No job that hasn't ended names it."""

    name: PartitionName


PartitionEvent = PartitionDefined | PartitionDeleted

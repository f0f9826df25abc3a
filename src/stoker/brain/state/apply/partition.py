"""Application of events about partitions to the state."""

from typing import assert_never

from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.partition import PartitionDefined, PartitionDeleted, PartitionEvent


def apply_partition(state: ClusterState, event: PartitionEvent) -> None:
    match event:
        case PartitionDefined():
            state.partitions[event.partition.name] = event.partition
        case PartitionDeleted():
            del state.partitions[event.name]
        case _:
            assert_never(event)

"""Application of events about epochs and policy to the state."""

from typing import assert_never

from msgspec.structs import replace

from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.events.leadership import (
    ClockMoved,
    ClusterCreated,
    ClusterRestored,
    EpochBegan,
    LeadershipEvent,
    PolicySet,
)


def apply_leadership(state: ClusterState, event: LeadershipEvent) -> None:
    match event:
        case ClusterCreated():
            assert not state.cluster_id, f"created twice: {state.cluster_id} and {event.cluster_id}"
            state.cluster_id = event.cluster_id
        case EpochBegan():
            assert event.epoch > state.epoch, f"epoch {event.epoch} after {state.epoch}"
            state.epoch = event.epoch
            if event.counts_usage:
                state.decayed_usage.begin(state.indexes.usage_ledger.by_tenant)
            _await_nodes(state)
        case PolicySet():
            state.put_policy(event.policy)
        case ClusterRestored():
            assert event.next_job_id >= state.next_job_id, f"job {event.next_job_id} would not be a new one"
            state.next_job_id = event.next_job_id
        case ClockMoved():
            state.clock_moved_ms += event.by_ms
        case _:
            assert_never(event)


def _await_nodes(state: ClusterState) -> None:
    """Whoever leads now has heard of none of them yet."""
    for node in tuple(state.nodes.values()):
        if node.returned and not node.forgotten:
            state.put_node(replace(node, returned=False))

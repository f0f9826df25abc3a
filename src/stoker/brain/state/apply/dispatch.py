"""Application of events to the state.

Every event enters here: position and time are kept, and the event goes to the module of its noun.
"""

from typing import assert_never

from stoker.brain.domain.ids import Position
from stoker.brain.domain.units import later
from stoker.brain.state.apply.access import apply_access
from stoker.brain.state.apply.job import apply_job
from stoker.brain.state.apply.leadership import apply_leadership
from stoker.brain.state.apply.node import apply_node
from stoker.brain.state.apply.partition import apply_partition
from stoker.brain.state.apply.secret import apply_secret
from stoker.brain.state.apply.tenant import apply_tenant
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import Fact
from stoker.brain.state.events.access import AccessEvent
from stoker.brain.state.events.job import JobEvent
from stoker.brain.state.events.leadership import ClockMoved, LeadershipEvent
from stoker.brain.state.events.node import NodeEvent
from stoker.brain.state.events.partition import PartitionEvent
from stoker.brain.state.events.secret import SecretEvent
from stoker.brain.state.events.tenant import TenantEvent


def apply(state: ClusterState, fact: Fact, position: Position) -> None:
    """Apply the fact that stands at `position` of the log, which must be the next one."""
    assert position == state.position + 1, f"event {position} applied to a state at {state.position}"
    assert fact.at >= state.last_at, f"event {position} of {fact.at} is older than its predecessor of {state.last_at}"
    event = fact.event
    moved_ms = state.clock_moved_ms + (event.by_ms if isinstance(event, ClockMoved) else 0)
    state.decayed_usage.advance(later(fact.at, -moved_ms))
    if isinstance(event, JobEvent):
        apply_job(state, event, fact.at, fact.by)
    elif isinstance(event, NodeEvent):
        apply_node(state, event, fact.at)
    elif isinstance(event, PartitionEvent):
        apply_partition(state, event)
    elif isinstance(event, TenantEvent):
        apply_tenant(state, event)
    elif isinstance(event, AccessEvent):
        apply_access(state, event, fact.at, fact.by)
    elif isinstance(event, SecretEvent):
        apply_secret(state, event, fact.at, fact.by)
    elif isinstance(event, LeadershipEvent):
        apply_leadership(state, event)
    else:
        assert_never(event)
    state.position = position
    state.last_at = fact.at

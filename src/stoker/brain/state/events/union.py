"""Closed union of every kind of event that `apply` knows."""

from typing import Any

from stoker.brain.state.events.access import AccessEvent
from stoker.brain.state.events.job import JobEvent
from stoker.brain.state.events.leadership import LeadershipEvent
from stoker.brain.state.events.node import NodeEvent
from stoker.brain.state.events.partition import PartitionEvent
from stoker.brain.state.events.row import Row
from stoker.brain.state.events.secret import SecretEvent
from stoker.brain.state.events.tenant import TenantEvent

Event = JobEvent | NodeEvent | PartitionEvent | TenantEvent | AccessEvent | SecretEvent | LeadershipEvent


def row_of(event: Event) -> Row[Any]:
    """The row of the event's kind."""
    return event.row

"""Every kind of fact, in one closed union: what `apply` must know how to apply."""

from stoker.brain.state.events.access import AccessEvent
from stoker.brain.state.events.job import JobEvent
from stoker.brain.state.events.leadership import LeadershipEvent
from stoker.brain.state.events.node import NodeEvent
from stoker.brain.state.events.partition import PartitionEvent
from stoker.brain.state.events.tenant import TenantEvent

Event = JobEvent | NodeEvent | PartitionEvent | TenantEvent | AccessEvent | LeadershipEvent

"""A cluster whose nodes keep leases, and how one of them falls silent for good."""

from typing import Final

from stoker.brain.domain.ids import CONTROL, NodeName
from stoker.brain.domain.policy import Policy, surely_over_ms
from stoker.brain.state.commands import LoseSilent, NodeSilent
from stoker.brain.state.events.union import Event
from tests.brain.state.story import Story

LEASE_MS: Final = 600_000
OVER_MS: Final = surely_over_ms(LEASE_MS)
N1, N2 = NodeName("n1"), NodeName("n2")


def leased(lease_ms: int = LEASE_MS, *nodes: str, **policy: int) -> Story:
    """A cluster whose nodes keep leases."""
    story = Story(Policy(attempt_lease_ms=lease_ms, **policy))
    for name in nodes or ("n1", "n2"):
        story.node(name, 4, leases=True)
    return story


def lose(story: Story, name: str, silent_ms: int = OVER_MS) -> tuple[Event, ...]:
    """The node is unreachable, and wasn't heard of for so long."""
    story.do(NodeSilent(by=CONTROL, node=NodeName(name)))
    return story.do(LoseSilent(by=CONTROL, node=NodeName(name), silent_ms=silent_ms))

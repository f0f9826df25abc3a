"""Health of a node as a whole, drawn from its own faults, its pause and the conditions of its GPUs.

It says what a node is by itself. A person's drain is none of it, and nothing here ends one.
"""

from typing import Final, NamedTuple

from stoker.brain.domain.gpu import index_text
from stoker.brain.domain.health import HealthState
from stoker.brain.domain.node import Node
from stoker.brain.domain.units import counted

CLOCK_OFF_MS: Final = 5_000
"""From which on a node's clock is called wrong: more than any network delays a heartbeat, and less than what makes
certificates, tokens and the times in logs useless."""


class HealthOfNode(NamedTuple):
    """State of the health of a node, and why."""

    state: HealthState
    reasons: tuple[str, ...] = ()
    """In words, the gravest first."""


def node_health(node: Node, clock_ahead_ms: int = 0) -> HealthOfNode:
    """Return the health of a node. `clock_ahead_ms`: as its heartbeats say."""
    drained = [node.inventory.fault] if node.inventory.fault else []
    if node.drain is not None and node.drained_by.startswith("node:"):
        drained.append(node.drain)
    repairing = [f"starts failed there: {node.pause.error}"] if node.pause else []
    out = [each for each in node.inventory.conditions if not each.offered]
    suspect = [f"{counted(len(out), 'GPU')} drained: {out[0].reason}"] if out else []
    if node.inventory.gpu_fault and not out:
        suspect.append(f"not every GPU can be read: {node.inventory.gpu_fault}")
    suspect += [f"GPU {index_text(each.index)}: {each.reason}" for each in node.inventory.conditions if each.offered]
    if abs(clock_ahead_ms) > CLOCK_OFF_MS:
        way = "ahead" if clock_ahead_ms > 0 else "behind"
        suspect.append(f"its clock is {abs(clock_ahead_ms) / 1_000:.0f} s {way}")
    reasons = (*drained, *repairing, *suspect)
    if drained:
        return HealthOfNode(HealthState.DRAINED, reasons)
    if repairing:
        return HealthOfNode(HealthState.REPAIRING, reasons)
    return HealthOfNode(HealthState.SUSPECT if suspect else HealthState.HEALTHY, reasons)

"""Liveness of nodes: how long each has been silent, and the reports of those silent for too long.

Silence is counted in time during which this process was awake, listening and active, never in wall time: if the check
itself comes late (we were stopped, starved or busy), the lateness is nobody's silence. So what is counted here is never
longer than the time since a node's last word, on a clock that runs as the nodes' clocks do.

Rules: V1  a node silent for `unreachable_after_s` is reported `NodeSilent`, and for how long it was silent; nothing of
           its work ends for that
       V2  a report of an unreachable node, on a stream whose inventory was compared, is `NodeResponded`
       V3  a closed stream is not silence: only time is
       V4  after a start or a take-over silence is counted anew, and until a node was heard for the first time it has
           as long beside `unreachable_after_s` as agents pause at most before they try again
       V5  an unreachable node whose silence has outlasted the lease of an attempt there is reported `LoseSilent`; a
           take-over, a start and any lateness of ours only make that later
"""

from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, NodeName, node_principal
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.state.commands import LoseSilent, NodeResponded, NodeSilent
from stoker.brain.state.leases import overdue
from stoker.control.committer import Committer
from stoker.control.control_ports import ControlPorts

CHECKS_PER_LIMIT: Final = 15
LATENESS_S: Final = 0.25
"""A check this much late is ordinary on a busy machine; anything beyond counts as our own absence."""
RETURN_S: Final = 30.0
"""The longest pause of an agent before it tries again to reach a control plane."""


class Liveness:
    """Times at which nodes were last heard, on this process's own clock."""

    def __init__(self, committer: Committer, ports: ControlPorts, *, unreachable_after_s: float) -> None:
        self._committer = committer
        self._clock = ports.clock
        self._telemetry = ports.telemetry
        self._limit_s = unreachable_after_s
        self._check_s = unreachable_after_s / CHECKS_PER_LIMIT
        self._awake_s = 0.0
        """How long we have been listening, as of `_counted_at`."""
        self._counted_at = self._clock.mono()
        self._heard_s: dict[NodeName, float] = {}
        self._greeted: dict[NodeName, None] = {}
        """Nodes that have given a sign of life since `begin`."""

    def begin(self) -> None:
        """Count silence anew, since this control plane has just become active (V4)."""
        self._awake_s = 0.0
        self._counted_at = self._clock.mono()
        self._heard_s.clear()
        self._greeted.clear()

    def note(self, node: NodeName) -> None:
        """Note that `node` has just given a sign of life."""
        self._heard_s[node] = self._awake_s + self._since_check_s()
        self._greeted[node] = None

    def heard(self, node: NodeName) -> None:
        """Note a report on a stream whose inventory was compared, and let its node be used again (V2)."""
        self.note(node)
        known = self._committer.state.nodes.get(node)
        if known is not None and not known.reachable and not known.forgotten:
            self._committer.tell(NodeResponded(by=node_principal(node), node=node))

    def silence_s(self, node: NodeName) -> float:
        """Return for how many seconds `node` has been silent while we listened."""
        return self._awake_s + self._since_check_s() - self._heard_s.get(node, 0.0)

    async def run(self) -> None:
        """Check until cancelled, or until the writer has stopped."""
        while not self._committer.failed.is_set():
            await self._clock.sleep(self._check_s)
            late_s = self._clock.mono() - self._counted_at - self._check_s
            if late_s > max(LATENESS_S, self._check_s):
                self._telemetry.warn("liveness_check_late", late_s=round(late_s, 2))
            self._awake_s += self._since_check_s()
            self._counted_at = self._clock.mono()
            self._check()

    def _since_check_s(self) -> float:
        return min(self._clock.mono() - self._counted_at, self._check_s + LATENESS_S)

    def _check(self) -> None:
        state = self._committer.state
        for node in list(state.nodes.values()):
            if node.forgotten:
                continue
            silence_s = self._awake_s - self._heard_s.get(node.name, 0.0)
            silent_ms = int(silence_s * SECOND_MS)
            if node.reachable:
                if silence_s > self._patience_s(node.name):
                    self._report(NodeSilent(by=CONTROL, node=node.name, silent_ms=silent_ms), silence_s)
            elif node.name in state.indexes.held and overdue(state, node.name, silent_ms):  # V5
                self._report(LoseSilent(by=CONTROL, node=node.name, silent_ms=silent_ms), silence_s)

    def _patience_s(self, node: NodeName) -> float:
        """Return the seconds of silence that a node may have (V1, V4)."""
        return self._limit_s if node in self._greeted else self._limit_s + RETURN_S

    def _report(self, command: NodeSilent | LoseSilent, silence_s: float) -> None:
        try:
            self._committer.tell(command)
        except StokerError as refused:
            self._telemetry.warn("silence_not_recorded", agent_id=command.node, error=refused.refusal.message)
            return
        if isinstance(command, NodeSilent):
            self._telemetry.warn("agent_offline", agent_id=command.node, silent_s=round(silence_s, 1))

"""Which nodes have fallen silent, and is it they or we?

Silence is counted in time during which this process was awake and listening, never in wall time: if the check itself
comes late (we were stopped, starved or busy), the lateness is nobody's silence.

Rules: V1  a node silent for `unreachable_after_s` is reported `NodeSilent`; nothing of its work ends for that
       V2  a report of an unreachable node, on a stream whose inventory was compared, is `NodeHeard`
       V3  a closed stream is not silence: only time is
       V4  after a start every node has the full time before it can be silent
"""

from typing import Final

from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import CONTROL, NodeName, node_principal
from stoker.brain.state.commands import NodeHeard, NodeSilent
from stoker.live.committer import Committer
from stoker.live.world import World

CHECKS_PER_LIMIT: Final = 15
LATENESS_S: Final = 0.25
"""A check this much late is ordinary on a busy machine; anything beyond counts as our own absence."""


class Liveness:
    """Who was heard when, on this process's own clock."""

    def __init__(self, committer: Committer, world: World, *, unreachable_after_s: float) -> None:
        self._committer = committer
        self._clock = world.clock
        self._telemetry = world.telemetry
        self._limit_s = unreachable_after_s
        self._check_s = unreachable_after_s / CHECKS_PER_LIMIT
        self._awake_s = 0.0
        """How long we have been listening, as of `_counted_at`."""
        self._counted_at = self._clock.mono()
        self._heard_s: dict[NodeName, float] = {}

    def note(self, node: NodeName) -> None:
        """`node` has just given a sign of life."""
        self._heard_s[node] = self._awake_s + self._since_check_s()

    def heard(self, node: NodeName) -> None:
        """A report of `node` has just arrived on a stream whose inventory was compared, so it may be used again."""
        self.note(node)
        known = self._committer.state.nodes.get(node)
        if known is not None and not known.reachable and not known.forgotten:
            self._committer.tell(NodeHeard(by=node_principal(node), node=node))

    def silence_s(self, node: NodeName) -> float:
        """How long `node` has been silent while we listened."""
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
        for node in list(self._committer.state.nodes.values()):
            if not node.reachable or node.forgotten:
                continue
            silence_s = self._awake_s - self._heard_s.setdefault(node.name, self._awake_s)
            if silence_s > self._limit_s:
                self._report(node.name, silence_s)

    def _report(self, node: NodeName, silence_s: float) -> None:
        try:
            self._committer.tell(NodeSilent(by=CONTROL, node=node))
        except StokerError as refused:
            self._telemetry.warn("silence_not_recorded", agent_id=node, error=refused.refusal.message)
            return
        self._telemetry.warn("agent_offline", agent_id=node, silent_s=round(silence_s, 1))

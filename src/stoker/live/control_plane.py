"""The control plane of a cluster of its own: the core of `control`, with agents as its nodes.

`main` puts servers around it and adapters under it, the test rig puts a simulated world under the same parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from stoker.control.committer import Committer
from stoker.control.control_plane import ControlPlane, Runtime, recover_core
from stoker.control.control_ports import ControlPorts, Duty
from stoker.control.standing import FailoverControl
from stoker.live.liveness import Liveness
from stoker.live.outbox import Outbox
from stoker.live.sessions import Sessions
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.in_force import not_in_force
from stoker.ports import EventLog, History


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveControlPlane(ControlPlane):
    """The core and its agents."""

    daemon_settings: ControlSettings
    sessions: Sessions
    liveness: Liveness

    def settings_drift(self) -> str:
        """Settings here that differ from those in force, in words; empty = none is known."""
        return not_in_force(self.daemon_settings, self.committer.state)


class AgentNodes:
    """The `Nodes` of a cluster whose agents keep a stream to the control plane."""

    def __init__(self, settings: ControlSettings, committer: Committer, world: ControlPorts) -> None:
        self.liveness = Liveness(committer, world, unreachable_after_s=settings.agents.unreachable_after_s)
        heartbeat_ms = round(settings.agents.heartbeat_s * 1_000)
        self.sessions = Sessions(committer, Outbox(committer), self.liveness, world, heartbeat_ms=heartbeat_ms)
        self.read_log = self.sessions.read_log
        self.task_sums = self.sessions.task_sums
        self.compare_anew = self.sessions.compare_anew
        self.begin = self.liveness.begin
        self.close = self.sessions.close

    def duties(self) -> Sequence[Duty]:
        """What runs while this control plane is active."""
        return (Duty("liveness", self.liveness.run),)


async def recover_control(
    settings: ControlSettings,
    log: EventLog,
    history: History,
    world: ControlPorts,
    *,
    open_to_owner: bool = True,
    pair: FailoverControl | None = None,
) -> LiveControlPlane:
    """Recover the control plane that the log describes; it is not yet active.

    `open_to_owner`: nobody but its owner reaches it, so it wants no token. `pair`: what it is among several.

    Raises: LogDamaged, HistoryTooNew.
    """
    made: list[AgentNodes] = []

    def nodes_of(committer: Committer) -> AgentNodes:
        made.append(AgentNodes(settings, committer, world))
        return made[0]

    core = await recover_core(
        Runtime(
            settings=settings.core(),
            log=log,
            history=history,
            ports=world,
            nodes_of=nodes_of,
            pair=pair,
            open_to_owner=open_to_owner,
        )
    )
    parts = {field.name: getattr(core, field.name) for field in fields(core)}
    (agents,) = made
    return LiveControlPlane(**parts, daemon_settings=settings, sessions=agents.sessions, liveness=agents.liveness)

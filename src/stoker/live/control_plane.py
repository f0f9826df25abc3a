"""The control plane of a cluster of its own: the core of `control`, with agents as its nodes.

`main` puts servers around it and adapters under it; the test rig puts a simulated world under the same parts.
"""

import gc
from dataclasses import dataclass
from typing import Final

from stoker.control.control_plane import ControlPlane, Runtime
from stoker.control.control_ports import ControlPorts
from stoker.control.failover_control import FailoverControl
from stoker.live.sessions import Sessions
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import not_in_force
from stoker.ports import EventLog, History

_GC_THRESHOLDS: Final = (10_000, 50, 100)
"""Full collections walk every job record; those that are kept for long are frozen out of their way instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveControlPlane(ControlPlane):
    """The core and its agents."""

    nodes: Sessions

    @property
    def sessions(self) -> Sessions:
        return self.nodes

    def settings_drift(self) -> str:
        """Return settings here that differ from those in force, in words; empty = none is known."""
        ours = self.nodes.settings
        return not_in_force(ours.as_policy(), ours.quota.as_pools(), self.committer.state)


async def recover_control(
    settings: ControlSettings,
    log: EventLog,
    history: History,
    ports: ControlPorts,
    *,
    open_to_owner: bool = True,
    pair: FailoverControl | None = None,
) -> LiveControlPlane:
    """Recover the control plane that the log describes; it is not yet active.

    `open_to_owner`: nobody but its owner reaches it, so it wants no token. `pair`: its failover; None = it is the only
    control plane.
    Raises: LogDamaged, HistoryTooNew.
    """
    runtime = Runtime(
        settings=settings.core(),
        log=log,
        history=history,
        ports=ports,
        nodes_of=lambda committer: Sessions(committer, settings, ports),
        pair=pair,
        open_to_owner=open_to_owner,
    )
    return await LiveControlPlane.recover(runtime)


def quiet_collector() -> None:
    """Freeze all objects that exist now, so that full garbage collections don't walk them again.

    What an earlier tenure left is let go first.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)

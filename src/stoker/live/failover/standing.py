"""What is this control plane for others right now, as its faces need to know?"""

from typing import Protocol

import msgspec

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import Epoch, Position, Principal
from stoker.brain.failover.inputs import Role
from stoker.live.replicas import Replicas


class PairView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several control planes, as it sees itself and the marker."""

    name: str
    role: Role
    epoch: Epoch
    """Of the marker, as it was last known; 0 = nothing is known of it, or there is none."""
    active: str
    """Name of whoever holds the lease by the marker; empty = nobody."""
    active_http: str
    """Where that one answers people."""
    in_sync: tuple[str, ...]
    """Names of those whose disks hold all that was acknowledged; none where all reach one log."""
    marker_reached: bool
    """Has the last look at the marker come back? If not, what it says here is what was last known."""
    unchanged_s: float
    """For how long the newest known version of the marker has been so: whoever is active renews it."""
    silent: bool
    """Is the lease of `active` over, and nobody has renewed it?"""
    position: Position
    """Of our log."""
    lag_ms: int
    """How old what we show may be; 0 for the active."""
    why: str
    """Why we don't take over; empty for the active."""


class Standing(Protocol):
    """One of several control planes."""

    @property
    def replicas(self) -> Replicas: ...

    @property
    def follows(self) -> bool:
        """Is another one active, or nobody? At this moment: one that was stopped past the end of its lease says so even
        before it notices that it must step down."""
        ...

    def view(self) -> PairView: ...

    async def promote(self, by: Principal) -> None:
        """Somebody says that this one must be active, whatever is lost. Returns once it is.

        Raises: StokerError `promotion_refused`.
        """
        ...


def not_active(view: PairView) -> Refusal:
    """What a standby tells whoever asks for what only the active can do. One whose lease is over isn't named as the
    place to go: nobody is active then."""
    another = view.active_http and view.active != view.name
    goes_to = view.active_http if another and not view.silent else ""
    if goes_to and view.marker_reached:
        hint = f"ask {goes_to}; with `--server A,B` the command finds the active one by itself"
    elif goes_to:
        hint = f"{goes_to} was active {view.unchanged_s:.0f} s ago, the last that is known; here it is: {view.why}"
    elif another:
        hint = f"{view.active} was active, and hasn't renewed its lease for {view.unchanged_s:.0f} s; here it is: "
        hint += view.why
    else:
        hint = f"ask again soon; here it is: {view.why}" if view.why else "ask again soon"
    return refuse(
        "not_active",
        f"control plane {view.name} is a standby",
        hint,
        active=goes_to,
        name=view.name,
        why=view.why,
    )

"""What is this control plane for others right now, as its faces need to know?"""

from typing import Protocol

import msgspec

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import Epoch, Position, Principal
from stoker.brain.domain.units import Mono
from stoker.brain.failover.config_drift import config_drift
from stoker.brain.failover.inputs import ControlRole
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.takeover_eligibility import LOG_UNFIT
from stoker.control.replicas import Replicas


class PairView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several control planes, as it sees itself and the marker."""

    name: str
    role: ControlRole
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
    """For how long at least the newest known version of the marker has been so, counted from when this life first saw
    it: whoever is active renews it."""
    silent: bool
    """Is the lease of `active` over, and nobody has renewed it?"""
    position: Position
    """Of our log."""
    lag_ms: int
    """How old what we show may be; 0 for the active."""
    why: str
    """Why we don't take over; empty for the active."""
    secret: str
    """What is wrong with the secret by which we know each other; empty = nothing, or it wants none."""
    unlike: str
    """Settings that must be the same and that the active one has otherwise; empty = none is known."""


class FailoverControl(Protocol):
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


def view_of(machine: Machine, now: Mono, position: Position, *, lag_ms: int, owns_log: bool, secret: str) -> PairView:
    """`position` is that of our log. `owns_log`: nobody else reaches it."""
    marker, known = machine.lease_record, machine.client
    holder = marker.holder if marker else None
    return PairView(
        name=machine.me.name,
        role=machine.role,
        epoch=machine.epoch,
        active=holder.name if holder else "",
        active_http=marker.http if marker and holder else "",
        in_sync=tuple(member.name for member in (marker.in_sync if marker and owns_log else ())),
        marker_reached=known.fresh,
        unchanged_s=now - known.first_seen_at if marker else 0.0,
        silent=holder not in (None, machine.me) and known.lease_expired,
        position=position,
        lag_ms=lag_ms,
        why=machine.why,
        secret=secret,
        unlike=config_drift(machine.membership, machine.timing, marker),
    )


def not_active(view: PairView) -> Refusal:
    """What a standby tells whoever asks for what only the active can do. One whose lease is over, or that is only last
    known, isn't named as the place to go: it may be active no more, and whoever asks this one alone goes on asking."""
    another = view.active_http if view.active != view.name else ""
    goes_to = another if view.marker_reached and not view.silent else ""
    seconds = f"{view.unchanged_s:.0f} s"
    if goes_to:
        hint = f"ask {goes_to}; with `--server A,B` the command finds the active one by itself"
    elif another and not view.marker_reached:
        hint = f"{another} was active by the newest version of the marker that it knows, first seen {seconds} ago"
    elif another:
        hint = f"{view.active} was active, and hasn't renewed its lease for at least {seconds}"
    else:
        hint = "ask again soon"
    if view.why and not goes_to:
        hint += f"; here it is: {view.why}"
    return refuse(
        "not_active",
        f"control plane {view.name} is a standby",
        hint,
        active=goes_to,
        name=view.name,
        why=view.why,
    )


def not_promoted(view: PairView, why: str) -> Refusal:
    """`why`: what is in the way of making it active by force."""
    if not view.marker_reached:
        hint = "mend that, and ask again: nobody becomes active without the marker"
    elif why == LOG_UNFIT:
        hint = "make room on its disk, or mend it; `log_unfit` in its log says more"
    elif view.active in ("", view.name) or view.silent:
        hint = "ask again in a moment"
    elif view.name in view.in_sync:
        hint = "stop the active one first: this one is in sync, and takes over by itself then"
    else:
        hint = "stop the active one first"
    return refuse("promotion_refused", why, hint)

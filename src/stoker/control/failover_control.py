"""Port of failover: the role of this control plane among several, and the refusals of one that isn't active."""

from typing import Protocol

import msgspec

from stoker.brain.domain.errors import Refusal, refuse
from stoker.brain.domain.ids import Epoch, Position, Principal
from stoker.brain.domain.units import Mono
from stoker.brain.failover.inputs import ControlRole
from stoker.brain.failover.machine import Machine
from stoker.brain.failover.membership import config_drift
from stoker.brain.failover.takeover_eligibility import LOG_UNFIT
from stoker.control.control_ports import Replicas


class PairView(msgspec.Struct, frozen=True, kw_only=True):
    """One of several control planes, as it sees itself and the lease record."""

    name: str
    role: ControlRole
    epoch: Epoch
    """Of the lease record, as it was last known; 0 = nothing is known of it, or there is none."""
    active: str
    """Name of the holder by the lease record; empty = none."""
    active_http: str
    """Where that one answers people."""
    in_sync: tuple[str, ...]
    """Names of the members whose disks hold all that was acknowledged; none where all reach one log."""
    record_reached: bool
    """Has the last read of the lease record come back? If not, what it says here is what was last known."""
    unchanged_s: float
    """For how long at least the newest known version has been so, counted from when this tenure first saw it: an
    active renews it."""
    silent: bool
    """Is the lease of `active` over, and nobody has renewed it?"""
    position: Position
    """Of our log."""
    lag_ms: int
    """How old what we show may be; 0 for the active."""
    why: str
    """Why we don't take over; empty for the active."""
    secret_trouble: str
    """What is wrong with the secret by which we know each other; empty = nothing, or it wants none."""
    config_drift: str
    """Settings that must be the same and that the active one has otherwise; empty = none is known."""


class FailoverControl(Protocol):
    """Failover as one of several control planes sees it."""

    @property
    def replicas(self) -> Replicas: ...

    @property
    def follows(self) -> bool:
        """Whether this control plane is a standby at this moment.

        One that was paused past the end of its lease is one even before it notices that it must step down.
        """
        ...

    def view(self) -> PairView: ...

    async def promote(self, by: Principal) -> None:
        """Become active because a person said so, whatever is lost; return once it is.

        Raises: StokerError `promotion_refused`.
        """
        ...


def view_of(
    machine: Machine, now: Mono, position: Position, *, lag_ms: int, owns_log: bool, secret_trouble: str
) -> PairView:
    """Return the machine's view. `position`: the end of our log. `owns_log`: no other control plane reaches it."""
    record, known = machine.lease_record, machine.client
    holder = record.holder if record else None
    return PairView(
        name=machine.me.name,
        role=machine.role,
        epoch=machine.epoch,
        active=holder.name if holder else "",
        active_http=record.http if record and holder else "",
        in_sync=tuple(member.name for member in (record.in_sync if record and owns_log else ())),
        record_reached=known.fresh,
        unchanged_s=now - known.first_seen_at if record else 0.0,
        silent=holder not in (None, machine.me) and known.lease_expired,
        position=position,
        lag_ms=lag_ms,
        why=machine.why,
        secret_trouble=secret_trouble,
        config_drift=config_drift(machine.membership, machine.timing, record),
    )


def not_active(view: PairView) -> Refusal:
    """Return the refusal of a standby for what only the active can do.

    A holder whose lease is over, or that is only last known, isn't named as the place to go: it may be active no more,
    and a client of this one alone goes on asking.
    """
    another = view.active_http if view.active != view.name else ""
    goes_to = another if view.record_reached and not view.silent else ""
    seconds = f"{view.unchanged_s:.0f} s"
    if goes_to:
        hint = f"ask {goes_to}; with `--server A,B` the command finds the active one by itself"
    elif another and not view.record_reached:
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
    """Return the refusal of a forced promotion. `why`: what is in the way of it."""
    if not view.record_reached:
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

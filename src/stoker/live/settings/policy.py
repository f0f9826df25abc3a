"""Settings that become part of the log: the sections `policy` and `quota`, and how they differ from those in force.

The section `policy` is drawn from `brain.domain.policy`: names, defaults, ranges and sentences are written there once.

Rules: Q1  a duration is in milliseconds inside and in seconds for people: `stop_grace_ms` is `stop_grace_s` here
       Q2  what isn't given keeps the policy's own default
"""

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec

from stoker.brain.domain.policy import PRIORITY_STEP, Policy
from stoker.brain.domain.quota import WHOLE, Pools
from stoker.brain.domain.units import SECOND_MS, Range
from stoker.brain.state.cluster import ClusterState

SHOWN_MAX: Final = 5
KEYS: Final = {
    field.name: f"{field.name.removesuffix('_ms')}_s" if field.name.endswith("_ms") else field.name
    for field in msgspec.structs.fields(Policy)
    if get_args(field.type)
}
"""Field of the policy that operators may set -> its key in this section (Q1)."""
_RISING: Final = (
    ("time_limit_default_s", "time_limit_max_s"),
    ("tenant_pending_jobs_max", "pending_jobs_max"),
    ("backoff_first_s", "backoff_max_s"),
    ("node_pause_first_s", "node_pause_max_s"),
    ("port_min", "port_max"),
)
"""The first of each pair must not exceed the second."""
_IN_FORCE: Final = {
    "attempt_lease_ms": "agents.attempt_lease_s",
    "attempt_lease_min_ms": "the shortest lease that agents.unreachable_after_s allows",
    **{name: f"policy.{key}" for name, key in KEYS.items()},
}
"""Field of the policy -> what an operator changes it by. The rest is the version's, not the settings'."""

_SHARE: Final = Range(0, 1, "; write 0.7 for seventy per cent")

Section = TypeVar("Section", bound=msgspec.Struct)


def _drawn(cls: type[Section]) -> type[Section]:
    """The class with one key for each field of the policy that has a range, in the policy's order."""
    keys = []
    for field in msgspec.structs.fields(Policy):
        if key := KEYS.get(field.name):
            _, limits = get_args(field.type)
            unit, words = _unit(field.name), " seconds" if key.endswith("_s") else ""
            limits = Range(limits.least // unit, limits.most // unit, words)
            keys.append((key, Annotated[int, limits], field.default // unit))
    made = partial(msgspec.defstruct, bases=(cls,), module=cls.__module__, frozen=True, kw_only=True)
    return made(cls.__name__, keys)  # type: ignore[return-value]  # it is a subclass


def _unit(name: str) -> int:
    return SECOND_MS if name.endswith("_ms") else 1


@_drawn
class PolicySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `policy`."""

    def faults(self) -> list[str]:
        """Return each broken relation between two keys."""
        section: Any = self  # its keys are drawn at run time
        pairs = ((low, getattr(section, low), high, getattr(section, high)) for low, high in _RISING)
        found = [f"{low} ({least}) must not exceed {high} ({most})" for low, least, high, most in pairs if least > most]
        aging, points = section.aging_max, section.fair_share_points
        if points and aging + points >= PRIORITY_STEP:
            found.append(
                f"fair_share_points ({points}) and aging_max ({aging}) must stay below {PRIORITY_STEP} together, or a "
                "job of normal priority would pass fresh ones of high; lower one of them, or switch fair share off "
                "with fair_share_points: 0"
            )
        return found

    def as_policy(self) -> Policy:
        """Return the policy that these settings ask for."""
        return Policy(**{name: getattr(self, key) * _unit(name) for name, key in KEYS.items()})


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Section `quota`: shares of online and batch jobs, which `stoker quota set` changes at run time."""

    online_percent: Annotated[float, _SHARE] = 0.7
    """Share of the GPUs in service that jobs of class online are guaranteed, from 0 to 1. What is said here holds from
    the start that first reads it; a later `stoker quota set` outlives restarts for as long as these lines stay as they
    are, and a change of them wins over it."""
    batch_percent: Annotated[float | None, _SHARE] = None
    """The same of class batch; both together at most 1. Left out = what online_percent leaves, 0.3 by default."""
    strict: bool = False
    """Whether the shares are walls. By default each class borrows what the other leaves idle."""

    def __post_init__(self) -> None:
        if self.batch_percent is None and 0 <= self.online_percent <= 1:
            # What holds is what people see, so the rest is written out.
            msgspec.structs.force_setattr(self, "batch_percent", (WHOLE - _parts(self.online_percent)) / WHOLE)

    def faults(self) -> list[str]:
        """Return what is wrong with the two shares together, if each is one."""
        online, batch = self.online_percent, self.batch_percent or 0
        if 0 <= online <= 1 and 0 <= batch <= 1 and _parts(online) + _parts(batch) > WHOLE:
            return [f"online_percent ({online}) and batch_percent ({batch}) are more than 1 together"]
        return []

    def as_pools(self) -> Pools:
        """Return the shares that these settings ask for."""
        return Pools(online=_parts(self.online_percent), batch=_parts(self.batch_percent or 0), strict=self.strict)


def _parts(share: float) -> int:
    """By its decimal digits, so that 0.7 is exactly seven tenths."""
    return round(Decimal(repr(share)) * WHOLE)


def not_in_force(policy: Policy, pools: Pools, state: ClusterState) -> str:
    """Name each setting of a standby that would change what is in force if it became active, with both values.

    Policy and pools are part of the log, and a new active brings its own. At most SHOWN_MAX are named; empty = a
    take-over changes nothing.
    """
    if not state.cluster_id:  # no policy is known yet
        return ""
    found: list[str] = []
    theirs = state.pools_configured
    if theirs is not None and pools != theirs:
        found.append(f"quota is {_shares(pools)} here and {_shares(theirs)} in the settings in force")
    found.extend(_differences(policy, state.policy))
    more = len(found) - SHOWN_MAX
    return "; ".join(found[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else []))


def _differences(ours: Policy, theirs: Policy) -> Iterator[str]:
    for name, key in _IN_FORCE.items():
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            yield f"{key} is {here / _unit(name):g} here and {there / _unit(name):g} in force"


def _shares(pools: Pools) -> str:
    strict = ", strict" if pools.strict else ""
    return f"{pools.online / 10_000:g} % online, {pools.batch / 10_000:g} % batch{strict}"

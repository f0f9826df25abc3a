"""Which settings of a standby would change what is in force if it became active?

Policy and pools are part of the log. Whoever becomes active brings its own, so halves that were given different ones
change them at a take-over.
"""

from collections.abc import Iterator
from typing import Final

from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.domain.units import SECOND_MS
from stoker.brain.state.cluster import ClusterState
from stoker.live.settings.control import ControlSettings
from stoker.live.settings.policy import RANGES, policy_key

SHOWN_MAX: Final = 5
_KEYS: Final = {
    "attempt_lease_ms": "agents.attempt_lease_s",
    "attempt_lease_min_ms": "the shortest lease that agents.unreachable_after_s allows",
    **{name: f"policy.{policy_key(name)}" for name in RANGES},
}
"""Field of the policy -> what an operator changes it by. The rest is the version's, not the settings'."""


def not_in_force(settings: ControlSettings, state: ClusterState) -> str:
    """Each such key with both values, at most SHOWN_MAX of them; empty = a take-over changes nothing."""
    if not state.cluster_id:  # no policy is known yet
        return ""
    found: list[str] = []
    ours, theirs = settings.quota.as_pools(), state.pools_configured
    if theirs is not None and ours != theirs:
        found.append(f"quota is {_shares(ours)} here and {_shares(theirs)} in the settings in force")
    found.extend(_policy(settings.as_policy(), state.policy))
    more = len(found) - SHOWN_MAX
    return "; ".join(found[:SHOWN_MAX] + ([f"and {more} more"] if more > 0 else []))


def _policy(ours: Policy, theirs: Policy) -> Iterator[str]:
    for name, key in _KEYS.items():
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            unit = SECOND_MS if name.endswith("_ms") else 1
            yield f"{key} is {here / unit:g} here and {there / unit:g} in force"


def _shares(pools: Pools) -> str:
    strict = ", strict" if pools.strict else ""
    return f"{pools.online / 10_000:g} % online, {pools.batch / 10_000:g} % batch{strict}"

"""What a standby's settings would change at a take-over."""

from msgspec.structs import replace

from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Pools
from stoker.brain.state.cluster import ClusterState
from stoker.live.settings.control import AgentsSettings, ControlSettings
from stoker.live.settings.policy import SHOWN_MAX, not_in_force

OURS = ControlSettings()
POOLS = OURS.quota.as_pools()


def in_force(policy: Policy, pools: Pools | None = POOLS) -> ClusterState:
    state = ClusterState()
    state.cluster_id, state.policy, state.pools_configured = "c", policy, pools
    return state


def drift(ours: ControlSettings, state: ClusterState) -> str:
    return not_in_force(ours.as_policy(), ours.quota.as_pools(), state)


def test_the_same_settings_change_nothing_and_neither_is_anything_known_of_an_empty_log() -> None:
    assert drift(OURS, in_force(OURS.as_policy())) == ""
    assert drift(OURS, ClusterState()) == ""


def test_each_key_is_named_as_operators_write_it_with_both_values() -> None:
    theirs = replace(OURS.as_policy(), retries_max=4, stop_grace_ms=90_000)
    assert drift(OURS, in_force(theirs)) == (
        f"policy.retries_max is {Policy().retries_max} here and 4 in force; "
        "policy.stop_grace_s is 10 here and 90 in force"
    )


def test_a_lease_that_follows_from_other_settings_is_named_by_those() -> None:
    ours = ControlSettings(agents=AgentsSettings(attempt_lease_s=300.0))
    assert drift(ours, in_force(OURS.as_policy())) == "agents.attempt_lease_s is 300 here and 0 in force"


def test_shares_that_would_be_set_anew_are_told() -> None:
    said = drift(OURS, in_force(OURS.as_policy(), Pools(online=500_000, batch=500_000, strict=True)))
    assert said.startswith("quota is 70 % online, 30 % batch here and 50 % online, 50 % batch, strict in the settings")
    assert drift(OURS, in_force(OURS.as_policy(), None)) == "", "an older version's log doesn't say"


def test_no_more_are_told_than_people_read() -> None:
    theirs = replace(
        OURS.as_policy(),
        **dict.fromkeys(("retries_max", "requeues_max", "tasks_max"), 99),
        aging_max=1,
        aging_per_hour=1,
        port_retries_max=77,
        partitions_max=5,
    )
    said = drift(OURS, in_force(theirs)).split("; ")
    assert (len(said), said[-1]) == (SHOWN_MAX + 1, "and 2 more")

"""Rules F1 to F7 of `engine/fair_share.py`."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.brain.domain.ids import JobId, TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import Amount
from stoker.brain.domain.tenant import Tenant
from stoker.brain.domain.units import DAY_MS, Instant
from stoker.brain.engine.fair_share import FairShare
from stoker.brain.engine.queue_order import QueueOrder, in_order, tenants_of
from stoker.brain.state.decayed_usage import DecayedUsage, TenantUse
from tests.builders import NOW, Cluster, cluster, job, node, tenant, where

HUNDRED = Policy(fair_share_points=100)
A_DAY_AGO = Instant(NOW - DAY_MS)
"""One half-life of the builders' clusters: of what is held since then half has been used."""


def team(name: str, weight: int = 1, *, parent: str = "") -> Tenant:
    return tenant(name, parent=parent, weight=weight)


def held_for_a_day(here: Cluster, held: Mapping[str, Amount], capacity: Amount | None = None) -> Cluster:
    """The cluster in which these jobs' tenants, and all above them, hold so much for a day now."""
    decayed, sums = DecayedUsage(DAY_MS), dict[TenantName, Amount]()
    decayed.now = A_DAY_AGO
    decayed.begin({})
    for name, amount in held.items():
        above = TenantName(name)
        while above:
            sums[above] = sums.get(above, Amount()).plus(amount)
            decayed.change((above,), amount)
            above = here.tenants[above].parent
    has = capacity or Amount(gpu_milli=100, gpu_memory_mb=100_000, cpus=1_000, memory_mb=1_000_000)
    here.tenant_use = TenantUse(decayed, sums, has, here.tenants)
    return here


def terms(here: Cluster, policy: Policy = HUNDRED) -> dict[str, int]:
    waiting = here.pending()
    fair = FairShare(here, policy, NOW, tenants_of(waiting))
    return {bucket.shape.tenant: fair.term(bucket.shape.tenant) for bucket in waiting}


def used(gpus: int) -> Amount:
    return Amount(gpu_milli=gpus)


def waits(*names: str) -> list[object]:
    return [job(number, tenant=name) for number, name in enumerate(names, 1)]


def shared(*tenants: Tenant, gpus: Mapping[str, int], queue: str) -> Cluster:
    things = cluster(*tenants, *(job(at, tenant=name) for at, name in enumerate(queue.split(), 1)))
    return held_for_a_day(things, {name: used(count) for name, count in gpus.items()})


# -- F3: among tenants beside each other ---------------------------------------------------------------------------


def test_who_has_used_least_has_all_points_and_who_used_it_all_beside_nobody_has_a_third_of_them() -> None:
    """Of two equal ones: the mean is half of what was used, so x is twice the mean and the least is nothing."""
    assert terms(shared(team("a"), team("b"), gpus={"b": 40}, queue="a b")) == {"a": 100, "b": 33}


def test_a_tenant_at_its_share_beside_one_that_used_nothing_has_half_the_points() -> None:
    here = shared(team("a"), team("b"), team("c"), gpus={"b": 10, "c": 20}, queue="a b c")
    assert terms(here) == {"a": 100, "b": 50, "c": 33}


def test_equal_use_gives_equal_terms_and_unequal_use_a_lower_one_however_small_the_difference() -> None:
    assert terms(shared(team("a"), team("b"), gpus={"a": 7, "b": 7}, queue="a b")) == {"a": 100, "b": 100}
    assert terms(shared(team("a"), team("b"), gpus={"a": 70, "b": 71}, queue="a b")) == {"a": 100, "b": 99}


def test_use_is_measured_by_weight() -> None:
    pair = team("a", 3), team("b")
    assert terms(shared(*pair, gpus={"a": 30, "b": 10}, queue="a b")) == {"a": 100, "b": 100}
    assert terms(shared(*pair, gpus={"a": 29, "b": 10}, queue="a b"))["b"] < 100
    assert terms(shared(*pair, gpus={"a": 31, "b": 10}, queue="a b"))["a"] < 100


def test_where_nobody_has_used_anything_all_are_equal() -> None:
    assert terms(shared(team("a", 5), team("b"), gpus={}, queue="a b")) == {"a": 100, "b": 100}


use_and_weights = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 1_000)), min_size=2, max_size=8)


@given(use_and_weights)
def test_the_order_of_terms_is_the_order_of_use_by_weight(drawn: list[tuple[int, int]]) -> None:
    tenants = [team(f"t{at}", weight) for at, (_, weight) in enumerate(drawn)]
    gpus = {f"t{at}": count for at, (count, _) in enumerate(drawn)}
    found = terms(shared(*tenants, gpus=gpus, queue=" ".join(gpus)))
    for one, (use, weight) in enumerate(drawn):
        for other, (use_2, weight_2) in enumerate(drawn):
            if use * weight_2 <= use_2 * weight:
                assert found[f"t{one}"] >= found[f"t{other}"]
    least = min(range(len(drawn)), key=lambda at: drawn[at][0] / drawn[at][1])
    assert found[f"t{least}"] == 100
    assert all(0 <= each <= 100 for each in found.values())


# -- F1: who competes ----------------------------------------------------------------------------------------------


def test_tenants_without_jobs_in_the_queue_change_nothing() -> None:
    two = shared(team("a"), team("b"), gpus={"b": 40}, queue="a b")
    more = shared(team("a"), team("b"), team("c", 900), team("d"), gpus={"b": 40, "d": 60}, queue="a b")
    assert terms(two) == terms(more)


def test_the_only_one_that_waits_has_all_points_whatever_it_has_used() -> None:
    assert terms(shared(team("a"), team("b"), gpus={"a": 90}, queue="a")) == {"a": 100}


def test_no_points_switch_it_off() -> None:
    off = replace(HUNDRED, fair_share_points=0)
    assert terms(shared(team("a"), team("b"), gpus={"b": 40}, queue="a b"), off) == {"a": 0, "b": 0}


# -- F2: the dominant resource -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "amount",
    [Amount(gpu_milli=40), Amount(gpu_memory_mb=40_000), Amount(cpus=400), Amount(memory_mb=400_000)],
)
def test_what_counts_is_the_resource_of_which_a_tenant_has_the_largest_part(amount: Amount) -> None:
    here = cluster(team("a"), team("b"), *waits("a", "b"))
    mixed = amount.plus(Amount(gpu_milli=1, cpus=1))
    held_for_a_day(here, {"a": Amount(gpu_milli=39), "b": mixed})
    assert (terms(here)["a"], terms(here)["b"] < 100) == (100, True)
    held_for_a_day(here, {"a": Amount(gpu_milli=43), "b": mixed})
    assert (terms(here)["b"], terms(here)["a"] < 100) == (100, True)


def test_a_resource_that_no_node_in_service_has_is_no_share_of_anything() -> None:
    here = cluster(team("a"), team("b"), *waits("a", "b"))
    held_for_a_day(here, {"b": Amount(gpu_milli=4)}, Amount(cpus=10))
    assert terms(here) == {"a": 100, "b": 100}


def test_a_reader_before_the_newest_event_sees_no_use_below_zero() -> None:
    here = shared(team("a"), team("b"), gpus={"b": 40}, queue="a b")
    assert here.tenant_use.share(TenantName("b"), Instant(A_DAY_AGO - DAY_MS), 100) == 0


# -- F4, F5: the tree ----------------------------------------------------------------------------------------------

TREE = (
    team("lab"),
    team("lab-a", parent="lab"),
    team("lab-b", parent="lab"),
    team("club"),
    team("club-a", parent="club"),
)


def test_no_team_gains_by_the_little_use_of_its_own_what_those_above_it_have_used_up() -> None:
    """Splitting a tenant into many that have used nothing gives it nothing."""
    found = terms(shared(*TREE, gpus={"lab-a": 40, "club-a": 10}, queue="lab-a lab-b club-a"))
    assert found["club-a"] == 100
    assert found["lab-a"] < found["lab-b"] < 100


def test_of_each_tenant_some_job_has_its_own_term() -> None:
    """So the lab as a whole is ordered as if it weren't divided: by what it has used."""
    divided = terms(shared(*TREE, gpus={"lab-a": 40, "club-a": 10}, queue="lab-a lab-b club-a"))
    whole = terms(shared(team("lab"), team("club"), gpus={"lab": 40, "club": 10}, queue="lab club"))
    assert max(divided["lab-a"], divided["lab-b"]) == whole["lab"]


def test_a_deep_tenant_is_no_worse_off_than_a_flat_one() -> None:
    deep = [team("1"), team("2", parent="1"), team("3", parent="2"), team("flat")]
    assert terms(shared(*deep, gpus={"3": 9, "flat": 9}, queue="3 flat")) == {"3": 100, "flat": 100}


def test_a_tenants_own_jobs_compete_with_the_tenants_beneath_it() -> None:
    both = shared(*TREE, gpus={"lab": 10, "lab-a": 0}, queue="lab lab-a")
    assert terms(both) == {"lab": 33, "lab-a": 100}
    other = shared(*TREE, gpus={"lab": 0, "lab-a": 10}, queue="lab lab-a")
    assert terms(other) == {"lab": 100, "lab-a": 33}


def test_a_sibling_that_has_used_less_but_waits_for_nothing_costs_nobody_points() -> None:
    assert terms(shared(*TREE, gpus={"lab-a": 40}, queue="lab-a club-a"))["club-a"] == 100
    assert terms(shared(*TREE, gpus={"lab-a": 40, "club-a": 40}, queue="lab-a club-a"))["lab-a"] == 100


# -- the order of the queue ----------------------------------------------------------------------------------------


def order(here: Cluster, policy: Policy | None = None) -> list[JobId]:
    waiting = here.pending()
    queue = QueueOrder(here, policy or Policy(), NOW, tenants_of(waiting))
    return [each.job for each in in_order(queue, queue.tiers(waiting), ())]


def test_of_equal_jobs_those_of_the_tenant_that_has_used_less_go_first_and_those_of_one_tenant_in_order_of_submit() -> (
    None
):
    here = cluster(team("a"), team("b"), *(job(at, tenant=name) for at, name in enumerate("bbaab", 1)))
    assert order(here) == [1, 2, 3, 4, 5]
    held_for_a_day(here, {"b": used(5)})
    assert order(here) == [3, 4, 1, 2, 5]


def test_waiting_outweighs_any_use_after_as_many_hours_as_the_points_take() -> None:
    """99 points at 20 an hour; what a heavy user submitted five hours before is never passed."""
    for waited_h, expected in ((5, [1, 2]), (3, [2, 1])):
        here = cluster(team("a"), team("b"), job(1, tenant="b", waited_h=waited_h), job(2, tenant="a", gpus=1))
        held_for_a_day(here, {"b": used(90)})
        assert order(here) == expected


def test_by_default_no_age_and_no_share_lift_a_job_above_fresh_ones_of_the_next_word() -> None:
    here = cluster(
        team("a"), team("b"), job(1, tenant="a", priority=500, waited_h=900), job(2, tenant="b", priority=1_000)
    )
    held_for_a_day(here, {"b": used(90)})
    assert order(here) == [2, 1]


def test_a_pass_places_the_job_of_the_tenant_that_has_used_less() -> None:
    here = cluster(node("n", gpus=1), team("a"), team("b"), job(1, gpus=1, tenant="b"), job(2, gpus=1, tenant="a"))
    held_for_a_day(here, {"b": used(5)})
    assert list(where(here.plan())) == [2]
    assert list(where(here.plan(policy=Policy(fair_share_points=0)))) == [1]

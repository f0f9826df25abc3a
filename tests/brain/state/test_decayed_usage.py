"""Rules U1 to U4 of `state/decayed_usage.py`, by arithmetic and through the log of a cluster."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.ids import CONTROL, Epoch, Position, TenantName
from stoker.brain.domain.policy import Policy
from stoker.brain.domain.quota import NOTHING, Amount
from stoker.brain.domain.units import DAY_MS, HOUR_MS, MINUTE_MS, Instant
from stoker.brain.state.apply.dispatch import apply
from stoker.brain.state.cluster import ClusterState
from stoker.brain.state.codec import decode_fact, load_snapshot, snapshot_chunks
from stoker.brain.state.commands import BeginEpoch, DeleteTenant, MoveClock
from stoker.brain.state.decayed_usage import REBASE_HALF_LIVES, DecayedUsage, growth
from tests.brain.state.story import ANNA, Story, spec
from tests.brain.state.test_usage_ledger import LAB, OTHER, TEAM, shared

WEEK = 7 * DAY_MS
ONE = TenantName("one")
GROWN = [
    281_474_976_710_656,
    281_474_977_033_074,
    354_636_248_176_350,
    562_949_953_421_312,
    356_811_954_664_369_204_177_674_088_917_578_457_609_666_560,
]
GPU = Amount(gpu_milli=1)


def counted(half_life_ms: int = WEEK, at: int = 0) -> DecayedUsage:
    usage = DecayedUsage(half_life_ms)
    usage.now = Instant(at)
    usage.begin({})
    return usage


def change(usage: DecayedUsage, at: int, more: Amount, *tenants: TenantName) -> None:
    usage.now = Instant(at)
    usage.change(tenants or (ONE,), more)


def gpus(usage: DecayedUsage, held: int, at: int, tenant: TenantName = ONE) -> Fraction:
    """The decayed usage of GPUs, exactly."""
    above, below = usage.weighed(tenant, Amount(gpu_milli=held), Instant(at))
    return Fraction(above[0], below)


def of_story(story: Story, tenant: TenantName) -> float:
    held = story.state.indexes.usage_ledger.used_by(tenant)
    milli = gpus(story.state.decayed_usage, held.gpu_milli, story.now - story.state.clock_moved_ms, tenant)
    return float(milli) / WHOLE_GPU


# -- the arithmetic ------------------------------------------------------------------------------------------------


def test_what_began_one_half_life_ago_counts_half_and_two_ago_three_quarters() -> None:
    usage = counted()
    change(usage, 0, Amount(gpu_milli=8))
    assert gpus(usage, 8, WEEK) == 4
    assert gpus(usage, 8, 2 * WEEK) == 6


def test_what_has_ended_is_halved_by_each_half_life_from_then_on() -> None:
    usage = counted()
    change(usage, 0, Amount(gpu_milli=8))
    change(usage, WEEK, Amount(gpu_milli=-8))
    assert [gpus(usage, 0, at * WEEK) for at in (1, 2, 3)] == [4, 2, 1]


def test_growth_is_the_power_of_two_it_says_to_one_part_in_ten_to_the_twelve() -> None:
    for elapsed in (1, HOUR_MS, 3 * DAY_MS + 1, WEEK - 1, 40 * WEEK + 12_345, -5 * DAY_MS):
        assert abs(growth(elapsed, WEEK) / 2 ** (48 + elapsed / WEEK) - 1) < 1e-12


def test_growth_rises_with_every_millisecond_of_the_longest_and_the_shortest_half_life() -> None:
    for half_life in (60_000, 365 * DAY_MS):
        spots = [Instant(at * half_life // 7) for at in range(60)]
        assert all(growth(at, half_life) < growth(at + 1, half_life) for at in spots)


def test_these_are_the_integers_on_every_machine() -> None:
    """U1: written down, since a number that differs here would order a queue differently there."""
    assert [growth(at, WEEK) for at in (0, 1, WEEK // 3, WEEK, 100 * WEEK + 77)] == GROWN


# -- U1, U2: however often it is looked at or cut --------------------------------------------------------------------


@given(st.lists(st.integers(0, 40 * WEEK), min_size=2, max_size=12), st.integers(1, 64))
def test_one_long_allocation_equals_any_pieces_of_it_exactly(cuts: Sequence[int], held: int) -> None:
    at = sorted(cuts)
    whole, pieces = counted(), counted()
    change(whole, at[0], Amount(gpu_milli=held))
    change(whole, at[-1], Amount(gpu_milli=-held))
    for begin, end in pairwise(at):
        change(pieces, begin, Amount(gpu_milli=held))
        gpus(pieces, held, end)  # a look in between
        change(pieces, end, Amount(gpu_milli=-held))
    assert gpus(pieces, 0, at[-1] + 1) == gpus(whole, 0, at[-1] + 1)


@given(st.lists(st.tuples(st.integers(0, 3 * WEEK), st.integers(1, 8)), min_size=1, max_size=20), st.integers(0, 60))
def test_many_small_steps_are_what_the_definition_says(steps: Sequence[tuple[int, int]], later_weeks: int) -> None:
    """Against the mean with weights by floating point, to one part in a thousand million."""
    usage, now, awaited, spans = counted(), 0, 0.0, []
    for duration, held in steps:
        change(usage, now, Amount(gpu_milli=held))
        spans.append((now, now + duration, held))
        now += duration
        change(usage, now, Amount(gpu_milli=-held))
    now += later_weeks * WEEK
    for begin, end, held in spans:
        awaited += held * (2.0 ** ((end - now) / WEEK) - 2.0 ** ((begin - now) / WEEK))
    assert abs(float(gpus(usage, 0, now)) - awaited) < 1e-9


# -- U3 ------------------------------------------------------------------------------------------------------------


def test_a_new_origin_moves_no_usage_by_more_than_its_rounding() -> None:
    usage = counted(HOUR_MS)
    change(usage, 0, Amount(gpu_milli=3))
    late = (REBASE_HALF_LIVES - 2) * HOUR_MS
    change(usage, late, Amount(gpu_milli=-1))
    at = (REBASE_HALF_LIVES + 1) * HOUR_MS
    before = gpus(usage, 2, at)
    change(usage, at, GPU, TenantName("other"))
    assert usage.origin == at
    assert abs(gpus(usage, 2, at) - before) <= Fraction(1, 1 << 47)


def test_numbers_stay_small_for_ever_and_who_is_long_gone_is_forgotten() -> None:
    usage = counted(MINUTE_MS)
    change(usage, 0, Amount(memory_mb=1 << 40))
    change(usage, MINUTE_MS, Amount(memory_mb=-(1 << 40)))
    for day in range(1, 400):
        change(usage, day * DAY_MS, GPU, OTHER)
        change(usage, day * DAY_MS + 1, Amount(gpu_milli=-1), OTHER)
    record = usage.record()
    assert record is not None
    assert [each[0] for each in record.tenants] == [OTHER]
    assert all(abs(number) < 1 << 200 for _, *row in record.tenants for number in row)


def test_who_looks_after_a_thousand_years_sees_what_is_held() -> None:
    usage = counted(MINUTE_MS)
    change(usage, 0, GPU)
    assert float(gpus(usage, 1, 1_000 * 365 * DAY_MS)) == 1
    change(usage, 0, Amount(gpu_milli=-1))
    assert gpus(usage, 0, 1_000 * 365 * DAY_MS) == 0


def test_another_half_life_leaves_usage_as_it_is_and_lets_it_decay_otherwise_from_then_on() -> None:
    usage = counted()
    change(usage, 0, Amount(gpu_milli=8))
    change(usage, WEEK, Amount(gpu_milli=-8))
    usage.set_half_life(DAY_MS)
    assert gpus(usage, 0, WEEK) == 4
    assert gpus(usage, 0, WEEK + DAY_MS) == 2


# -- in a cluster --------------------------------------------------------------------------------------------------


def test_a_tenant_is_charged_with_what_those_beneath_it_hold_and_no_other_is() -> None:
    story = shared()
    story.run(story.submit(spec(4, tenant=TEAM)), ("n1", 0))
    story.wait(WEEK)
    assert (of_story(story, TEAM), of_story(story, LAB), of_story(story, OTHER)) == (2, 2, 0)


def test_a_deleted_tenant_leaves_its_usage_to_the_one_above() -> None:
    story = shared()
    job = story.submit(spec(4, tenant=TEAM))
    story.run(job, ("n1", 0))
    story.wait(WEEK)
    story.end(job)
    story.do(DeleteTenant(by=ANNA, name=TEAM))
    assert (of_story(story, TEAM), of_story(story, LAB)) == (0, 2)


def test_a_jump_of_the_clock_is_no_use() -> None:
    story = shared()
    story.run(story.submit(spec(4, tenant=OTHER)), ("n1", 0))
    story.wait(WEEK)
    story.do(MoveClock(by=CONTROL, by_ms=WEEK))
    assert of_story(story, OTHER) == 0
    story.wait(WEEK)
    assert of_story(story, OTHER) == 2


def test_a_jump_of_the_clock_that_is_noted_late_makes_no_use_negative_and_survives_a_snapshot() -> None:
    """A job that was placed after the jump ends at an earlier time, as time limits count it."""
    story = shared()
    story.wait(WEEK)
    job = story.submit(spec(4, tenant=OTHER))
    story.run(job, ("n1", 0))
    story.do(MoveClock(by=CONTROL, by_ms=WEEK))
    story.wait(MINUTE_MS)
    loaded = load_snapshot(snapshot_chunks(story.state))
    story.end(job)  # every invariant is checked here
    assert of_story(story, OTHER) == 0
    for record in story.log[loaded.position :]:
        apply(loaded, decode_fact(record), Position(loaded.position + 1))
    assert list(snapshot_chunks(loaded)) == list(snapshot_chunks(story.state))
    story.run(story.submit(spec(4, tenant=OTHER)), ("n1", 0))
    story.wait(2 * WEEK - MINUTE_MS)
    assert of_story(story, OTHER) == 2, "counted again from the time of the jump on"


def test_a_changed_policy_takes_effect_from_its_place_in_the_log_on() -> None:
    story = shared()
    job = story.submit(spec(8, tenant=OTHER))
    story.run(job, ("n1", 0))
    story.wait(WEEK)
    story.end(job)
    story.do(BeginEpoch(by=CONTROL, epoch=Epoch(2), policy=Policy(fair_share_half_life_ms=DAY_MS)))
    story.wait(DAY_MS)
    assert of_story(story, OTHER) == 2


def test_a_replay_and_a_snapshot_give_the_same_bytes_and_go_on_alike() -> None:
    story = shared()
    for tenant in (TEAM, OTHER, TEAM):
        job = story.submit(spec(2, tenant=tenant))
        story.run(job, ("n2", 0))
        story.wait(3 * WEEK + 17)
        story.end(job)
    replayed = ClusterState()
    for record in story.log:
        apply(replayed, decode_fact(record), Position(replayed.position + 1))
    loaded = load_snapshot(snapshot_chunks(story.state))
    assert list(snapshot_chunks(replayed)) == list(snapshot_chunks(story.state)) == list(snapshot_chunks(loaded))
    record = story.state.decayed_usage.record()
    assert record is not None
    assert {name for name, *_ in record.tenants} == {LAB, OTHER, TEAM}


def test_capacity_is_that_of_nodes_in_service() -> None:
    story = shared()
    one = Amount(gpu_milli=8 * WHOLE_GPU, gpu_memory_mb=8 * 81_920, cpus=64, memory_mb=1 << 20)
    assert story.state.indexes.capacity == one.plus(one)
    story.forget("n2")
    assert story.state.indexes.capacity == one
    story.forget("n1")
    assert story.state.indexes.capacity == NOTHING

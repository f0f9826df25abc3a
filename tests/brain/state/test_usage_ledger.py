"""Who uses how much: charged once when a job is placed, given back once, whatever ends it."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.demand import Demand, JobClass
from stoker.brain.domain.ids import CONTROL, DEFAULT_TENANT, JobId, NodeName, TenantName, node_principal
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.quota import NOTHING, Amount, Limits, Quota
from stoker.brain.domain.report import TaskInventory
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.codec import load_snapshot, snapshot_chunks
from stoker.brain.state.commands import CompareInventory, Hold, NodeSilent, PutTenant, Requeue, Submit
from tests.brain.state.story import ANNA, Story, inventory, spec

LAB, TEAM, OTHER = map(TenantName, ("lab", "team", "other"))


def shared() -> Story:
    story = Story()
    for name, parent in ((LAB, ""), (TEAM, LAB), (OTHER, "")):
        story.do(PutTenant(by=ANNA, tenant=Tenant(name=name, parent=TenantName(parent)), create=True))
    story.node("n1")
    story.node("n2")
    return story


GANG = Demand(gpu_count=2, gpu_memory_mb=40_000, tasks=2, cpus=3, memory_mb=500)
"""On GPUs that have twice that memory."""
ALL = Amount(gpu_milli=4_000, gpu_memory_mb=160_000, cpus=6, memory_mb=1_000, jobs=1)
HALF = Amount(gpu_milli=2_000, gpu_memory_mb=80_000, cpus=3, memory_mb=500, jobs=1)


def gang(story: Story) -> JobId:
    """Two tasks in a tenant beneath another, not yet placed."""
    return story.submit(replace(spec(tenant=TEAM, job_class=JobClass.ONLINE, retries_max=1), demand=GANG))


def running(story: Story) -> JobId:
    job = gang(story)
    story.run(job, ("n1", 0), ("n2", 0))
    return job


def used(story: Story) -> tuple[Amount, Amount, Amount, Amount, Amount]:
    """By team, lab, other and the two classes."""
    usage_ledger = story.state.indexes.usage_ledger
    tenants = (usage_ledger.used_by(TEAM), usage_ledger.used_by(LAB), usage_ledger.used_by(OTHER))
    return (*tenants, usage_ledger.used_by_class(JobClass.ONLINE), usage_ledger.used_by_class(JobClass.BATCH))


def all_hold(amount: Amount) -> tuple[Amount, Amount, Amount, Amount, Amount]:
    return (amount, amount, NOTHING, amount, NOTHING)


# -- charged -----------------------------------------------------------------------------------------------------


def test_who_waits_or_is_held_uses_nothing() -> None:
    story = shared()
    job = gang(story)
    assert used(story) == all_hold(NOTHING)
    story.tell(Hold, f"{job}")
    assert used(story) == all_hold(NOTHING)
    assert story.state.indexes.usage_ledger.pending_of(TEAM) == 1


def test_a_placement_is_charged_at_once_to_the_tenant_to_all_above_it_and_to_the_class() -> None:
    story = shared()
    story.place(gang(story), ("n1", 0), ("n2", 0))
    assert used(story) == all_hold(ALL)
    assert story.state.indexes.usage_ledger.used_by(DEFAULT_TENANT) == NOTHING


def test_a_job_that_was_placed_waits_no_more() -> None:
    story = shared()
    job = gang(story)
    assert [story.state.indexes.usage_ledger.pending_of(name) for name in (TEAM, LAB, OTHER)] == [1, 1, 0]
    story.place(job, ("n1", 0), ("n2", 0))
    assert story.state.indexes.usage_ledger.pending == {}


def test_an_array_waits_as_many_times_as_it_has_members_and_each_is_charged_when_it_starts() -> None:
    story = shared()
    story.submit(spec(1, tenant=TEAM, array=parse_array("0-4%2")))
    usage_ledger = story.state.indexes.usage_ledger
    assert (usage_ledger.pending_of(LAB), usage_ledger.used_by(LAB)) == (5, NOTHING)
    story.decide()
    assert (usage_ledger.pending_of(LAB), usage_ledger.used_by(LAB)) == (3, Amount(gpu_milli=2_000, cpus=2, jobs=2))


# -- given back --------------------------------------------------------------------------------------------------


def _exits(story: Story, job: JobId) -> None:
    story.end(job, 0)
    story.end(job, 1)


def _fails_and_is_tried_again(story: Story, job: JobId) -> None:
    story.end(job, 0, exit_code=1)
    story.end(job, 1, cause=EndCause.STOPPED)
    assert story.job(job).state is JobState.PENDING


def _is_cancelled(story: Story, job: JobId) -> None:
    story.cancel(job)
    assert used(story) == all_hold(ALL), "what is stopping holds what it has"
    story.end(job, 0, cause=EndCause.STOPPED)
    story.end(job, 1, cause=EndCause.STOPPED)


def _loses_its_runners(story: Story, job: JobId) -> None:
    story.end(job, 0, cause=EndCause.RUNNER_LOST)
    story.end(job, 1, cause=EndCause.STOPPED)
    assert story.job(job).state is JobState.PENDING


def _both_nodes_are_forgotten(story: Story, job: JobId) -> None:
    story.forget("n1")
    story.forget("n2")


def _both_nodes_reboot(story: Story, job: JobId) -> None:
    for name in ("n1", "n2"):
        story.register(name, inventory(name, boot="boot-2"))
        tasks = TaskInventory(boot_id="boot-2", tasks=())
        story.do(CompareInventory(by=node_principal(NodeName(name)), node=NodeName(name), inventory=tasks))


def _runs_into_its_time_limit(story: Story, job: JobId) -> None:
    story.wait(story.job(job).spec.time_limit_ms).all_due()
    assert used(story) == all_hold(ALL)
    story.end(job, 0, cause=EndCause.STOPPED)
    story.end(job, 1, cause=EndCause.STOPPED)
    assert story.job(job).state is JobState.TIMEOUT


def _is_told_to_run_once_more(story: Story, job: JobId) -> None:
    story.tell(Requeue, f"{job}")
    story.end(job, 0, cause=EndCause.STOPPED)
    story.end(job, 1, cause=EndCause.STOPPED)
    assert story.job(job).state is JobState.PENDING


ENDS = (
    _exits,
    _fails_and_is_tried_again,
    _is_cancelled,
    _loses_its_runners,
    _both_nodes_are_forgotten,
    _both_nodes_reboot,
    _runs_into_its_time_limit,
    _is_told_to_run_once_more,
)


@pytest.mark.parametrize("ends", ENDS, ids=[ends.__name__.strip("_") for ends in ENDS])
def test_however_an_attempt_ends_everything_is_given_back_once(ends: Callable[[Story, JobId], None]) -> None:
    """Fault 3: a gang that was evicted went on holding its quota."""
    story = shared()
    job = running(story)
    keys = [story.key(job, rank) for rank in (0, 1)]
    ends(story, job)
    assert used(story) == all_hold(NOTHING)
    for key, node in keys:  # late, and once more
        story.finish(node, key)
    assert used(story) == all_hold(NOTHING)
    waits = int(not story.job(job).is_final)
    assert [story.state.indexes.usage_ledger.pending_of(name) for name in (TEAM, LAB)] == [waits, waits]


def test_a_task_that_has_ended_gives_its_part_back_while_the_others_run() -> None:
    story = shared()
    job = running(story)
    story.end(job, 0)
    assert used(story) == all_hold(HALF)


def test_a_silent_node_goes_on_being_charged_for_what_it_may_still_run() -> None:
    story = shared()
    running(story)
    story.do(NodeSilent(by=CONTROL, node=NodeName("n1")))
    assert used(story) == all_hold(ALL)


def test_the_next_attempt_is_charged_like_the_first() -> None:
    story = shared()
    job = running(story)
    _loses_its_runners(story, job)
    story.place(job, ("n2", 0), ("n2", 2))
    assert used(story) == all_hold(ALL)


def test_a_placement_that_is_refused_charges_nobody() -> None:
    """Fault 4: a check that was rejected kept the quota it had taken before."""
    story = shared()
    wall = Tenant(name=LAB, quota=Quota(limits=Limits(gpus=4)))
    story.do(PutTenant(by=ANNA, tenant=wall, create=False))
    first, second = gang(story), gang(story)
    placed = story.decide()
    assert placed == [f"{first}"]
    for _ in range(3):
        assert story.decide() == []
    assert used(story) == all_hold(ALL)
    assert story.state.indexes.usage_ledger.pending_of(TEAM) == 1
    _exits_at_once(story, first)
    assert story.decide() == [f"{second}"]
    assert used(story) == all_hold(ALL)


def _exits_at_once(story: Story, job: JobId) -> None:
    story.started(job)
    _exits(story, job)


def test_a_submit_that_is_refused_counts_for_nobody() -> None:
    story = shared()
    bad = spec(1, tenant=TEAM, workdir="relative")
    story.refused(Submit(by=ANNA, specs=(spec(1, tenant=TEAM), bad)))
    assert story.state.indexes.usage_ledger.pending == {}


def test_the_books_are_the_same_after_a_snapshot() -> None:
    story = shared()
    running(story)
    gang(story)
    assert load_snapshot(list(snapshot_chunks(story.state))).indexes.usage_ledger == story.state.indexes.usage_ledger


# -- bounds on who waits -----------------------------------------------------------------------------------------


def limited(story: Story, name: TenantName, **limits: int) -> None:
    tenant = replace(story.state.tenants[name], quota=Quota(limits=Limits(**limits)))
    story.do(PutTenant(by=ANNA, tenant=tenant, create=False))


@pytest.mark.parametrize("whose", [TEAM, LAB])
def test_a_cap_on_a_queue_counts_who_waits_in_the_tenant_and_beneath_it_and_nobody_else(whose: TenantName) -> None:
    """Fault 17: at the cap of one queue nothing more was taken anywhere, or nothing started."""
    story = shared()
    limited(story, whose, pending=3)
    jobs = [story.submit(spec(1, tenant=TEAM)) for _ in range(3)]
    assert story.refused(Submit(by=ANNA, specs=(spec(1, tenant=TEAM),))).code == "queue_full"
    story.submit(spec(1, tenant=OTHER))
    assert len(story.decide()) == 4
    story.submit(*[spec(1, tenant=TEAM)] * 3)
    assert story.refused(Submit(by=ANNA, specs=(spec(1, tenant=TEAM),))).code == "queue_full"
    assert all(story.job(job).live_attempt for job in jobs)


def test_the_members_of_an_array_count_one_by_one_and_all_or_none_are_taken() -> None:
    story = shared()
    limited(story, TEAM, pending=5)
    assert story.refused(Submit(by=ANNA, specs=(spec(1, tenant=TEAM, array=parse_array("0-5")),))).code == "queue_full"
    two = (spec(1, tenant=TEAM, array=parse_array("0-2")),) * 2
    assert story.refused(Submit(by=ANNA, specs=two)).code == "queue_full"
    assert story.state.indexes.usage_ledger.pending == {}
    story.submit(spec(1, tenant=TEAM, array=parse_array("0-4")))


def test_a_job_that_comes_back_waits_also_beyond_the_cap() -> None:
    story = shared()
    job = running(story)
    limited(story, TEAM, pending=1)
    gang(story)
    _loses_its_runners(story, job)
    assert story.state.indexes.usage_ledger.pending_of(TEAM) == 2


# -- limits on what runs -----------------------------------------------------------------------------------------


def test_many_jobs_may_wait_for_a_limit_that_lets_one_run_at_a_time() -> None:
    """In the MVP a limit was looked at on submit only: a tenant queued far more than that and started it all."""
    story = shared()
    limited(story, TEAM, gpus=4)
    jobs = [gang(story) for _ in range(3)]
    for job in jobs:
        assert story.decide() == [f"{job}"]
        _exits_at_once(story, job)


def test_a_tenant_whose_quota_nobody_set_runs_what_it_likes_and_one_with_zero_nothing() -> None:
    """In the MVP a tenant began with a quota of zero."""
    story = shared()
    assert story.decide() == []
    job = story.submit(spec(8, tenant=OTHER))
    assert story.decide() == [f"{job}"]
    limited(story, OTHER, gpus=0)
    assert story.refused(Submit(by=ANNA, specs=(spec(1, tenant=OTHER),))).code == "over_tenant_limit"
    story.submit(spec(0, tenant=OTHER))


def test_a_limit_of_the_tenant_above_holds_for_all_beneath_it_together() -> None:
    story = shared()
    limited(story, LAB, jobs=2)
    for tenant in (TEAM, LAB, TEAM, OTHER):
        story.submit(spec(1, tenant=tenant))
    assert story.decide() == ["1", "2", "4"]


def test_a_huge_limit_on_what_no_node_has_is_in_nobodys_way() -> None:
    """Fault 16."""
    story = shared()
    limited(story, TEAM, gpus=9_999, gpu_memory_mb=2**53 - 1)
    job = story.submit(spec(0, tenant=TEAM))
    assert story.decide() == [f"{job}"]


def test_a_job_that_waits_for_a_limit_holds_up_no_smaller_one_behind_it() -> None:
    """Fault 83: one job that was too large for its quota blocked a third."""
    story = shared()
    limited(story, TEAM, gpus=4)
    small, large, third = (story.submit(spec(size, tenant=TEAM)) for size in (1, 4, 3))
    assert story.decide() == [f"{small}", f"{third}"]
    assert story.job(large).state is JobState.PENDING


@pytest.mark.parametrize(("limit", "most"), [("gpus", 3), ("cpus", 5), ("memory_mb", 999), ("gpu_memory_mb", 159_999)])
def test_what_alone_is_beyond_a_limit_is_refused_since_it_could_never_start(limit: str, most: int) -> None:
    story = shared()
    limited(story, LAB, **{limit: most})
    wish = replace(spec(tenant=TEAM), demand=GANG)
    refusal = story.refused(Submit(by=ANNA, specs=(wish,)))
    assert refusal.code == "over_tenant_limit"
    assert refusal.facts["tenant"] == LAB
    limited(story, LAB, **{limit: most + 1})
    story.submit(wish)
    assert len(story.decide()) == 1

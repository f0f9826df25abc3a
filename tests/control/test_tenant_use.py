"""What ends, however it ends, gives back what its tenant and its class used, at once and once.

Each is a fault that users of other schedulers, or of the systems that Stoker replaces, reported.
"""

from stoker.brain.domain.array import JobRef
from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.ids import JobId, NodeName, TenantName
from stoker.brain.domain.instruction import TaskKey
from stoker.brain.domain.job import EndCause
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.quota import NOTHING, Amount, Limits, Quota, held
from stoker.brain.domain.report import TaskStatus
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.commands import ForgetNode, PutTenant, Requeue
from tests.control.stage import ANNA, Player, Stage, running, stage, virtual
from tests.rig.sim_log import SimDisk

ORG, TEAM = TenantName("org"), TenantName("team")


async def tenants(s: Stage, **limits: int) -> None:
    await s.committer.ask(PutTenant(by=ANNA, tenant=Tenant(name=ORG), create=True))
    quota = Quota(limits=Limits(**limits))
    await s.committer.ask(PutTenant(by=ANNA, tenant=Tenant(name=TEAM, parent=ORG, quota=quota), create=True))


def used(s: Stage) -> Amount:
    """The same for the tenant, the one above it and the class, or it is an error."""
    usage_ledger = s.state.indexes.usage_ledger
    (found,) = {usage_ledger.used_by(TEAM), usage_ledger.used_by(ORG), usage_ledger.used_by_class(JobClass.BATCH)}
    assert found == sum_of_what_is_held(s)
    return found


def sum_of_what_is_held(s: Stage) -> Amount:
    total = NOTHING
    for job in s.state.jobs.values():
        total = total.plus(held(job))
    return total


async def begin(s: Stage, player: Player, **fields: object) -> JobId:
    job = await s.submit(tenant=TEAM, **fields)
    start = await player.next_start(len(player.starts) + 1)
    await player.say_started(start.key)
    return job


@virtual
async def test_every_way_to_end_gives_everything_back_at_once() -> None:
    async with stage() as s:
        await tenants(s)
        player = await s.join("n1", 8)
        for ends, cause, code in (
            (JobState.SUCCEEDED, EndCause.EXITED, 0),
            (JobState.FAILED, EndCause.EXITED, 3),
            (JobState.FAILED, EndCause.START_FAILED, 0),
            (JobState.NODE_FAILED, EndCause.RUNNER_LOST, 0),
        ):
            job = await begin(s, player, gpus=2, requeue=False)
            assert used(s).gpu_milli == 2_000
            await player.end(player.starts[-1].key, code, cause)
            assert s.job(job).state is ends
            assert used(s) == NOTHING
        job = await begin(s, player, gpus=2)
        await s.cancel(job)
        assert used(s).gpu_milli == 2_000, "cancel means gone, and it isn't yet"
        await player.end(player.starts[-1].key, 0, EndCause.STOPPED)
        assert used(s) == NOTHING


@virtual
async def test_a_repeated_or_late_end_gives_nothing_back_twice() -> None:
    """dgpu's count went below zero."""
    async with stage() as s:
        await tenants(s)
        player = await s.join("n1", 8)
        await begin(s, player, gpus=2)
        first = player.starts[-1].key
        await begin(s, player, gpus=3)
        for _ in range(4):
            await player.end(first)
            assert used(s).gpu_milli == 3_000


@virtual
async def test_a_gang_that_is_evicted_while_it_starts_holds_no_quota_and_the_next_attempt_its_own() -> None:
    """One rank reported, another not, and the node of the other is forgotten."""
    async with stage() as s:
        await tenants(s)
        one, _ = await s.join("n1", 4), await s.join("n2", 4)
        job = await s.submit(gpus=4, tasks=2, tenant=TEAM)
        start = await one.next_start()
        await one.say_started(start.key)
        assert used(s) == Amount(8_000, 0, 2, 0, 1)
        await s.committer.ask(ForgetNode(by=ANNA, node=NodeName("n2"), force=True))
        await s.until(lambda: bool(one.stops))
        assert used(s).gpu_milli == 4_000, "what still runs is still used"
        await one.end(start.key, 0, EndCause.STOPPED)
        assert used(s) == NOTHING
        assert s.job(job).state is JobState.PENDING
        await s.join("n3", 4)
        await one.next_start(2)
        assert used(s) == Amount(8_000, 0, 2, 0, 1)


@virtual
async def test_a_start_that_the_node_refuses_gives_the_quota_back_at_once() -> None:
    async with stage() as s:
        await tenants(s, gpus=4)
        player = await s.join("n1", 8)
        await begin(s, player, gpus=4)
        waits = await s.submit(gpus=4, tenant=TEAM)
        await player.end(player.starts[-1].key, 0, EndCause.START_FAILED)
        await player.next_start(2)
        assert s.job(waits).state is JobState.STARTING
        assert used(s).gpu_milli == 4_000


@virtual
async def test_a_job_below_the_cap_of_its_tenant_starts() -> None:
    async with stage() as s:
        await tenants(s, gpus=4)
        player = await s.join("n1", 8)
        await begin(s, player, gpus=3)
        assert used(s).gpu_milli == 3_000


@virtual
async def test_a_node_that_registers_again_changes_neither_what_is_used_nor_what_there_is() -> None:
    """dgpu added its GPUs to the total once more, and marked them idle."""
    async with stage() as s:
        await tenants(s)
        player = await s.join("n1", 8)
        job = await begin(s, player, gpus=2)
        before = used(s), s.state.indexes.free_milli
        for _ in range(3):
            again = await s.register("n1", 8)
            await again.say_inventory(*(status_of(s, job),))
            assert (used(s), s.state.indexes.free_milli) == before


def status_of(s: Stage, job: JobId) -> TaskStatus:
    (task,) = s.job(job).attempts[-1].tasks
    return running(TaskKey(job, 1, 0), *task.placement.gpus)


@virtual
async def test_a_retry_a_requeue_and_a_restart_of_the_control_plane_count_each_attempt_once() -> None:
    disk = SimDisk()
    async with stage(disk) as s:
        await tenants(s)
        player = await s.join("n1", 8)
        job = await begin(s, player, gpus=2, retries_max=1)
        await player.end(player.starts[-1].key, 1)
        assert used(s) == NOTHING
        await player.say_started((await player.next_start(2)).key)
        assert used(s).gpu_milli == 2_000
        await s.committer.ask(Requeue(by=ANNA, target=JobRef(job)))
        await player.end(player.starts[-1].key, 0, EndCause.STOPPED)
        await player.say_started((await player.next_start(3)).key)
        assert used(s).gpu_milli == 2_000
    async with stage(disk) as s:
        assert used(s).gpu_milli == 2_000

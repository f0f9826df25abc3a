"""Log lines for operators: the names and fields that they already search for."""

from stoker.brain.domain.array import parse_array
from stoker.brain.domain.ids import TenantName
from stoker.brain.domain.lifecycle import JobState
from stoker.brain.domain.quota import Limits, Pools, Quota
from stoker.brain.domain.tenant import Tenant
from stoker.brain.state.commands import DeleteTenant, PutTenant, SetPools
from tests.control.stage import ANNA, stage, virtual


@virtual
async def test_the_lines_of_a_job_say_where_it_ran_and_on_which_gpus() -> None:
    async with stage() as s:
        player = await s.join("n1")
        job = await s.submit(gpus=2)
        start = await player.next_start()
        await player.end(start.key, exit_code=3)
        await s.until_state(job, JobState.FAILED)
        await s.pause()
        where = f"agent_id=n1 gpu_ids={','.join(start.gpus)} task_id={job} priority=500"
        for name in ("task_scheduled", "task_finished", "task_failed"):
            (line,) = (line for line in s.notes.lines if f" {name} " in line)
            assert where in line


@virtual
async def test_a_job_that_went_well_is_not_told_as_failed() -> None:
    async with stage() as s:
        player = await s.join("n1")
        await player.run_to_end(await s.submit())
        await s.pause()
        assert not any(" task_failed " in line for line in s.notes.lines)


@virtual
async def test_a_member_of_an_array_is_told_under_the_id_that_people_know() -> None:
    async with stage() as s:
        player = await s.join("n1", 1)
        array = await s.submit(array=parse_array("4-5"))
        start = await player.next_start()
        await player.say_started(start.key)
        await player.end(start.key)
        await s.pause()
        (line,) = (line for line in s.notes.lines if " task_finished " in line)
        assert f"task_id={array}_4 " in line


@virtual
async def test_who_changed_tenants_and_shares_is_told_and_what_they_are_now() -> None:
    async with stage() as s:
        quota = Quota(guaranteed=2, limits=Limits(gpus=4))
        await s.committer.ask(PutTenant(by=ANNA, tenant=Tenant(name=TenantName("ml"), quota=quota), create=True))
        await s.committer.ask(SetPools(by=ANNA, pools=Pools(online=600_000, batch=400_000)))
        await s.committer.ask(DeleteTenant(by=ANNA, name=TenantName("ml")))
        await s.pause()
        said = "\n".join(s.notes.lines)
        assert "tenant_defined tenant=ml parent= gpus_max=4 guaranteed_gpus=2 by=user:anna" in said
        assert "quota_updated online_percent=0.6 batch_percent=0.4 strict=False by=user:anna" in said
        assert "tenant_deleted tenant=ml by=user:anna" in said

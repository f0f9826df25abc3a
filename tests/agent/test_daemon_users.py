"""As whom jobs run, and which accounts' jobs are taken (A12, A22), on virtual time."""

import msgspec

from stoker.agent.instructions import SHARE_MB_MIN, TaskRules, memory_share
from stoker.brain.domain.ids import GpuUuid
from stoker.brain.domain.job import EndCause
from tests.agent.twin_runner import TwinRunner
from tests.agent.twins import Node, key, on_virtual_time, registration, start


async def _runs_for(node: Node, *users: str) -> list[str]:
    """What the log says of users once jobs of these have started."""
    await node.connected()
    for job, user in enumerate(users, start=1):
        node.control.tell(msgspec.structs.replace(start(key(job)), user=user))
    await node.until(lambda: len(node.runner.starts) == len(users))
    return [line for line in node.notes.lines if "user_not_taken_on" in line]


@on_virtual_time
async def test_an_agent_that_is_not_root_says_once_that_it_runs_all_as_itself() -> None:
    async with Node(account="stoker") as node:
        (line,) = await _runs_for(node, "", "stoker", "ann", "bob")
        assert "ann" in line
        assert "stoker" in line


@on_virtual_time
async def test_an_agent_that_is_root_has_nothing_to_say_of_users() -> None:
    async with Node(account="root") as node:
        assert await _runs_for(node, "ann", "") == []


@on_virtual_time
async def test_a_job_of_the_agents_own_account_is_as_it_should_be() -> None:
    async with Node(account="stoker") as node:
        assert await _runs_for(node, "stoker", "") == []


async def _answered(node: Node, *users: str) -> dict[str, str]:
    """What became of a start of each account: nothing, or why it was refused."""
    await node.connected()
    for job, user in enumerate(users, start=1):
        node.control.tell(msgspec.structs.replace(start(key(job)), user=user))
    await node.until(lambda: len(node.runner.starts) + len(node.control.finished) == len(users))
    refused = {told.key.job: told.end for told in node.control.finished}
    assert all(end.cause is EndCause.ACCOUNT_REFUSED for end in refused.values())
    return {user: refused[job].error if job in refused else "" for job, user in enumerate(users, start=1)}


def _without_cgroups() -> TwinRunner:
    runner = TwinRunner()
    runner.cgroups = False
    return runner


@on_virtual_time
async def test_a22_without_cgroups_only_jobs_of_accounts_that_are_named_start_and_others_cost_nothing() -> None:
    async with Node(runner=_without_cgroups(), rules=TaskRules(accounts=("root", "ann"))) as node:
        said = await _answered(node, "ann", "bob", "")
        assert (said["ann"], said[""]) == ("", "")
        assert "it takes no jobs of bob: executor.accounts_without_cgroups" in said["bob"]
        assert "takes jobs of root, ann alone" in node.daemon.node.limits


@on_virtual_time
async def test_a22_with_cgroups_or_where_the_agent_is_not_root_all_accounts_are_taken() -> None:
    async with Node(rules=TaskRules(accounts=("ann",))) as node:
        assert await _answered(node, "ann", "bob") == {"ann": "", "bob": ""}
        assert node.daemon.node.limits == ""
    async with Node(runner=_without_cgroups(), account="stoker", rules=TaskRules(accounts=None)) as node:
        assert await _answered(node, "ann", "bob") == {"ann": "", "bob": ""}


@on_virtual_time
async def test_a21_a_task_that_asks_for_no_memory_has_its_share_and_one_that_does_has_what_it_asks() -> None:
    for shares, asked, limit in ((True, 0, 4_096), (True, 512, 0), (False, 0, 0)):
        async with Node(rules=TaskRules(memory_share=shares)) as node:
            await node.connected()
            node.control.tell(msgspec.structs.replace(start(key(1)), memory_mb=asked))
            await node.until(lambda: node.runner.starts)
            assert node.runner.starts[-1].memory_mb == limit


def test_a21_the_share_is_that_of_the_cpus_or_of_the_gpus_whichever_is_more() -> None:
    node = msgspec.structs.replace(registration(4, "root").inventory, cpus=64, memory_mb=64_000)
    one = msgspec.structs.replace(start(key(1)), cpus=1, gpus=())
    assert memory_share(node, one) == SHARE_MB_MIN
    assert memory_share(node, msgspec.structs.replace(one, cpus=16)) == 16_000
    assert memory_share(node, msgspec.structs.replace(one, gpus=(GpuUuid("a"), GpuUuid("b")))) == 32_000
    quarter = msgspec.structs.replace(one, gpus=(GpuUuid("a"),), gpu_share=250)
    assert memory_share(node, quarter) == 4_000
    assert memory_share(msgspec.structs.replace(node, memory_mb=512), one) == 512
    assert memory_share(msgspec.structs.replace(node, gpus=()), msgspec.structs.replace(one, cpus=64)) == 64_000

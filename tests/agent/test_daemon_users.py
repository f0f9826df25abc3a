"""Rule A11 of `agent/daemon.py`, on virtual time."""

import msgspec

from tests.agent.twins import Node, key, on_virtual_time, start


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

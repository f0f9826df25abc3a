"""Both clients keep the rules of a client of several control planes, over real sockets."""

import asyncio
from collections.abc import Callable

import pytest

from stoker.wire.client import AsyncClient, LogQuery
from tests.contracts import client_of_pair as contract
from tests.contracts.client import Connect
from tests.real.fake_pair import fake_pair
from tests.real.test_client_contract import CLIENTS

pytestmark = pytest.mark.timeout(60)


@CLIENTS
@pytest.mark.parametrize("rule", contract.RULES, ids=lambda rule: rule.__name__)
def test_a_client_of_a_pair_keeps_the_rule_that(connect: Connect, rule: Callable[[Connect], None]) -> None:
    rule(connect)


async def test_many_tasks_go_over_to_the_new_active_together_and_each_submits_once() -> None:
    with fake_pair() as pair:
        async with AsyncClient(pair.servers) as client:
            await client.submit(contract.JOB)
            pair.a.loses = 1_000
            tasks = [asyncio.create_task(client.submit(contract.JOB)) for _ in range(50)]
            await asyncio.sleep(0.2)
            pair.a.kill()
            pair.take_over()
            jobs = await asyncio.gather(*tasks)
            assert len({job.id for job in jobs}) == 50
            assert pair.cluster.orders == ["submit"] * 51


async def test_a_hundred_who_follow_output_hold_up_nobody_else() -> None:
    with fake_pair() as pair:
        async with AsyncClient(pair.servers) as client:
            await client.submit(contract.JOB)
            asked = LogQuery(offset=len(pair.cluster.log), wait_s=20)
            waiting = [asyncio.create_task(client.logs("1", asked)) for _ in range(100)]
            await asyncio.sleep(0.1)
            async with asyncio.timeout(10):
                assert (await client.job("1")).id == "1"
            pair.cluster.write(b"x", ended=True)
            assert {part.data for part in await asyncio.gather(*waiting)} == {b"x"}

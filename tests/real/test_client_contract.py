"""Both clients keep the rules of a client, over real sockets."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from stoker.brain.domain.errors import StokerError
from stoker.wire.client import AsyncClient, Client
from tests.contracts import client as contract
from tests.real.serving import Served, free_port, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("control"), free_port()) as served:
        yield served


@contextmanager
def blocking(servers: str, token: str = "", **settings: Any) -> Iterator[contract.Call]:  # noqa: ANN401  # a client's
    with Client(servers, token=token, **settings) as client:

        def call(name: str, *words: object, **more: object) -> object:
            member = getattr(client, name)
            answer = member(*words, **more) if callable(member) else member
            return list(answer) if isinstance(answer, Iterator) else answer

        yield call


@contextmanager
def on_a_loop(servers: str, token: str = "", **settings: Any) -> Iterator[contract.Call]:  # noqa: ANN401  # a client's
    with asyncio.Runner() as runner:

        async def made() -> AsyncClient:
            return AsyncClient(servers, token=token, **settings)

        async def done(answer: Any) -> object:  # noqa: ANN401  # whatever a method gives back
            if isinstance(answer, AsyncIterator):
                return [each async for each in answer]
            return await answer if isinstance(answer, Awaitable) else answer

        client = runner.run(made())

        def call(name: str, *words: object, **more: object) -> object:
            async def told() -> object:
                member = getattr(client, name)
                return await done(member(*words, **more) if callable(member) else member)

            return runner.run(told())

        try:
            yield call
        finally:
            runner.run(client.close())


CLIENTS = pytest.mark.parametrize("connect", [blocking, on_a_loop])


@CLIENTS
@pytest.mark.parametrize("rule", contract.RULES, ids=lambda rule: rule.__name__)
def test_a_client_keeps_the_rule_that(connect: contract.Connect, rule: Callable[[contract.Connect], None]) -> None:
    rule(connect)


@CLIENTS
@pytest.mark.parametrize("rule", contract.SERVED, ids=lambda rule: rule.__name__)
def test_with_a_control_plane_a_client_keeps_the_rule_that(
    connect: contract.Connect, server: Served, rule: Callable[[contract.Connect, str], None]
) -> None:
    rule(partial(connect, token=server.token), server.url)


async def test_many_tasks_may_ask_at_once_over_a_bounded_number_of_connections(server: Served) -> None:
    async with AsyncClient(server.url, token=server.token) as client:
        answers = await asyncio.gather(*(client.health() for _ in range(300)))
        assert len(answers) == 300
        assert len(client._transport._idle) <= 32


async def test_a_task_that_is_cancelled_leaves_no_half_answer_to_the_next(server: Served) -> None:
    async with AsyncClient(server.url, token=server.token) as client:
        for turns in range(12):
            task = asyncio.create_task(client.status())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert (await client.health()).status == "ok"


async def test_a_server_that_says_nothing_is_given_up() -> None:
    mute = threading.Event()
    with contract.answering(contract.whole(), contract.whole(), mute=mute) as silent:
        async with AsyncClient(silent.url, patience_s=0.0) as client:
            client._transport._answer_s = 0.05
            with pytest.raises(StokerError, match="nothing came"):
                await client.health()
        mute.set()

"""Both Python clients as one function each, for tests of what either does."""

import asyncio
from collections.abc import Callable
from typing import Final, TypedDict, Unpack

import pytest

from stoker.brain.domain.errors import Refusal, StokerError
from stoker.wire.client import AsyncClient, Client


class Options(TypedDict, total=False):
    """Of both clients."""

    token: str
    ca_file: str
    insecure: bool
    patience_s: float


def ask(servers: str, **options: Unpack[Options]) -> None:
    with Client(servers, **options) as client:
        client.status()


def ask_async(servers: str, **options: Unpack[Options]) -> None:
    async def work() -> None:
        async with AsyncClient(servers, **options) as client:
            await client.status()

    asyncio.run(work())


CLIENTS: Final = pytest.mark.parametrize("asks", [ask, ask_async], ids=["blocking", "asyncio"])
Asks = Callable[..., None]


def said(work: Callable[[], object]) -> Refusal:
    """The refusal that this ends with."""
    with pytest.raises(StokerError) as caught:
        work()
    return caught.value.refusal


def refused(asks: Asks, servers: str, **options: Unpack[Options]) -> Refusal:
    return said(lambda: asks(servers, **options))

"""Who may keep a request open, and how many of them: V1 to V3 of `api.http.responses`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
from starlette.types import Message

from stoker.api.http.responses import EndlessResponse, StreamLimit
from stoker.brain.domain.access import OWNER, Caller, Role, TokenId
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.ids import Principal


def readers(most: int = 8) -> StreamLimit:
    return StreamLimit(most, "look on", "come back")


def person(name: str, token: str = "1") -> Caller:
    return Caller(principal=Principal(f"user:{name}"), role=Role.USER, token=TokenId(token))


def refused(kind: StreamLimit, caller: Caller) -> str:
    with pytest.raises(StokerError) as fault, kind.counted(caller):
        pass
    assert fault.value.refusal.code == "too_many_streams"
    return fault.value.refusal.message


def test_one_principal_has_at_most_a_quarter_and_keeps_nobody_out() -> None:
    """V2. With another token he is the same."""
    kind, ada = readers(), person("ada")
    with ExitStack() as held:
        for token in ("1", "2"):
            held.enter_context(kind.counted(person("ada", token)))
        assert refused(kind, ada) == "2 readers of user:ada look on already, as many as may"
        held.enter_context(kind.counted(person("bob")))
        assert kind.count == 3
    assert kind.count == 0
    with kind.counted(ada):
        assert kind.count == 1


def test_all_together_are_bounded() -> None:
    """V1."""
    kind = readers()
    with ExitStack() as held:
        for name in "abcdefgh":
            held.enter_context(kind.counted(person(name)))
        assert refused(kind, person("i")) == "8 readers look on already"


def test_an_owner_without_neighbours_may_have_them_all() -> None:
    kind = readers()
    with ExitStack() as held:
        for _ in range(8):
            held.enter_context(kind.counted(OWNER))
        assert refused(kind, OWNER) == "8 readers look on already"


async def test_of_many_who_come_at_once_no_more_are_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """V3: each of them was looked at before any of them began to read."""
    kind, over = readers(4), asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        await over.wait()
        yield b""

    async def receive() -> Message:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)

    answers = [EndlessResponse(kind, person(str(number)), endless(), {}, "text/plain") for number in range(9)]
    scope = {"type": "http", "asgi": {"spec_version": "2.0"}}
    asking = [asyncio.ensure_future(answer(scope, receive, send)) for answer in answers]
    await asyncio.sleep(0)
    assert kind.count == 4
    over.set()
    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(isinstance(end, StokerError) for end in ends) == 5
    assert kind.count == 0

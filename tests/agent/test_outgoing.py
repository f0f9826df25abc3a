"""Duties of a stream that end together: what each of them came to is looked at, or asyncio writes a traceback of it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable

from stoker.agent.outgoing import first_failure
from stoker.agent.ports import LinkDown
from tests.agent.twins import on_virtual_time

Duty = Callable[[asyncio.Event], Awaitable[None]]


async def broke(cut: asyncio.Event) -> None:
    await cut.wait()
    raise LinkDown("the control plane was killed")


async def outlives(cut: asyncio.Event) -> None:
    """Says that the stream broke when it is told to end."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise LinkDown("and this stream too") from None


async def given_up(duty: Duty) -> bool:
    """The stream breaks, and before anybody has heard of it whoever has these duties is cancelled."""
    cut = asyncio.Event()

    async def serve() -> None:
        raise await first_failure([asyncio.ensure_future(duty(cut)), asyncio.ensure_future(broke(cut))])

    serving = asyncio.ensure_future(serve())
    await asyncio.wait((serving,), timeout=1.0)
    cut.set()
    await asyncio.wait((asyncio.ensure_future(cut.wait()),))
    serving.cancel()
    await asyncio.wait((serving,))
    return serving.cancelled()


@on_virtual_time
async def test_a_stream_that_breaks_at_the_moment_its_duties_are_given_up_leaves_no_fault_behind() -> None:
    """As all duties do when an active one is killed: those that read output are part of one that is cancelled then."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    for duty in (broke, outlives):
        assert await given_up(duty)
    gc.collect()
    assert told == []

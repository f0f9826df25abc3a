"""If an essential part dies, the process stops: `control.supervisor`."""

import asyncio

import pytest

from stoker.control.supervisor import Duties, DutyEnded
from tests.control.stage import stage, virtual


async def forever() -> None:
    await asyncio.Event().wait()


async def broken() -> None:
    raise ZeroDivisionError("a defect")


async def idle() -> None:
    return


async def test_a_part_that_raises_or_returns_ends_the_wait_with_its_name_and_cause() -> None:
    for work, words in ((broken(), "auditor ended: ZeroDivisionError"), (idle(), "auditor ended: it returned")):
        async with Duties() as duties:
            duties.begin("other", forever())
            duties.begin("auditor", work)
            with pytest.raises(DutyEnded, match=words):
                await duties.until(asyncio.Event())


async def test_leaving_ends_every_part() -> None:
    async with Duties() as duties:
        task = duties.begin("other", forever())
    assert task.cancelled()


async def test_a_stop_that_was_asked_for_is_no_fault() -> None:
    stop = asyncio.Event()
    async with Duties() as duties:
        duties.begin("other", forever())
        asyncio.get_running_loop().call_soon(stop.set)
        await duties.until(stop)


@virtual
async def test_an_active_control_plane_keeps_all_its_parts_running() -> None:
    async with stage() as s:
        waiting = asyncio.ensure_future(s.duties.until(asyncio.Event()))
        await s.pause(600)
        assert not waiting.done()
        waiting.cancel()

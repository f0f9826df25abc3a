"""What is under way for the machine: rules N1 to N3 of `live.failover.driver`."""

import asyncio

from stoker.live.failover.driver import NamedTasks
from tests.control.stage import virtual


class Broken:
    """What it is told of tasks that raised."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: str, fault: BaseException) -> None:
        self.told.append((name, str(fault)))


async def for_ever() -> None:
    await asyncio.Event().wait()


async def raises() -> None:
    raise ValueError("nobody foresaw it")


class Careful:
    """A task that sees something to its end when it is cancelled, as whoever writes to a disk does."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.saw_to_it = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.may_end.wait()
            self.saw_to_it = True
            raise


@virtual
async def test_n1_a_newer_task_takes_the_place_of_one_of_its_name() -> None:
    tasks, careful = NamedTasks(Broken()), Careful()
    tasks.begin("look", careful.run())
    await asyncio.sleep(0)
    tasks.begin("look", for_ever())
    careful.may_end.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert careful.saw_to_it
    assert "look" in tasks, "the end of the earlier one says nothing about the newer"
    await tasks.end()
    assert "look" not in tasks


@virtual
async def test_n2_a_task_that_breaks_is_told_of_and_one_that_was_stopped_is_not() -> None:
    broken = Broken()
    tasks = NamedTasks(broken)
    tasks.begin("put", raises())
    tasks.begin("follow", for_ever())
    await asyncio.sleep(0)
    await tasks.stop("follow", "nothing of this name")
    assert broken.told == [("put", "nobody foresaw it")]


@virtual
async def test_n3_what_is_seen_to_its_end_is_so_also_when_whoever_waits_for_it_is_cancelled() -> None:
    """A life ends while its standby stops following: what is on the disk has to get into the state all the same."""
    tasks, careful = NamedTasks(Broken()), Careful()
    tasks.begin("follow", careful.run())
    await asyncio.sleep(0)
    stopping = asyncio.create_task(tasks.stop("follow"))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.sleep(0)
    ending = asyncio.create_task(tasks.end())
    await asyncio.sleep(0)
    careful.may_end.set()
    await ending
    assert careful.saw_to_it

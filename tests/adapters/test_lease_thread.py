"""The thread behind the marker's folder: whoever asks gets an answer in time, whatever the file system does."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest

from stoker.adapters.bounded_thread import BoundedThread, TookTooLong


class Rock:
    """Something that blocks until it is lifted."""

    def __init__(self) -> None:
        self.lifted = threading.Event()
        self.begun = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        self.lifted.wait(30)
        return "late"


@pytest.fixture
async def lone() -> AsyncIterator[BoundedThread]:
    made = BoundedThread("lone", (OSError,))
    yield made
    made.close()


@contextmanager
def rock() -> Iterator[Rock]:
    made = Rock()
    try:
        yield made
    finally:
        made.lifted.set()


async def test_b1_what_hangs_is_given_up_in_time(lone: BoundedThread) -> None:
    with rock() as hangs, pytest.raises(TookTooLong, match=r"within 0\.05 s"):
        await lone.ask(hangs, 0.05)


async def test_b2_while_something_hangs_everything_else_is_refused_at_once_and_no_thread_is_added(
    lone: BoundedThread,
) -> None:
    with rock() as hangs:
        with pytest.raises(TookTooLong):
            await lone.ask(hangs, 0.01)
        threads = threading.active_count()
        for _ in range(50):
            with pytest.raises(TookTooLong, match="still hangs"):
                await lone.ask(lambda: "never", 3_600)
        assert threading.active_count() == threads


async def test_b3_once_it_is_back_the_thread_serves_again_and_the_late_answer_is_nobodys(lone: BoundedThread) -> None:
    with rock() as hangs:
        with pytest.raises(TookTooLong):
            await lone.ask(hangs, 0.01)
        hangs.lifted.set()
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await lone.ask(lambda: "mine", 5) == "mine"
                    break
                except TookTooLong:
                    await asyncio.sleep(0)


async def test_b1_whoever_waits_for_his_turn_is_told_in_time_too(lone: BoundedThread) -> None:
    with rock() as slow:
        first = asyncio.create_task(lone.ask(slow, 30))
        while not slow.begun.is_set():
            await asyncio.sleep(0)
        with pytest.raises(TookTooLong):
            await lone.ask(lambda: "second", 0.05)
        slow.lifted.set()
        assert await first == "late"


async def test_what_was_asked_by_someone_who_went_away_is_waited_for(lone: BoundedThread) -> None:
    with rock() as slow:
        gone = asyncio.create_task(lone.ask(slow, 30))
        while not slow.begun.is_set():
            await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        second = asyncio.create_task(lone.ask(lambda: "second", 30))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not second.done()
        slow.lifted.set()
        assert await second == "second"


async def test_faults_of_the_world_come_back_as_they_are_even_the_systems_own_timeout(lone: BoundedThread) -> None:
    def fails() -> None:
        raise TimeoutError(110, "Connection timed out")

    with pytest.raises(TimeoutError, match="Connection timed out"):
        await lone.ask(fails, 5)
    assert await lone.ask(lambda: "well", 5) == "well"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_defect_is_told_to_whoever_asked_and_the_next_one_gets_a_new_thread(lone: BoundedThread) -> None:
    def broken() -> None:
        raise AssertionError("a defect of ours")

    with pytest.raises(AssertionError, match="a defect of ours"):
        await lone.ask(broken, 5)
    while any(thread.name == "lone" for thread in threading.enumerate()):
        await asyncio.sleep(0)
    assert await lone.ask(lambda: "well", 5) == "well"


def test_b4_a_loop_ends_while_something_still_hangs() -> None:
    async def hurried(hangs: Rock) -> None:
        lone = BoundedThread("lone", (OSError,))
        with pytest.raises(TookTooLong):
            await lone.ask(hangs, 0.01)
        lone.close()

    with rock() as hangs:
        asyncio.run(hurried(hangs))
    for thread in threading.enumerate():
        if thread.name == "lone":
            assert thread.daemon
            thread.join(10)

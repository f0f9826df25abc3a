"""A thread of its own for one call that may block for ever, so that it holds nobody up.

A system call on a file system whose server is gone may not come back for hours, and nothing ends it. So one thread does
all of them, one after the other, and nobody waits for it for longer than he said.

Rules: B1  `ask` answers or raises within the time it was given
       B2  while something has outlived its time, whatever else is asked raises at once: threads never pile up
       B3  what comes too late is thrown away, and the thread serves again
       B4  a thread that hangs keeps neither its process nor an event loop from ending
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class TookTooLong(Exception):
    """The wait for a call ended before the call did: it may still be carried out, or never."""


class BoundedThread:
    """One thread, made when it is first needed."""

    def __init__(self, name: str, faults: tuple[type[Exception], ...]) -> None:
        """`faults`: what the world may cause. Anything else is a defect: it is told too, and ends the thread."""
        self._name = name
        self._faults = faults
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[Any] | None = None
        self._outlived = False

    async def ask(self, work: Callable[[], Answer], within_s: float) -> Answer:
        """Raises: TookTooLong, and whatever `work` raises."""
        if self._outlived:
            raise TookTooLong("something that was asked before still hangs")
        try:
            async with asyncio.timeout(within_s) as limit, self._turn:
                if self._running is not None:  # whoever asked was cancelled
                    await asyncio.wait((self._running,))
                answer: Answer = await asyncio.shield(self._begin(work))
                return answer
        except TimeoutError as fault:
            if not limit.expired():
                raise  # the operating system's own
            self._outlived = self._running is not None
            raise TookTooLong(f"it hasn't come back within {within_s:g} s") from fault

    def close(self) -> None:
        """The thread ends when it is done, if ever. Safe to call twice."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _begin(self, work: Callable[[], object]) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        done = self._running = loop.create_future()
        done.add_done_callback(self._ended)

        def tell(settle: Callable[[Any], None], outcome: object) -> None:
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                loop.call_soon_threadsafe(settle, outcome)

        def carry_out() -> None:
            try:
                answer = work()
            except self._faults as fault:
                tell(done.set_exception, fault)
            except BaseException as fault:
                tell(done.set_exception, fault)
                raise
            else:
                tell(done.set_result, answer)

        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(carry_out)
        return done

    def _ended(self, done: "asyncio.Future[Any]") -> None:
        self._running, self._outlived = None, False
        if not done.cancelled():
            done.exception()  # nobody may be left to look at it


def _serve(calls: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()

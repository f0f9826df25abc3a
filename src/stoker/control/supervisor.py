"""Supervision of the tasks that a control plane consists of: if one dies, the whole process stops.

It stops at once, with a clear line and a non-zero exit: a control plane that still answers but no longer schedules,
watches or saves is worse than none, and the restart loses nothing.
"""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self


class DutyEnded(Exception):
    """An essential part ended by itself. The message says which, and why; the cause is what it raised, if anything."""


class Duties:
    """Tasks of which none may end before all do."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, name: str, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        return task

    async def until(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set. Raises: DutyEnded when a duty ends first."""
        stopping = asyncio.create_task(stop.wait(), name="until_stopped")
        try:
            await asyncio.wait((stopping, *self._tasks.values()), return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                raise self._who_ended()
        finally:
            stopping.cancel()

    async def end(self, *names: str) -> None:
        """End the duties of these names on purpose."""
        tasks = [self._tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _who_ended(self) -> DutyEnded:
        ended = {name: task for name, task in self._tasks.items() if task.done()}
        fault = DutyEnded("; ".join(f"{name} ended: {_why(task)}" for name, task in ended.items()))
        causes = [task.exception() for task in ended.values() if not task.cancelled()]
        fault.__cause__ = next((cause for cause in causes if cause is not None), None)
        return fault

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def first_of(*waits: Coroutine[None, None, object]) -> None:
    """Wait until one of several coroutines returns or raises, and cancel the rest."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _why(task: asyncio.Task[None]) -> str:
    if task.cancelled():
        return "it was cancelled"
    fault = task.exception()
    return repr(fault) if fault is not None else "it returned"

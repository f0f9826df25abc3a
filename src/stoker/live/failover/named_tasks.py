"""What is under way for the failover machine while it goes on?

Rules: N1  of one name at most one task is of interest: a newer one takes its place
       N2  a task that breaks for a reason that nobody foresaw is told of: somebody may wait for it for ever
       N3  a task is cancelled once: what it then sees to its end (a write that is under way) isn't cut off by another
           who wants it to end, nor by the end of whoever waits for it
"""

import asyncio
from collections.abc import Callable, Coroutine


class NamedTasks:
    """Tasks of one life, by name. `broke` is told the name of one that raised, and what."""

    def __init__(self, broke: Callable[[str, BaseException], None]) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._broke = broke

    def __contains__(self, name: str) -> bool:
        return name in self._tasks

    def begin(self, name: str, work: Coroutine[None, None, None]) -> None:
        earlier = self._tasks.get(name)
        if earlier is not None:
            earlier.cancel()
        task = self._tasks[name] = asyncio.create_task(work, name=name)
        task.add_done_callback(lambda done: self._done(name, done))

    async def stop(self, *names: str) -> None:
        """Returns when none of these is under way any more."""
        await _ended([self._tasks[name] for name in names if name in self._tasks])

    async def end(self) -> None:
        await _ended(list(self._tasks.values()))

    def _done(self, name: str, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._broke(name, fault)


async def _ended(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks)  # which, unlike gather, cancels nobody when it is cancelled
